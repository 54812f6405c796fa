"""Notices that the engine behind a stream is gone, and writes that into the stream's log.

Two signs. The pool says that the instance was lost, stopped or started anew: its requests died with
it. Or the instance's reports do not show a request that has not ended: then the last message may
have been lost, so the log is read once more, and if that does not help the engine has forgotten the
request. The error goes into the log, not only to this reader: a later one sees the same end.

A request may also have moved (whereabouts.py). Then the stream follows it, and nothing is ended; as
long as a move may have brought it elsewhere, there is a short wait. The log has the last word: it
is closed only while it ends with what this reader knows.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

import redis

from engine_pool import view
from engine_pool.errors import InstanceLost
from engine_pool.live_view import DEAD_STATES, LiveView
from engine_pool.stream import Stream
from engine_pool.token_log import StreamError, TokenLogReader
from engine_pool.token_reader import TokenReader
from engine_pool.types import InstanceLoad, InstanceName, InstanceStatus
from engine_pool.whereabouts import is_alive, is_from, may_arrive, other_place
from migration.report import MoveReport, MoveState

logger = logging.getLogger(__name__)

TICK_S: Final = 0.5
"""Between two looks at the reports, which come at least every 0.1 s."""
REREAD_TICKS: Final = 4
"""Ticks (2 s) without a sign of a request after which its log is read once more."""
GIVE_UP_TICKS: Final = 10
"""Ticks (5 s) after which the engine has forgotten it: longer than any way from there to here."""
MOVING_TICKS: Final = 40
"""The same (20 s) while a move of it goes on: a source in doubt asks first, and then the log."""
ARRIVAL_TICKS: Final = 5
"""Ticks (2.5 s) that a lost instance's request is waited for at the destination of its move: that
reports every 0.1 s what it has, and its first token takes a step."""


class LossWatch:
    """One a web process; `run` is the caller's task, ended by cancelling it."""

    def __init__(self, live: LiveView, reader: TokenReader, log: TokenLogReader) -> None:
        self._live = live
        self._reader = reader
        self._log = log
        self._lost: asyncio.Queue[tuple[Stream, InstanceName, str]] = asyncio.Queue()
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
        elif isinstance(change, MoveReport):
            self._follow(change)
        elif isinstance(change, str):
            self._look(InstanceName(change))

    def _follow(self, move: MoveReport) -> None:
        """Lets a stream go where its request went."""
        if move.state is not MoveState.COMMITTED:
            return
        for stream in self._reader.streams_of([move.request_id]):
            if is_from(move, stream) and (place := other_place(self._live, stream)):
                stream.place_at(place.instance, place)

    def _look(self, instance: InstanceName) -> None:
        status = self._live.statuses.get(instance)
        for stream in self._reader.streams:
            if stream.instance == instance and not is_alive(status, stream.incarnation):
                if place := other_place(self._live, stream):
                    stream.place_at(place.instance, place)
                elif not may_arrive(self._live, stream):
                    self._give_up(stream)

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
            if not stream.instance or stream.is_behind:
                continue
            status = self._live.statuses.get(stream.instance)
            if not is_alive(status, stream.incarnation):
                self._wait_for_arrival(stream)
                continue
            if not stream.actor and status is not None and status.actor:
                # It came there before this process knew the instance.
                stream.place_at(stream.instance, status)
            if stream.instance in fresh:
                self._note_report(stream)

    def _wait_for_arrival(self, stream: Stream) -> None:
        """Counts the ticks since the instance was lost."""
        if place := other_place(self._live, stream):
            stream.place_at(place.instance, place)
            return
        stream.absent_ticks += 1
        if stream.absent_ticks == REREAD_TICKS:
            self._reader.reread(stream.request_id)
        elif stream.absent_ticks >= ARRIVAL_TICKS:
            self._give_up(stream)

    def _note_report(self, stream: Stream) -> None:
        """Counts the ticks in which the instance's reports have not shown the request."""
        if self._live.shows(stream.instance, stream.request_id):
            stream.absent_ticks = 0
            return
        if place := other_place(self._live, stream):
            stream.place_at(place.instance, place)
            return
        stream.absent_ticks += 1
        if stream.absent_ticks == REREAD_TICKS:
            self._reader.reread(stream.request_id)
            return
        limit = MOVING_TICKS if may_arrive(self._live, stream) else GIVE_UP_TICKS
        if stream.absent_ticks >= limit:
            self._give_up(stream)

    def _give_up(self, stream: Stream) -> None:
        instance, status = stream.instance, self._live.statuses.get(stream.instance)
        if is_alive(status, stream.incarnation):
            text = f"The instance {instance} does not know this request any more."
        else:
            why = status.cause if status and status.state in DEAD_STATES else "it was restarted"
            text = f"The instance {instance} died ({why})."
        self._lost.put_nowait((stream, instance, text))

    async def _end_lost(self) -> None:
        while True:
            stream, lost, message = await self._lost.get()
            try:
                await self._end(stream, lost, message)
            except (redis.RedisError, OSError, TimeoutError) as error:
                # The reader ends the stream, if the store stays away; the ticks come back to it.
                logger.warning("could not end %s: %s", stream.request_id, error)
                stream.absent_ticks = 0
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                # Python 3.11's wait_for, which the store's client uses, swallows a cancellation
                # that comes when its work is done.
                raise asyncio.CancelledError

    async def _end(self, stream: Stream, lost: InstanceName, message: str) -> None:
        """Closes the log, unless somebody else goes on with it."""
        last_entry, frame = await self._log.newest(stream.request_id)
        is_open = stream in self._reader.streams_of([stream.request_id])
        if not is_open or stream.instance != lost:
            return
        if frame is not None and frame.end > stream.end and frame.instance != lost:
            status = self._live.statuses.get(InstanceName(frame.instance))
            if is_alive(status, ""):
                # Its frames are on their way here, or are read now: they take the stream there.
                self._reader.reread(stream.request_id)
                stream.absent_ticks = 0
                return
        is_done = await self._log.end_with_error(
            stream.request_id,
            instance=lost,
            error=StreamError(InstanceLost.code, f"{message} Send the request again."),
            if_last=last_entry,
        )
        if not is_done:
            # A frame came between the two: looked at anew by the next ticks.
            stream.absent_ticks = 0
