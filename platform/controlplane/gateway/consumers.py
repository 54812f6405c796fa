"""The API's WebSocket (`/v1/responses`): a door; the protocol stands in responses.py."""

import asyncio
import contextlib
import json
import logging
from typing import Any, Final

from channels.generic.websocket import AsyncWebsocketConsumer

from controlplane.gateway import completions, limits
from controlplane.gateway.completions import Completion, EventStream
from controlplane.gateway.errors import ApiError, error_body
from controlplane.gateway.exchange import address_of
from controlplane.gateway.key_access import authenticate
from controlplane.gateway.pools import Pools
from controlplane.gateway.responses import ResponseEvents, to_chat_body
from controlplane.gateway.views import resume_completion
from controlplane.leaving import GOING_AWAY, leaving
from controlplane.tenants.key_cache import KeyCache
from controlplane.tenants.selectors import KeyPolicy

logger = logging.getLogger(__name__)

ENDPOINT: Final = "responses"
AUTH_TIMEOUT_S: Final = 10.0
"""Longest time between the handshake and the key."""
MESSAGE_MAX_CHARS: Final = 16 * 1024 * 1024
"""As of a body over HTTP."""

POLICY: Final = 1008
INTERNAL: Final = 1011
TRY_LATER: Final = 1013


class ResponsesConsumer(AsyncWebsocketConsumer):
    """One a socket. `pools` and `keys` come from `as_asgi`."""

    pools: Pools
    keys: KeyCache

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.pools = kwargs["pools"]
        self.keys = kwargs["keys"]
        self._key = ""
        """The whole key: what it allows is looked up for each answer."""
        self._headers: dict[str, str] = {}
        self._answer: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._is_cancelling = False
        self._is_closed = False

    @property
    def is_busy(self) -> bool:
        """As in leaving.Socket."""
        return self._answer is not None and not self._answer.done()

    async def go_away(self) -> None:
        """As in leaving.Socket; a stream that is let go of says so first (`_run`)."""
        if not self.is_busy:
            await self._close(GOING_AWAY)

    async def connect(self) -> None:
        await self.accept()
        leaving.sockets.add(self)
        if self.pools.is_stopping:
            await self.close(GOING_AWAY)
            return
        raw = self.scope["headers"]
        self._headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in raw}
        scheme, _, text = self._headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            await self._authenticate(text.strip())
        else:
            self._deadline = asyncio.get_running_loop().call_later(
                AUTH_TIMEOUT_S, lambda: asyncio.ensure_future(self._close_unless_known())
            )

    async def disconnect(self, code: int) -> None:
        self._is_closed = True
        leaving.sockets.discard(self)
        if self._deadline is not None:
            self._deadline.cancel()
        await self._stop_answer()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        try:
            message = _read(text_data)
            kind = message.get("type")
            if not self._key:
                if kind != "auth":
                    raise ApiError(401, "Send your key first.", "invalid_api_key")
                await self._authenticate(str(message.get("api_key", "")))
            elif kind == "response.create":
                self._begin(self._new(message, await self._policy()), None)
            elif kind == "response.resume":
                await self._resume(message, await self._policy())
            elif kind == "response.cancel":
                self._is_cancelling = True
                await self._stop_answer()
                self._is_cancelling = False
            else:
                raise ApiError(400, f"Unknown message type {kind!r}.", param="type")
        except ApiError as error:
            await self._refuse(error)

    async def _authenticate(self, text: str) -> None:
        try:
            await authenticate(self.keys, text, address_of(self.scope))
            self._key = text
        except ApiError as error:
            await self._refuse(error)

    async def _policy(self) -> KeyPolicy:
        """Returns what the key allows now. Raises: ApiError."""
        return await authenticate(self.keys, self._key, address_of(self.scope))

    async def _close_unless_known(self) -> None:
        if not self._key:
            await self.close(POLICY)

    async def _refuse(self, error: ApiError) -> None:
        """Says why a message is not followed; ends the socket where no other one would be."""
        limits.count_rejection(error)
        await self._say_error(error)
        if error.status in (401, 403):
            await self.close(POLICY)
        elif error.status == 503:
            await self.close(TRY_LATER)

    def _new(self, message: dict[str, Any], policy: KeyPolicy) -> Completion:
        raw = json.dumps(to_chat_body(message)).encode()
        return completions.read(self.pools, ENDPOINT, raw, policy, self._headers)

    async def _resume(self, message: dict[str, Any], policy: KeyPolicy) -> None:
        after = message.get("starting_after", -1)
        if not isinstance(after, int):
            raise ApiError(400, "`starting_after` must be a number.", param="starting_after")
        request_id = str(message.get("response_id", ""))
        self._begin(await resume_completion(self.pools, ENDPOINT, policy, request_id), after)

    def _begin(self, completion: Completion, after: int | None) -> None:
        if self._answer is not None and not self._answer.done():
            raise ApiError(
                400,
                "An answer is under way on this socket: cancel it, or open another.",
                "conversation_already_has_active_response",
            )
        self._answer = asyncio.create_task(self._run(completion, after))

    async def _run(self, completion: Completion, after: int | None) -> None:
        events = ResponseEvents(
            completion.call.request_id,
            completion.created_unix_s,
            completion.call.model,
            after,
        )
        stream = EventStream(completion, events)
        try:
            await self._say(events.created())
            await stream.start()
            async for event in stream:
                await self._say(event)
            if self.pools.is_stopping:
                await self._close(GOING_AWAY)
        except ApiError as error:
            limits.count_rejection(error)
            await self._say(events.failed(_facts(error)))
            if self.pools.is_stopping:
                await self._close(GOING_AWAY)
        except asyncio.CancelledError:
            if self._is_cancelling:
                await self._say(events.cancelled())
            raise
        except Exception:
            logger.exception("response %s failed", completion.call.request_id)
            await self.close(INTERNAL)
        finally:
            await stream.aclose()

    async def _stop_answer(self) -> None:
        if self._answer is not None:
            self._answer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._answer
            self._answer = None

    async def _close(self, code: int) -> None:
        if not self._is_closed:
            self._is_closed = True
            await self.close(code)
        leaving.sockets.discard(self)

    async def _say(self, event: str | None) -> None:
        if event is not None:
            await self.send(event)

    async def _say_error(self, error: ApiError) -> None:
        await self.send(json.dumps({"type": "error", **error_body(error)}, ensure_ascii=False))


def _facts(error: ApiError) -> dict[str, object]:
    """Returns the error with what HTTP says in headers."""
    wait = {} if error.retry_after_ms is None else {"retry_after_ms": error.retry_after_ms}
    return {**error_body(error)["error"], **wait}


def _read(text: str | None) -> dict[str, Any]:
    if text is None or len(text) > MESSAGE_MAX_CHARS:
        raise ApiError(400, "A message is a JSON object as text, of at most 16 MiB.")
    return completions.parse_json(text.encode())
