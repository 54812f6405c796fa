"""The end of a web process, so that a deploy breaks no stream.

1. At once: readiness says no, answers close their connections; everything else goes on, new
   requests too, since whoever sends them may not have noticed yet.
2. When proxies have had time to notice and all answers have ended, at the latest after the grace:
   no new requests, running streams end with an error that says that they can be resumed, sockets
   close with 1001 (going away).
3. When those are gone, at the latest after FAREWELL_S: the server closes its port and ends.

The engines go on with what was cut, so the clients resume at another web process.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, Protocol

from controlplane.gateway.exchange import Receive, Scope, Send
from controlplane.gateway.pools import Pools

logger = logging.getLogger(__name__)

FAREWELL_S: Final = 3.0
"""For clients to take the last words; what is not read by then is cut."""
NOTICE_MAX_S: Final = 5.0
"""Proxies ask every few seconds whether this process is ready; it stays for them as long as that,
even with nothing under way, but no longer than a quarter of its grace."""
NOTICE_PART: Final = 4
LOOK_EVERY_S: Final = 0.1
GOING_AWAY: Final = 1001
"""WebSocket close code: reconnect and resume, at once."""


class Socket(Protocol):
    """An open WebSocket."""

    @property
    def is_busy(self) -> bool:
        """An answer is under way on it, which is worth waiting for."""

    async def go_away(self) -> None:
        """Closes it with GOING_AWAY, after what is still to be said. Must not raise when it is
        closed already."""


class Leaving:
    """What is open in a web process, and how it ends. One a process; used in the event loop."""

    def __init__(self) -> None:
        self.sockets: set[Socket] = set()
        """Each enters itself when it opens and leaves when it is closed."""
        self._answers = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def has_begun(self) -> bool:
        return self._task is not None

    def begin(self, pools: Pools, grace_s: float, finish: Callable[[], None]) -> None:
        """Ends the process in these steps; `finish` is the server's own part. A second call
        changes nothing."""
        if self._task is None:
            self._task = asyncio.create_task(self._leave(pools, grace_s, finish), name="leaving")

    async def answer(
        self,
        app: Callable[[Scope, Receive, Send], Awaitable[None]],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Has an HTTP request answered, and counts it meanwhile."""
        self._answers += 1
        try:
            await app(scope, receive, self._closing(send))
        finally:
            self._answers -= 1

    def _closing(self, send: Send) -> Send:
        async def send_on(message: MutableMapping[str, Any]) -> None:
            if self.has_begun and message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), (b"connection", b"close")]
                message = {**message, "headers": headers}
            await send(message)

        return send_on

    async def _leave(self, pools: Pools, grace_s: float, finish: Callable[[], None]) -> None:
        pools.begin_drain()
        logger.info("leaving: %d answers are under way, for %.0f s", self._answers, grace_s)
        try:
            notice_s = min(NOTICE_MAX_S, grace_s / NOTICE_PART)
            await asyncio.sleep(notice_s)
            if not await _by(grace_s - notice_s, lambda: not self._is_busy()):
                logger.info("leaving: %d answers are cut; they can be resumed", self._answers)
            pools.begin_stop()
            farewell = asyncio.gather(
                *(socket.go_away() for socket in list(self.sockets)), return_exceptions=True
            )
            await asyncio.wait({farewell}, timeout=FAREWELL_S)
            await _by(FAREWELL_S, lambda: not self._answers and not self.sockets)
        finally:
            finish()

    def _is_busy(self) -> bool:
        return self._answers > 0 or any(socket.is_busy for socket in self.sockets)


async def _by(limit_s: float, is_done: Callable[[], bool]) -> bool:
    """Returns as soon as it is done, and True; False when that takes too long."""
    end_s = time.monotonic() + limit_s
    while not is_done():
        if time.monotonic() >= end_s:
            return False
        await asyncio.sleep(LOOK_EVERY_S)
    return True


leaving: Final = Leaving()
"""This process's."""
