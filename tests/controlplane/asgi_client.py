"""A client of an ASGI application that can leave at any time, and read as slowly as it likes."""

import asyncio
import json
from collections.abc import MutableMapping
from typing import Any

from controlplane.gateway.exchange import Scope
from tests.controlplane.fakes import DEADLINE_S


class Exchange:
    """One request under way."""

    def __init__(
        self,
        app: Any,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._raw = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        self._incoming: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        self._incoming.put_nowait({"type": "http.request", "body": self._raw})
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.reads = asyncio.Event()
        """Cleared: the client does not read, and the server's send waits."""
        self.reads.set()
        self._started = asyncio.Event()
        scope: Scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()],
        }
        self.task = asyncio.create_task(app(scope, self._incoming.get, self._send))
        self.task.add_done_callback(lambda _: self._parts.put_nowait(None))

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        await self.reads.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {k.decode(): v.decode() for k, v in message["headers"]}
            self._started.set()
        elif message.get("body"):
            self._parts.put_nowait(message["body"])

    async def started(self) -> None:
        """Returns once the status is known."""
        async with asyncio.timeout(DEADLINE_S):
            await self._started.wait()

    async def event(self) -> str | None:
        """Returns the next part, None after the last."""
        async with asyncio.timeout(DEADLINE_S):
            part = await self._parts.get()
        return None if part is None else part.decode()

    async def events(self) -> list[str]:
        """Returns all that is still to come."""
        found = []
        while (event := await self.event()) is not None:
            found.append(event)
        return found

    async def json(self) -> Any:
        """Returns the whole answer."""
        return json.loads("".join(await self.events()))

    async def leave(self) -> None:
        """Closes the connection and waits until the server has noticed."""
        self._incoming.put_nowait({"type": "http.disconnect"})
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.wait({self.task})
