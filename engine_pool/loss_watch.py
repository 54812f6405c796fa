"""Notices that the engine behind a stream is gone, and hands the request to the replays.

Two signs. The pool says that the instance was lost, stopped or started anew: its requests died with
it. Or the instance's reports do not show a request that has not ended: then the last message may
have been lost, so the log is read once more, and if that does not help the engine has forgotten the
request. What becomes of it then, and that it is lost indeed, is replays.py's business.

A request may also have moved (whereabouts.py). Then the stream follows it, and nothing is lost; as
long as a move may have brought it elsewhere, there is a short wait.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from engine_pool import view
from engine_pool.live_view import DEAD_STATES, LiveView
from engine_pool.log_marks import Lost
from engine_pool.replay_tally import Cause
from engine_pool.replays import Replays
from engine_pool.stream import Stream
from engine_pool.token_reader import TokenReader
from engine_pool.types import InstanceLoad, InstanceName, InstanceState, InstanceStatus
from engine_pool.whereabouts import is_alive, is_from, may_arrive, other_place
from migration.report import MoveReport, MoveState

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

    def __init__(self, live: LiveView, reader: TokenReader, replays: Replays) -> None:
        self._live = live
        self._reader = reader
        self._replays = replays
        self._reports: dict[InstanceName, int] = {}

    async def run(self) -> None:
        """Watches for ever."""
        self._live.add_listener(self._on_change)
        try:
            await self._tick()
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
            if stream.is_being_sent:
                continue
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
            if not stream.instance or stream.is_behind or stream.is_being_sent:
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
            cause, text = (
                Cause.FORGOTTEN,
                f"The instance {instance} does not know this request any more.",
            )
        elif status is None or status.state is InstanceState.STOPPED:
            cause, text = Cause.LEFT, f"The instance {instance} was stopped."
        else:
            why = status.cause if status.state in DEAD_STATES else "it was restarted"
            cause, text = Cause.DIED, f"The instance {instance} died ({why})."
        lost = Lost(
            stream.request_id,
            instance,
            # Also of a status that came later than the request: some name of this life.
            stream.incarnation or (status.incarnation if status else "") or "gone",
            text,
            is_death=cause is Cause.DIED,
            has_run=not self._was_queued(stream),
        )
        self._replays.take(stream, lost, cause)

    def _was_queued(self, stream: Stream) -> bool:
        """Says whether the last report of its instance has a request in the queue."""
        load = self._live.loads.get(stream.instance)
        if load is None or (stream.incarnation and load.incarnation != stream.incarnation):
            return False
        return any(r.request_id == stream.request_id for r in load.waiting)
