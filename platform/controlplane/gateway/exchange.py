"""Requests and answers of the API, without Django's middleware.

The API has no sessions, cookies or forms; Django's request cycle with its thread hops would cost
more than all else that the gateway does for a short answer. Known to this file: ASGI, limits,
headers.
"""

import asyncio
import math
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final

from controlplane.gateway.errors import ApiError, error_json
from controlplane.gateway.sse import PING
from controlplane.tenants.selectors import KeyPolicy
from engine_pool.task_end import end_tasks

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

BODY_MAX_BYTES: Final = 16 * 1024 * 1024
"""A prompt of a million tokens is about 5 MB of JSON; nothing that can be served is larger."""
BODY_TIMEOUT_S: Final = 60.0
"""For the whole body to arrive."""
PING_EVERY_S: Final = 10.0
"""Silence before a comment is sent; with PING_CHECK_S at most 14 s pass without a sign of life."""
PING_CHECK_S: Final = 4.0

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
"""What of a client's X-Request-Id is taken over into logs and headers."""
_TRACEPARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?"
)
"""W3C's Trace Context; what does not fit is ignored, as it says."""


@dataclass(slots=True)
class ApiRequest:
    """One request, with its whole body."""

    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case; of a repeated header the last one."""
    body: bytes
    request_id: str
    arrived_s: float = field(default_factory=time.monotonic)
    address: str = ""
    """Of the client; behind a trusted proxy as that tells it."""
    trace_id: str = ""
    """Of the client's `traceparent`; stands in the log."""
    policy: KeyPolicy | None = None
    """Of its key, once that is known."""


@dataclass(slots=True)
class ApiResponse:
    """An answer; `stream` in place of `body` for events."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    stream: AsyncIterator[str] | None = None


def from_error(error: ApiError) -> ApiResponse:
    """Returns the answer for an error, with Retry-After where waiting helps."""
    headers = dict(error.headers)
    if error.retry_after_ms is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_ms / 1000)))
        headers["retry-after-ms"] = str(error.retry_after_ms)
    return ApiResponse(error.status, error_json(error).encode(), headers=headers)


def read_head(scope: Scope) -> ApiRequest:
    """Returns the request without its body; makes an id unless the client sent a usable one."""
    headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
    given = headers.get("x-request-id", "")
    request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
    trace = _TRACEPARENT.fullmatch(headers.get("traceparent", ""))
    return ApiRequest(
        scope["method"],
        scope["path"],
        headers,
        b"",
        request_id,
        address=address_of(scope),
        trace_id=trace[1] if trace else "",
    )


def address_of(scope: Scope) -> str:
    """Returns the client's address, empty when the server does not know it."""
    client = scope.get("client")
    return str(client[0]) if client else ""


async def read_body(request: ApiRequest, receive: Receive) -> None:
    """Reads the body. Raises: ApiError 413 or 408; ClientGone when the client left meanwhile."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > BODY_MAX_BYTES:
        raise _too_large()
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > BODY_MAX_BYTES:
                    raise _too_large()
                if not message.get("more_body"):
                    break
    except TimeoutError:
        raise ApiError(408, "The request's body did not arrive in time.") from None
    request.body = b"".join(parts)


class ClientGone(Exception):
    """The client closed the connection."""


async def until_gone(receive: Receive) -> None:
    """Returns when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_response(send: Send, request: ApiRequest, response: ApiResponse) -> None:
    """Sends an answer; of a stream every event, and comments while there is none."""
    took_ms = round((time.monotonic() - request.arrived_s) * 1000)
    headers = {
        "content-type": response.content_type,
        "x-request-id": request.request_id,
        "openai-processing-ms": str(took_ms),
        **response.headers,
    }
    if response.stream is None:
        headers["content-length"] = str(len(response.body))
    else:
        headers |= {"cache-control": "no-cache", "x-accel-buffering": "no"}
    await send(
        {
            "type": "http.response.start",
            "status": response.status,
            "headers": [(k.encode(), v.encode("latin-1")) for k, v in headers.items()],
        }
    )
    if response.stream is not None:
        await _send_events(send, response.stream)
        return
    await send({"type": "http.response.body", "body": response.body})


async def _send_events(send: Send, events: AsyncIterator[str]) -> None:
    sent_s = time.monotonic()

    async def ping() -> None:
        nonlocal sent_s
        while True:
            await asyncio.sleep(PING_CHECK_S)
            if time.monotonic() - sent_s >= PING_EVERY_S:
                sent_s = time.monotonic()
                await send({"type": "http.response.body", "body": PING, "more_body": True})

    pinger = asyncio.create_task(ping())
    try:
        async for event in events:
            await send({"type": "http.response.body", "body": event.encode(), "more_body": True})
            sent_s = time.monotonic()
    finally:
        await end_tasks([pinger])
    await send({"type": "http.response.body", "body": b""})


def _too_large() -> ApiError:
    limit_mib = BODY_MAX_BYTES // (1024 * 1024)
    return ApiError(413, f"The request's body is larger than {limit_mib} MiB.", "request_too_large")
