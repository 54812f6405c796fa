"""How large and how slow the body of a request to a page or to /api/v1 may be.

Django takes a whole body to disk before it looks at it; /v1 has limits of its own (exchange.py).
"""

import asyncio
import json
from typing import Any, Final

from controlplane.gateway.exchange import Receive, Scope, Send

BODY_MAX_BYTES: Final = 2 * 1024 * 1024
"""The largest that is sent here is a scenario of a what-if run, some 100 KiB."""
BODY_TIMEOUT_S: Final = 60.0
"""For the whole body to arrive."""


class BodyRefused(Exception):
    """The body is too large or too slow: its HTTP status and a sentence."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def declared_bytes(scope: Scope) -> int:
    """Returns what the client says, 0 when it says nothing readable."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0


def limited(receive: Receive) -> Receive:
    """Returns a `receive` that raises BodyRefused once too much has come, or too slowly."""
    size = 0
    is_whole = False
    deadline_s = asyncio.get_running_loop().time() + BODY_TIMEOUT_S

    async def next_message() -> Any:
        nonlocal size, is_whole
        if is_whole:
            # What comes now is that the client leaves, in its own time.
            return await receive()
        try:
            async with asyncio.timeout_at(deadline_s):
                message = await receive()
        except TimeoutError:
            raise BodyRefused(408, "request_timeout", "The body did not arrive in time.") from None
        size += len(message.get("body", b""))
        is_whole = not message.get("more_body", False)
        if size > BODY_MAX_BYTES:
            raise too_large()
        return message

    return next_message


def too_large() -> BodyRefused:
    limit_mib = BODY_MAX_BYTES // (1024 * 1024)
    return BodyRefused(413, "request_too_large", f"The body is larger than {limit_mib} MiB.")


async def send_refusal(send: Send, refused: BodyRefused) -> None:
    """Answers in the API's error shape, and ends the connection: the rest is never read."""
    body = json.dumps(
        {
            "error": {
                "message": str(refused),
                "type": "invalid_request_error",
                "param": None,
                "code": refused.code,
            }
        }
    ).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
