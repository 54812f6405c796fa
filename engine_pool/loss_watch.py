"""Notices that the engine behind a stream is gone, and writes that into the stream's log.

Two signs. The pool says that the instance was lost, stopped or started anew: its requests died with
it. Or the instance's reports do not show a request that has not ended: then the last message may
have been lost, so the log is read once more, and if that does not help the engine has forgotten the
request. The error goes into the log, not only to this reader: a later one sees the same end.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

import redis

from engine_pool import view
from engine_pool.errors import InstanceLost
from engine_pool.live_view import LiveView
from engine_pool.stream import Stream
from engine_pool.token_log import StreamError, TokenLogReader
from engine_pool.token_reader import TokenReader
from engine_pool.types import InstanceLoad, InstanceName, InstanceState, InstanceStatus

logger = logging.getLogger(__name__)

TICK_S: Final = 0.5
"""Between two looks at the reports, which come at least every 0.1 s."""
REREAD_TICKS: Final = 4
"""Ticks (2 s) without a sign of a request after which its log is read once more."""
GIVE_UP_TICKS: Final = 10
"""Ticks (5 s) after which the engine has forgotten it: longer than any way from there to here."""
_DEAD: Final = (InstanceState.LOST, InstanceState.STOPPED)


class LossWatch:
    """One a web process; `run` is the caller's task, ended by cancelling it."""

    def __init__(self, live: LiveView, reader: TokenReader, log: TokenLogReader) -> None:
        self._live = live
        self._reader = reader
        self._log = log
        self._lost: asyncio.Queue[tuple[Stream, str]] = asyncio.Queue()
        self._reports: dict[InstanceName, int] = {}

    async def run(self) -> None:
        """Watches for ever."""
        self._live.add_listener(self._on_change)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._end_lost())
                tasks.create_task(self._tick())
        finally:
            self._live.remove_listener(self._on_change)

    def _on_change(self, change: view.Change) -> None:
        if isinstance(change, InstanceStatus):
            self._look(change.instance)
        elif isinstance(change, str):
            self._look(InstanceName(change))

    def _look(self, instance: InstanceName) -> None:
        status = self._live.statuses.get(instance)
        for stream in self._reader.streams:
            if stream.instance == instance and not is_alive(status, stream.incarnation):
                why = status.cause if status and status.state in _DEAD else "it was restarted"
                self._lost.put_nowait((stream, f"The instance {instance} died ({why})."))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if not (self._live.store_connected and self._reader.is_connected):
                continue
            fresh = {
                load.instance: load
                for load in self._live.loads.values()
                if self._reports.get(load.instance) != load.seq
            }
            self._reports = {load.instance: load.seq for load in self._live.loads.values()}
            self._count_absent(self._reader.streams, fresh)

    def _count_absent(
        self, streams: Iterable[Stream], fresh: dict[InstanceName, InstanceLoad]
    ) -> None:
        for stream in streams:
            load = fresh.get(stream.instance)
            if load is None or not stream.incarnation or stream.is_behind:
                continue
            if self._live.shows(stream.instance, stream.request_id):
                stream.absent_ticks = 0
                continue
            stream.absent_ticks += 1
            if stream.absent_ticks == REREAD_TICKS:
                self._reader.reread(stream.request_id)
            elif stream.absent_ticks == GIVE_UP_TICKS:
                text = f"The instance {stream.instance} does not know this request any more."
                self._lost.put_nowait((stream, text))

    async def _end_lost(self) -> None:
        while True:
            stream, message = await self._lost.get()
            try:
                await self._log.end_with_error(
                    stream.request_id,
                    instance=stream.instance,
                    error=StreamError(InstanceLost.code, f"{message} Send the request again."),
                )
            except (redis.RedisError, OSError, TimeoutError) as error:
                # The reader ends the stream, if the store stays away; the ticks come back to it.
                logger.warning("could not end %s: %s", stream.request_id, error)
                stream.absent_ticks = 0


def is_alive(status: InstanceStatus | None, incarnation: str) -> bool:
    """Says whether an instance still is the one that a request was sent to."""
    if status is None or status.state in _DEAD:
        return False
    return not incarnation or status.incarnation in ("", incarnation)
