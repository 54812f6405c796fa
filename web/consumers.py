"""The one WebSocket of a page: sends what changed, twice a second at most (web/messages.py).

There is no queue: a client that reads slowly gets, when it reads again, the difference between what
it last got and now. Sending waits for the client, so a slow one costs one message of memory.
"""

import asyncio
import json
import logging
import time
from importlib import import_module
from typing import Any, Final
from urllib.parse import parse_qs

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.contrib.auth import get_user
from django.db import DatabaseError
from django.http import HttpRequest

from controlplane.errors import NotVisible
from controlplane.fleet.middleware import PARAMETER
from controlplane.fleet.observer import LOOK_EVERY_S, Observer
from controlplane.fleet.permissions import is_viewer
from controlplane.fleet.watch import fleet_watch
from controlplane.leaving import leaving
from engine_pool.task_end import end_tasks
from web import messages
from web.live import delta_of, known_topics, snapshot_of, table_of

logger = logging.getLogger(__name__)

MESSAGE_MAX_BYTES: Final = 4096
"""A subscription to all topics is about 200 bytes."""
TICK_EVERY_S: Final = 1.0
PERMISSION_EVERY_S: Final = 30.0
"""How long somebody who logged out elsewhere, or lost the role, may go on watching."""


class LiveConsumer(AsyncWebsocketConsumer):
    """One a tab."""

    channel_layer_alias = "none"
    """No layer: what it sends is in this process, and it must go on when the store is away."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._had: dict[str, tuple[int, messages.Table]] = {}
        self._task: asyncio.Task[None] | None = None
        self._pool = ""
        self._observer: Observer | None = None

    @property
    def is_busy(self) -> bool:
        """As in leaving.Socket: a page goes on at another process without a loss."""
        return False

    async def go_away(self) -> None:
        """As in leaving.Socket."""
        await self.close(messages.CLOSE_GOING_AWAY)
        leaving.sockets.discard(self)

    async def connect(self) -> None:
        await self.accept()
        leaving.sockets.add(self)
        if not await database_sync_to_async(is_viewer)(self.scope["user"]):
            await self.close(messages.CLOSE_NOT_ALLOWED)
            return
        try:
            watch = fleet_watch(_pool_of(self.scope.get("query_string", b"")))
        except NotVisible:
            await self.close(messages.CLOSE_BROKEN)
            return
        watch.start()
        self._observer = watch.observer
        self._pool = watch.pool
        self._task = asyncio.create_task(self._push(), name="live push")

    async def disconnect(self, code: int) -> None:
        leaving.sockets.discard(self)
        if self._task:
            await end_tasks([self._task])

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        if self._observer is None:
            return
        try:
            topics = _parse(text_data or "")
        except ValueError as error:
            await self._send({"t": messages.ERROR, "message": str(error)})
            return
        unknown = topics.keys() - known_topics(self._pool)
        if unknown:
            message = f"topics: unknown {', '.join(sorted(unknown))}"
            await self._send({"t": messages.ERROR, "message": message})
        self._had = {t: had for t, had in self._had.items() if t in topics and topics[t] == had[0]}
        picture = self._observer.look()
        for topic in topics.keys() - self._had.keys() - unknown:
            # Noted before the wait, so that the push loop's next delta builds upon this snapshot.
            self._had[topic] = (picture.version, table_of(picture, topic))
            await self._send(snapshot_of(picture, topic))

    async def _push(self) -> None:
        try:
            await self._push_on()
        except OSError:
            # The client is gone; `disconnect` follows.
            return
        except Exception:
            # Without this loop the page would look alive and show old numbers: it must come back.
            logger.exception("a live socket broke")
            await self.close(messages.CLOSE_BROKEN)

    async def _push_on(self) -> None:
        tick_due_s = permission_due_s = time.monotonic()
        permission_due_s += PERMISSION_EVERY_S
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            now_s = time.monotonic()
            if now_s >= permission_due_s:
                permission_due_s = now_s + PERMISSION_EVERY_S
                if not await self._still_allowed():
                    await self.close(messages.CLOSE_NOT_ALLOWED)
                    return
            await self._send_changes()
            if now_s >= tick_due_s:
                tick_due_s = now_s + TICK_EVERY_S
                seqs = {topic: seq for topic, (seq, _) in self._had.items()}
                await self._send({"t": messages.TICK, "at": round(time.time(), 3), "seq": seqs})

    async def _send_changes(self) -> None:
        assert self._observer is not None, "set before the task starts"
        picture = self._observer.look()
        for topic, (seq, had) in list(self._had.items()):
            if seq == picture.version or self._had.get(topic, (0,))[0] != seq:
                # Nothing new, or a subscription came in while an earlier topic was being sent.
                continue
            delta = delta_of(picture, topic, had, seq)
            if delta is not None:
                self._had[topic] = (picture.version, table_of(picture, topic))
                await self._send(delta)

    async def _still_allowed(self) -> bool:
        try:
            return await _session_is_viewers(self.scope["session"].session_key)
        except DatabaseError as error:
            # Who was allowed stays so while nobody can be asked; a page must go on then.
            logger.warning("permission not checked: %s", type(error).__name__)
            return True

    async def _send(self, message: messages.ServerMessage) -> None:
        text = json.dumps(message, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        await self.send(text_data=text)


def _pool_of(query: bytes) -> str:
    """Returns the pool that the page is about; empty: the default one."""
    return parse_qs(query.decode("ascii", "replace")).get(PARAMETER, [""])[0]


def _parse(text: str) -> dict[str, int]:
    """Returns the wanted topics. Raises: ValueError that says what is wrong, naming the field."""
    if len(text.encode()) > MESSAGE_MAX_BYTES:
        raise ValueError(f"message: at most {MESSAGE_MAX_BYTES} bytes")
    try:
        message = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"message: not JSON ({error})") from None
    if not isinstance(message, dict) or message.get("t") != messages.SUBSCRIBE:
        raise ValueError(f't: expected "{messages.SUBSCRIBE}"')
    topics = message.get("topics")
    if not isinstance(topics, dict) or not all(type(seq) is int for seq in topics.values()):
        raise ValueError("topics: expected an object of topic and last seq (a whole number)")
    return topics


@database_sync_to_async
def _session_is_viewers(session_key: str) -> bool:
    """Reads session and user anew: either may be gone by now."""
    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    return is_viewer(get_user(request))
