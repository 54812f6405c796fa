"""Requests that wait in a web process for the first instance of a pool that has none.

A pool may be at zero: whoever asks then is held, for a bounded time and in bounded number, and the
store is told, by which the scaling loop learns that somebody wants the pool back. With the first
instance they go on in the order of their classes, within a class as they came. The same holds while
all instances start, or start anew.

| key | type | holds |
|---|---|---|
| ferry:pool:<pool>:demand | string | how many requests wait in the web process that wrote last |
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Final, TypeVar

import redis
import redis.asyncio

from engine_pool import view
from engine_pool.config import PoolConfig
from engine_pool.errors import NoInstance, PoolError, PoolStarting, StoreUnavailable
from engine_pool.live_view import LiveView
from engine_pool.policy.reports import why_nobody
from engine_pool.pool_keys import demand_key
from engine_pool.task_end import end_tasks
from engine_pool.types import InstanceLoad, InstanceStatus, PriorityClass

TELL_EVERY_S: Final = 1.0
"""Between two times that the store is told of who waits: the loop looks every few seconds."""
DEMAND_LIFE_S: Final = 10
"""How long the store remembers it: some intervals of the loop, and short enough that nobody starts
an instance for a client that has left."""
STORE_TIMEOUT_S: Final = 5.0
"""For telling it: a millisecond, but a burst of requests keeps a process from its sockets."""

P = TypeVar("P")


@dataclass(slots=True, eq=False)
class _Waiter:
    priority_class: PriorityClass
    number: int
    """Of its arrival."""
    since_s: float
    served: "asyncio.Future[None]" = field(repr=False)

    @property
    def turn(self) -> tuple[int, int]:
        return self.priority_class.rank, self.number


class Holding:
    """Of one pool in one web process, in its event loop."""

    def __init__(
        self,
        live: LiveView,
        store: "redis.asyncio.Redis[bytes]",
        config: PoolConfig,
        is_served: Callable[[], bool],
    ) -> None:
        """`is_served`: says whether an instance takes requests now."""
        self._live = live
        self._store = store
        self._is_served = is_served
        self._key = demand_key(config.pool)
        self._hold_s = config.hold_s
        self._hold_max = config.hold_max
        self._waiters: list[_Waiter] = []
        """In the order of arrival."""
        self._numbers = count()
        self._teller: asyncio.Task[None] | None = None
        self._is_due = False
        live.add_listener(self._on_change)

    def __len__(self) -> int:
        return len(self._waiters)

    def lengths(self) -> Counter[PriorityClass]:
        """Returns how many requests wait in each class."""
        return Counter(w.priority_class for w in self._waiters)

    def oldest_s(self) -> float:
        """Returns how long the oldest has waited, 0 when nobody waits."""
        return time.monotonic() - self._waiters[0].since_s if self._waiters else 0.0

    def use(self, config: PoolConfig) -> None:
        """Holds by these settings from now on; those who wait keep their time, unless nobody is to
        wait any more."""
        self._hold_s, self._hold_max = config.hold_s, config.hold_max
        if not self._hold_s:
            self.give_up(NoInstance("No instance serves, and requests no longer wait for one."))

    def give_up(self, error: PoolError) -> None:
        """Ends the wait of all requests with an error."""
        for waiter in self._waiters:
            if not waiter.served.done():
                waiter.served.set_exception(error)

    async def place(self, priority_class: PriorityClass, find: Callable[[], Awaitable[P]]) -> P:
        """Returns what `find` finds, once an instance serves. A caller that is cancelled leaves
        nothing behind.

        Raises: PoolStarting when nobody has served for `hold_s`; NoInstance when too many wait
        already; StoreUnavailable when nobody can be told that somebody waits; what `find` raises.
        """
        deadline_s = time.monotonic() + self._hold_s
        while True:
            if self._hold_s and not self._is_served():
                await self._wait(priority_class, deadline_s)
            try:
                return await find()
            except NoInstance:
                # The only one may have gone at that moment, which is as if it had never come.
                if not self._hold_s or self._is_served():
                    raise

    async def close(self) -> None:
        """Ends what `place` began."""
        if self._teller is not None:
            await end_tasks([self._teller])

    async def _wait(self, priority_class: PriorityClass, deadline_s: float) -> None:
        if len(self._waiters) >= self._hold_max:
            raise NoInstance(
                f"No instance serves, and {len(self._waiters):,} requests wait for the first one"
                " already; try again soon."
            )
        now_s = time.monotonic()
        served: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(priority_class, next(self._numbers), now_s, served)
        self._waiters.append(waiter)
        self._tell()
        try:
            async with asyncio.timeout(deadline_s - now_s):
                await served
        except TimeoutError:
            raise PoolStarting(self._why()) from None
        finally:
            self._waiters.remove(waiter)

    def _why(self) -> str:
        now_unix_s = time.time()
        why = why_nobody(self._live.pool_view(now_unix_s), now_unix_s)
        return f"The pool is starting: nobody has served for {self._hold_s:g} s ({why}); try again."

    def _on_change(self, change: view.Change) -> None:
        """Looks soon, after the other listeners have taken the change in."""
        if self._waiters and not self._is_due and isinstance(change, InstanceLoad | InstanceStatus):
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._is_due = False
        if self._waiters and self._is_served():
            for waiter in sorted(self._waiters, key=lambda w: w.turn):
                if not waiter.served.done():
                    waiter.served.set_result(None)

    def _tell(self) -> None:
        if self._teller is None or self._teller.done():
            self._teller = asyncio.create_task(self._tell_on(), name="demand of a pool at zero")

    async def _tell_on(self) -> None:
        """Tells the store while somebody waits."""
        while self._waiters:
            try:
                async with asyncio.timeout(STORE_TIMEOUT_S):
                    await self._store.set(self._key, len(self._waiters), ex=DEMAND_LIFE_S)
            except (redis.RedisError, OSError, TimeoutError):
                # Nobody learns of them, so nobody would come.
                self.give_up(StoreUnavailable("The store does not answer; try again soon."))
            await asyncio.sleep(TELL_EVERY_S)
