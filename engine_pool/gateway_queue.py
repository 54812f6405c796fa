"""The queue of a web process: requests that wait here until an instance has room for them.

An option (FERRY_LATE_BINDING). Who goes and where to is `policy.late_binding.release`'s decision;
the order is the line's (waiting_line.py). This looks at the pool when an instance may have got
freer. Web processes know of each other's requests by the ledger only: two may fill the same room at
the same moment, and the later one waits in the engine then.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from engine_pool.errors import NoInstance, PoolError, RequestTooLarge
from engine_pool.placement import Placement
from engine_pool.policy.dispatch import Choice, fits, holds_tokens, too_large
from engine_pool.policy.late_binding import LOOKED_AT, Held, has_room, release
from engine_pool.policy.settings import DispatchRule
from engine_pool.policy.standing import Standing
from engine_pool.types import PriorityClass
from engine_pool.waiting_line import Waiter, WaitingLine, Wish

WAITING_MAX: Final = 1000
"""Requests in one web process: they hold their prompts in memory, some hundred kilobytes each at
most, and who comes behind so many would wait for minutes."""
WAIT_MAX_S: Final = 600.0
"""Clients give up after ten minutes (openai-python's default)."""
NOBODY_MAX_S: Final = 10.0
"""How long requests wait for a pool in which no instance serves: an instance that only restarts is
back by then, and a client can try elsewhere."""
WAKE_GAP_S: Final = 0.01
"""Between two looks at the pool: each report of a large pool would be one otherwise."""
TICK_S: Final = 0.5
"""Between two looks when nothing was heard: entries of the ledger and reports grow old."""


class GatewayQueue:
    """Of one web process, in its event loop."""

    def __init__(
        self,
        placement: Placement,
        rule: DispatchRule,
        ageing_s: float,
        of_rank: Mapping[int, float] | None = None,
    ) -> None:
        self._placement = placement
        self._rule = rule
        self._line = WaitingLine(ageing_s, of_rank)
        self._timer: asyncio.Handle | None = None
        self._wakes_at_s = 0.0
        """When the timer is due, on the loop's clock; uvloop's handles do not say so."""
        self._nobody_since_s: float | None = None
        placement.on_room = self._on_room

    def __len__(self) -> int:
        return len(self._line)

    def lengths(self) -> Counter[PriorityClass]:
        """Returns how many requests wait in each class."""
        return self._line.lengths()

    def oldest_s(self) -> float:
        """Returns how long the oldest has waited, 0 when nobody waits."""
        since_s = self._line.oldest_since_s()
        return 0.0 if since_s is None else time.monotonic() - since_s

    def use(self, rule: DispatchRule, ageing_s: float, of_rank: Mapping[int, float]) -> None:
        """Lets requests go by these rules from now on."""
        self._rule = rule
        self._line.use_ageing(ageing_s, of_rank)

    def give_up(self, error: PoolError) -> None:
        """Ends the wait of all requests with an error."""
        for waiter in self._line.in_order():
            self._give_up(waiter, error)

    async def place(self, wish: Wish) -> Choice:
        """Returns once the request may go. If the caller is cancelled, the request has no place.

        Raises: NoInstance when the queue is full, nobody serves, or it has waited for too long;
        RequestTooLarge when the instances that could hold it have gone meanwhile.
        """
        self._make_place(wish.demand.priority_class.rank)
        # The first one goes at once if it can; the others of a burst are looked at together.
        after_s = WAKE_GAP_S if self._line else 0.0
        placed: asyncio.Future[Choice] = asyncio.get_running_loop().create_future()
        waiter = self._line.enter(wish, placed, time.monotonic())
        self._wake(after_s)
        try:
            async with asyncio.timeout(WAIT_MAX_S):
                return await placed
        except BaseException as error:
            self._line.leave(waiter)
            if waiter.is_taken:
                wish.give_back()
            if isinstance(error, TimeoutError):
                why = f"No instance had room for this request for {WAIT_MAX_S:g} s."
                raise NoInstance(why) from None
            raise

    def _make_place(self, rank: int) -> None:
        """Raises: NoInstance when the queue is full of requests that are no less urgent."""
        if len(self._line) < WAITING_MAX:
            return
        last = self._line.last()
        full = NoInstance(f"{WAITING_MAX:,} requests wait at this server already; try again soon.")
        if last.turn.rank <= rank:
            raise full
        self._give_up(last, full)

    def _give_up(self, waiter: Waiter, error: PoolError) -> None:
        self._line.leave(waiter)
        if not waiter.placed.done():
            waiter.placed.set_exception(error)

    def _on_room(self) -> None:
        if self._line:
            self._wake(WAKE_GAP_S)

    def _wake(self, after_s: float) -> None:
        """Looks at the pool then, unless that happens sooner anyway."""
        loop = asyncio.get_running_loop()
        at_s = loop.time() + after_s
        if self._timer is not None:
            if self._wakes_at_s <= at_s:
                return
            self._timer.cancel()
        self._wakes_at_s = at_s
        self._timer = loop.call_later(after_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self._line:
            return
        try:
            self._place_some(time.monotonic(), time.time())
        finally:
            if self._line:
                self._wake(TICK_S)

    def _place_some(self, now_s: float, now_unix_s: float) -> None:
        standings = [s for s in self._placement.standings(now_unix_s) if s.is_open]
        if not standings:
            self._wait_for_somebody(now_s)
            return
        self._nobody_since_s = None
        self._line.age(now_s)
        looked_at = self._line.in_order()[:LOOKED_AT]
        roomy = self._roomy(standings)
        if not roomy:
            self._block(looked_at[0], standings, now_s)
            return
        held = [Held(w.wish.refresh(w.wish.demand), w.blocked_since_s) for w in looked_at]
        outcome = release(held, roomy, self._rule, now_s)
        for one in outcome.releases:
            self._let_go(looked_at[one.position], one.choice)
        if outcome.blocked is not None:
            self._block(looked_at[outcome.blocked], standings, now_s)
        elif self._line:
            self._wake(0.0)

    def _block(self, head: Waiter, standings: Sequence[Standing], now_s: float) -> None:
        """Notes since when the head waits; it does not wait for what cannot come."""
        demand = head.wish.demand
        if not any(fits(s, demand, self._rule) for s in standings):
            most = max(holds_tokens(s, self._rule) for s in standings)
            self._give_up(
                head,
                RequestTooLarge(
                    f"No instance can take this request: {too_large(demand, most).why}."
                ),
            )
        elif head.blocked_since_s is None:
            head.blocked_since_s = now_s

    def _roomy(self, standings: Sequence[Standing]) -> list[Standing]:
        """Returns those that could take the least demanding request: in a full pool nobody, which
        is found out without placing anybody."""
        demands = self._line.demands()
        least = replace(
            demands[0],
            demand_tokens=min(d.demand_tokens for d in demands),
            priority_class=min((d.priority_class for d in demands), key=lambda c: c.rank),
        )
        return [s for s in standings if s.is_idle or has_room(s, least, self._rule)]

    def _let_go(self, waiter: Waiter, choice: Choice) -> None:
        self._line.go(waiter)
        if not waiter.placed.done():
            waiter.wish.take(choice)
            waiter.is_taken = True
            waiter.placed.set_result(choice)

    def _wait_for_somebody(self, now_s: float) -> None:
        """Gives all requests up when no instance has served for too long."""
        if self._nobody_since_s is None:
            self._nobody_since_s = now_s
        if now_s - self._nobody_since_s < NOBODY_MAX_S:
            return
        self.give_up(NoInstance(f"No instance has served for {NOBODY_MAX_S:g} s; try again."))
