"""The whole pool as one web process sees it: followed over the fleet's channel, kept in memory.

A decision or a page reads these attributes; it never waits for the store. Changes arrive as
messages (view.py); after each (re)connection the whole view is read anew, after the subscription,
so that nothing falls between. What is here may be old: each load carries its own time, and
`store_connected` with `store_since_unix_s` says whether news can arrive at all.
"""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

import redis
import redis.asyncio

from engine_pool import view
from engine_pool.ledger import Ledger
from engine_pool.pool_keys import FIRST, PoolKeys
from engine_pool.store import ASYNC_TIMEOUT_S
from engine_pool.task_end import end_tasks
from engine_pool.types import (
    FleetEvent,
    InFlight,
    InstanceLoad,
    InstanceName,
    InstanceState,
    InstanceStatus,
    PoolView,
    RequestId,
)
from migration.report import MoveReport, MoveState

logger = logging.getLogger(__name__)

EVENTS_SHOWN: Final = 50
"""What the pages list; older ones stand in the database."""
MOVES_KEPT: Final = 200
"""Moves, the ended ones among them: more than any page lists at once."""
PING_EVERY_S: Final = 1.0
"""The channel may be silent for good reasons, so the connection is asked whether it lives."""
BACKOFF_FIRST_S: Final = 0.1
BACKOFF_MAX_S: Final = 2.0
"""A store that comes back is noticed within this time; its clients answer 503 meanwhile."""
DEAD_STATES: Final = (InstanceState.LOST, InstanceState.STOPPED)

Listener = Callable[[view.Change], None]


class LiveView:
    """Follows the pool. One a process; `run` is the caller's task, ended by cancelling it."""

    def __init__(self, store: "redis.asyncio.Redis[bytes]", keys: PoolKeys = FIRST) -> None:
        self._store = store
        self.keys = keys
        """Of the pool that is followed."""
        self.statuses: dict[InstanceName, InstanceStatus] = {}
        self.loads: dict[InstanceName, InstanceLoad] = {}
        self.events: deque[FleetEvent] = deque(maxlen=EVENTS_SHOWN)
        """Newest first."""
        self.moves: dict[str, MoveReport] = {}
        """By migration id, oldest first: those that go on and the last that ended."""
        self.store_connected = False
        self.store_since_unix_s = time.time()
        """Since when `store_connected` has its present value."""
        self.store_incarnation: str | None = None
        """Name of the store's memory at the last connection; None before the first."""
        self.ledger = Ledger()
        self._shown: dict[InstanceName, frozenset[RequestId]] = {}
        self._listeners: list[Listener] = []

    @property
    def max_model_len(self) -> int | None:
        """Tokens of the longest prompt plus output that every serving instance takes, if known."""
        known = [s.max_model_len for s in self.statuses.values() if s.max_model_len]
        return min(known, default=None)

    def add_listener(self, listener: Listener) -> None:
        """Calls `listener` with every change, in this event loop. It must neither block nor raise.

        After a reconnection it gets the statuses again, also those that did not change.
        """
        self._listeners.append(listener)

    def remove_listener(self, listener: Listener) -> None:
        """Undoes `add_listener`."""
        self._listeners.remove(listener)

    def pool_view(self, now_unix_s: float) -> PoolView:
        """Returns what a decision may use now; forgets ledger entries that are too old."""
        self.ledger.expire(now_unix_s)
        return PoolView(
            tuple(self.statuses.values()), tuple(self.loads.values()), self.ledger.entries()
        )

    def note_sent(self, sent: Iterable[InFlight]) -> None:
        """Enters requests into the ledger: own ones at once, others' as their messages arrive."""
        for entry in sent:
            if not self.shows(entry.instance, entry.request_id):
                self.ledger.enter(entry)

    def note_refused(self, request_id: RequestId) -> None:
        """Takes a request out of the ledger that its instance did not take."""
        self.ledger.drop(request_id)

    def holder(self, request_id: str) -> InstanceStatus | None:
        """Returns the living instance whose last report has the request running or waiting, None
        if none has. Of two, for a moment after a move, it is the one that the move went to."""
        found = self.holders(request_id)
        if len(found) > 1:
            moved = (m for m in reversed(self.moves.values()) if m.request_id == request_id)
            last = next((m for m in moved if m.state is MoveState.COMMITTED), None)
            found.sort(key=lambda s: last is None or s.instance != last.destination)
        return next(iter(found), None)

    def holders(self, request_id: str) -> list[InstanceStatus]:
        """Returns all living instances of which this is true: for a moment after a move, two."""
        found = []
        for instance, load in self.loads.items():
            if not self.shows(instance, request_id) or RequestId(request_id) in load.ended:
                continue
            status = self.statuses.get(instance)
            if status is None or status.state in DEAD_STATES:
                continue
            if status.incarnation == load.incarnation:
                found.append(status)
        return found

    def shows(self, instance: InstanceName, request_id: str) -> bool:
        """Says whether the instance's last report shows the request: running, waiting or ended."""
        return RequestId(request_id) in self._shown.get(instance, frozenset())

    async def run(self) -> None:
        """Follows the store for ever, and through its absences."""
        backoff_s = BACKOFF_FIRST_S
        while True:
            try:
                await self._follow()
            except (redis.RedisError, OSError, TimeoutError) as error:
                was_connected = self.store_connected
                self._set_connected(False)
                if was_connected:
                    logger.warning("lost the store: %s", error or type(error).__name__)
                    backoff_s = BACKOFF_FIRST_S
            await asyncio.sleep(backoff_s * random.uniform(0.7, 1.3))
            backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)

    def apply(self, change: view.Change) -> None:
        """Brings one change into the picture and tells the listeners."""
        match change:
            case InstanceStatus():
                self.statuses[change.instance] = change
            case InstanceLoad():
                self._apply_load(change)
            case FleetEvent():
                self.events.appendleft(change)
            case MoveReport():
                self._apply_move(change)
            case tuple():
                self.note_sent(change)
            case _:
                self._apply_gone(change)
        for listener in self._listeners:
            listener(change)

    async def _follow(self) -> None:
        """Returns never; raises what ended the connection."""
        async with self._store.pubsub(ignore_subscribe_messages=True) as channel:
            async with asyncio.timeout(ASYNC_TIMEOUT_S):
                await channel.subscribe(self.keys.fleet)
                await self._read_all()
            self._set_connected(True)
            # No TaskGroup: one whose task fails as it is cancelled itself forgets the cancellation.
            both = [asyncio.create_task(self._listen(channel)), asyncio.create_task(self._ping())]
            try:
                ended, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await end_tasks(both)
            ended.pop().result()

    async def _listen(self, channel: "redis.asyncio.client.PubSub") -> None:
        while True:
            message = await channel.get_message(timeout=PING_EVERY_S)
            if message is not None:
                self._apply_message(message["data"])

    def _apply_message(self, blob: bytes) -> None:
        # What another version wrote must not end the view; msgspec's errors are ValueErrors.
        try:
            change = view.decode_change(blob)
        except ValueError as error:
            logger.error("ignored a message on %s: %s", self.keys.fleet, error)
            return
        self.apply(change)

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(PING_EVERY_S)
            async with asyncio.timeout(ASYNC_TIMEOUT_S):
                await self._store.ping()

    async def _read_all(self) -> None:
        incarnation = await view.store_incarnation(self._store)
        statuses, loads = await view.read_view(self._store, self.keys)
        events = await view.read_events(self._store, EVENTS_SHOWN, self.keys)
        moves = await view.read_moves(self._store, self.keys)
        self.store_incarnation = incarnation
        for name in self.statuses.keys() - {s.instance for s in statuses}:
            self.apply(name)
        for status in statuses:
            self.apply(status)
        for load in loads:
            self.apply(load)
        going_on = {m.migration_id for m in moves}
        for gone in [i for i, m in self.moves.items() if i not in going_on and not m.state.is_end]:
            # Its end was told while nobody listened here; the database has it.
            del self.moves[gone]
        for move in moves:
            self.apply(move)
        self.events.clear()
        self.events.extend(events)

    def _apply_load(self, load: InstanceLoad) -> None:
        known = self.loads.get(load.instance)
        if known and known.incarnation == load.incarnation and known.seq >= load.seq:
            # Read with the whole view just before its message arrived.
            return
        self.loads[load.instance] = load
        shown = frozenset(r.request_id for r in (*load.running, *load.waiting)).union(load.ended)
        self._shown[load.instance] = shown
        self.ledger.drop_shown(shown)

    def _apply_move(self, move: MoveReport) -> None:
        known = self.moves.get(move.migration_id)
        if known is not None and (known.seq >= move.seq or known.state.is_end):
            return
        self.moves[move.migration_id] = move
        sent = self.ledger.get(RequestId(move.request_id))
        if move.state is MoveState.COMMITTED and sent and sent.instance == move.source:
            # It counts where it is, until a report shows it there.
            self.ledger.drop(sent.request_id)
            self.note_sent([replace(sent, instance=InstanceName(move.destination))])
        if len(self.moves) > MOVES_KEPT:
            ended = [i for i, m in self.moves.items() if m.state.is_end]
            for migration_id in ended[: len(self.moves) - MOVES_KEPT]:
                del self.moves[migration_id]

    def _apply_gone(self, instance: InstanceName) -> None:
        self.statuses.pop(instance, None)
        self.loads.pop(instance, None)
        self._shown.pop(instance, None)
        self.ledger.drop_instance(instance)

    def _set_connected(self, connected: bool) -> None:
        if connected != self.store_connected:
            self.store_connected = connected
            self.store_since_unix_s = time.time()
