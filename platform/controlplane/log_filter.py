"""Keeps API keys out of the logs, whoever wrote them there."""

import logging
import re
from typing import Final

_KEY: Final = re.compile(r"\bsk-([0-9a-f]{12})-[A-Za-z0-9_-]{16,}")


class HideSecrets(logging.Filter):
    """Cuts the secret out of anything that looks like a key; its public id stays."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if "sk-" in text:
            record.msg, record.args = hide(text), None
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text and "sk-" in record.exc_text:
            record.exc_text = hide(record.exc_text)
        return True


def hide(text: str) -> str:
    """Returns the text without the secrets of keys."""
    return _KEY.sub(r"sk-\1-...", text)
