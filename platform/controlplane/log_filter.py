"""Keeps keys, passwords, cookies and sessions out of the logs, whoever wrote them there."""

import logging
import re
from typing import Final

_SECRETS: Final = (
    # A key of ours: its public id stays.
    (re.compile(r"\bsk-([0-9a-f]{12})-[A-Za-z0-9_-]{16,}"), r"sk-\1-..."),
    (re.compile(r"\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE), r"\1 ..."),
    (re.compile(r"\b((?:set-)?cookie:\s*)[^\r\n]+", re.IGNORECASE), r"\1..."),
    (
        re.compile(
            r"\b(sessionid|csrftoken|csrfmiddlewaretoken|password|secret)"
            r"((?:['\"]\s*:\s*['\"])|=)[^\s&;'\",)}]+",
            re.IGNORECASE,
        ),
        r"\1\2...",
    ),
    # The password of a URL: a database's, a store's.
    (re.compile(r"\b([a-z][a-z0-9+]*://[^\s:/@]*):[^\s/@]+@"), r"\1:...@"),
)
# Python takes a replacement apart at its first use, which must not be while it is shutting down.
for _pattern, _shown in _SECRETS:
    _pattern.sub(_shown, "")
_HINT: Final = re.compile(
    r"sk-|bearer|basic|cookie|sessionid|csrf|password|secret|://", re.IGNORECASE
)
"""Most lines have none of these, and cost one search."""


class HideSecrets(logging.Filter):
    """Cuts secrets out of the message and of what is told of an exception."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if _HINT.search(text):
            record.msg, record.args = hide(text), None
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text and _HINT.search(record.exc_text):
            record.exc_text = hide(record.exc_text)
        return True


def hide(text: str) -> str:
    """Returns the text without secrets."""
    for pattern, shown in _SECRETS:
        text = pattern.sub(shown, text)
    return text
