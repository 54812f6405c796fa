"""What the pool process has to say, kept until the store has it: statuses, events, samples.

The pool is true about now, the store only shows it. So a store that is away stops nothing here, and
one that comes back, even without its memory, is told everything again.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable

import redis
import redis.asyncio

from engine_pool.pool_keys import FIRST, PoolKeys
from engine_pool.store import connect, connect_async
from engine_pool.types import (
    FleetEvent,
    FleetSample,
    InstanceLoad,
    InstanceName,
    InstanceStatus,
)
from engine_pool.view import Bulletin, read_view, store_incarnation

log = logging.getLogger(__name__)

EVENTS_KEPT = 1000
"""Events that wait for the store; older ones are dropped while it is away."""
CHECK_INTERVAL_S = 1.0
"""How often a store that lost its memory is looked for, and one that is away tried again."""


class Board:
    """One a pool. The methods that say something return at once; `run` writes."""

    def __init__(
        self,
        redis_url: str,
        wall_clock: Callable[[], float] = time.time,
        keys: PoolKeys = FIRST,
    ) -> None:
        self._blocking = connect(redis_url)
        self._store = connect_async(redis_url)
        self._bulletin = Bulletin(self._blocking, keys)
        self._keys = keys
        self._wall_clock = wall_clock
        self._statuses: dict[InstanceName, InstanceStatus] = {}
        self._unwritten: set[InstanceName] = set()
        self._forgotten: set[InstanceName] = set()
        self._events: deque[FleetEvent] = deque(maxlen=EVENTS_KEPT)
        self._sample: FleetSample | None = None
        self._writing = threading.Lock()
        """A write whose task was cancelled goes on in its thread: the next one waits for it, or
        what is forgotten could be written once more."""
        self._wake = asyncio.Event()
        self._store_name: str | None = None
        self._away_since_s: float | None = None

    @property
    def statuses(self) -> tuple[InstanceStatus, ...]:
        return tuple(self._statuses.values())

    def put_status(self, status: InstanceStatus) -> None:
        self._statuses[status.instance] = status
        self._unwritten.add(status.instance)
        self._wake.set()

    def put_event(
        self, kind: str, headline: str, detail: str, instance: str = "", severity: str = "info"
    ) -> None:
        event = FleetEvent(self._wall_clock(), kind, headline, detail, instance, severity)
        self._events.append(event)
        self._wake.set()

    def put_sample(self, sample: FleetSample) -> None:
        self._sample = sample
        self._wake.set()

    def forget(self, instance: InstanceName) -> None:
        """Removes an instance that is not wanted any more."""
        self._statuses.pop(instance, None)
        self._unwritten.discard(instance)
        self._forgotten.add(instance)
        self._wake.set()

    async def read(self) -> tuple[tuple[InstanceStatus, ...], tuple[InstanceLoad, ...]]:
        """Reads what the store shows. Raises: redis.RedisError."""
        return await read_view(self._store, self._keys)

    async def run(self) -> None:
        """Writes until it is cancelled."""
        while True:
            await self.write()
            try:
                async with asyncio.timeout(CHECK_INTERVAL_S):
                    await self._wake.wait()
            except TimeoutError:
                continue
            if self._away_since_s is not None:
                await asyncio.sleep(CHECK_INTERVAL_S)

    async def write(self) -> None:
        """Writes what the store does not have yet; what it does not take stays for the next
        time."""
        self._wake.clear()
        try:
            name = await store_incarnation(self._store)
            if name != self._store_name:
                self._unwritten.update(self._statuses)
                self._store_name = name
            await asyncio.to_thread(self._write)
        except redis.RedisError as error:
            self._note_away(error)
        else:
            self._note_back()

    def _write(self) -> None:
        with self._writing:
            self._write_all()

    def _write_all(self) -> None:
        # In a thread: each name leaves its set before it is written, so that news meanwhile count.
        for instance in tuple(self._forgotten):
            self._forgotten.discard(instance)
            try:
                self._bulletin.forget(instance)
            except redis.RedisError:
                self._forgotten.add(instance)
                raise
        for instance in tuple(self._unwritten):
            self._unwritten.discard(instance)
            status = self._statuses.get(instance)
            try:
                if status is not None:
                    self._bulletin.report_status(status)
            except redis.RedisError:
                self._unwritten.add(instance)
                raise
        while self._events:
            self._bulletin.report_event(self._events[0])
            self._events.popleft()
        sample, self._sample = self._sample, None
        if sample is not None:
            self._bulletin.report_sample(sample)

    def _note_away(self, error: redis.RedisError) -> None:
        if self._away_since_s is None:
            self._away_since_s = time.monotonic()
            log.warning("the store does not answer: %s", type(error).__name__)
            self.put_event(
                "store_lost", "The store does not answer", "New requests are refused.", "", "bad"
            )

    def _note_back(self) -> None:
        if self._away_since_s is not None:
            away_s = time.monotonic() - self._away_since_s
            self._away_since_s = None
            self._unwritten.update(self._statuses)
            log.warning("the store is back after %.1f s", away_s)
            self.put_event("store_back", "The store is back", f"It was away for {away_s:.1f} s.")

    async def close(self) -> None:
        await self._store.aclose()
        self._blocking.close()
