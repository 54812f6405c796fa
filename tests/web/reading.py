"""A page as a test reads it."""

import re
from html import unescape

from django.test import Client


def text_of(html: str) -> str:
    """Returns what a reader sees, in one line."""
    body = re.sub(r"<script.*?</script>|<title>.*?</title>|<svg.*?</svg>", " ", html, flags=re.S)
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", body)))


def page(client: Client, path: str, **headers: str) -> str:
    answer = client.get(path, headers=headers)
    assert answer.status_code == 200, path
    html: str = answer.content.decode()
    return html
