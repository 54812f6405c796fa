"""The queue of a web process: requests that wait here until an instance has room for them.

An option (FERRY_LATE_BINDING). Who goes and where to is `policy.late_binding.release`'s decision;
this holds the requests in order: class (raised with age), turn of the tenant, arrival. It is
woken when an instance may have got freer. Web processes know of each other's requests by the ledger
only: two may fill the same room at the same moment, and the later one waits in the engine then.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final

from engine_pool.errors import NoInstance, PoolError, RequestTooLarge
from engine_pool.placement import Placement
from engine_pool.policy.dispatch import Choice, RequestDemand, fits, holds_tokens, too_large
from engine_pool.policy.fair_share import WEIGHT_MAX, WEIGHT_MIN, FairShare
from engine_pool.policy.late_binding import LOOKED_AT, Held, has_room, release
from engine_pool.policy.settings import DispatchRule
from engine_pool.policy.standing import Standing
from engine_pool.policy.urgency import Turn, Waiting, raised
from engine_pool.types import PriorityClass

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


@dataclass(frozen=True, slots=True)
class Wish:
    """A request that wants a place."""

    demand: RequestDemand
    tenant: str
    weight: float
    cost_tokens: float
    """What it is expected to use, for its tenant's turn."""
    refresh: Callable[[RequestDemand], RequestDemand]
    """Brings its demand up to date: what is cached where changes while it waits."""
    take: Callable[[Choice], None]
    """Enters it into the ledger at once, so that the next one sees it."""
    give_back: Callable[[], None]
    """Undoes `take`: its client left at that moment."""


@dataclass(slots=True, eq=False)
class _Waiting:
    wish: Wish
    number: int
    """Of its arrival."""
    since_s: float
    turn: Turn
    placed: "asyncio.Future[Choice]" = field(repr=False)
    blocked_since_s: float | None = None
    is_taken: bool = False

    @property
    def key(self) -> tuple[Turn, int]:
        return self.turn, self.number


class GatewayQueue:
    """Of one web process, in its event loop."""

    def __init__(self, placement: Placement, rule: DispatchRule, ageing_s: float) -> None:
        self._placement = placement
        self._rule = rule
        self._ageing_s = ageing_s
        self._waiting: dict[str, _Waiting] = {}
        self._shares = FairShare()
        self._numbers = count()
        self._timer: asyncio.Handle | None = None
        self._wakes_at_s = 0.0
        """When the timer is due, on the loop's clock; uvloop's handles do not say so."""
        self._nobody_since_s: float | None = None
        placement.on_room = self._on_room

    def __len__(self) -> int:
        return len(self._waiting)

    def lengths(self) -> Counter[PriorityClass]:
        """Returns how many requests wait in each class."""
        return Counter(w.wish.demand.priority_class for w in self._waiting.values())

    def oldest_s(self) -> float:
        """Returns how long the oldest has waited, 0 when nobody waits."""
        first = next(iter(self._waiting.values()), None)
        return 0.0 if first is None else time.monotonic() - first.since_s

    async def place(self, wish: Wish) -> Choice:
        """Returns once the request may go. If the caller is cancelled, the request has no place.

        Raises: NoInstance when the queue is full, nobody serves, or it has waited for too long;
        RequestTooLarge when the instances that could hold it have gone meanwhile.
        """
        waiting = self._enter(wish)
        try:
            async with asyncio.timeout(WAIT_MAX_S):
                return await waiting.placed
        except BaseException as error:
            self._leave(waiting)
            if waiting.is_taken:
                wish.give_back()
            if isinstance(error, TimeoutError):
                why = f"No instance had room for this request for {WAIT_MAX_S:g} s."
                raise NoInstance(why) from None
            raise

    def _enter(self, wish: Wish) -> _Waiting:
        rank, request_id = wish.demand.priority_class.rank, wish.demand.request_id
        self._make_place(rank)
        self._shares.arrive(
            request_id,
            wish.demand.priority_class,
            wish.tenant,
            weight=min(max(wish.weight, WEIGHT_MIN), WEIGHT_MAX),
            cost_tokens=wish.cost_tokens,
        )
        waiting = _Waiting(
            wish,
            next(self._numbers),
            time.monotonic(),
            Turn(rank, self._shares.start_tag(request_id)),
            asyncio.get_running_loop().create_future(),
        )
        was_empty = not self._waiting
        self._waiting[request_id] = waiting
        # The first one goes at once if it can; the others of a burst are looked at together.
        self._wake(0.0 if was_empty else WAKE_GAP_S)
        return waiting

    def _make_place(self, rank: int) -> None:
        """Raises: NoInstance when the queue is full of requests that are no less urgent."""
        if len(self._waiting) < WAITING_MAX:
            return
        last = max(self._waiting.values(), key=lambda w: w.key)
        full = NoInstance(f"{WAITING_MAX:,} requests wait at this server already; try again soon.")
        if last.turn.rank <= rank:
            raise full
        self._give_up(last, full)

    def _leave(self, waiting: _Waiting) -> None:
        """Takes a request out that was cancelled or given up; nothing when it was placed."""
        request_id = waiting.wish.demand.request_id
        if self._waiting.get(request_id) is waiting:
            del self._waiting[request_id]
            self._update(self._shares.end(request_id, 0.0))

    def _give_up(self, waiting: _Waiting, error: PoolError) -> None:
        self._leave(waiting)
        if not waiting.placed.done():
            waiting.placed.set_exception(error)

    def _update(self, changed: Sequence[str]) -> None:
        """Takes new turns of those whose tags changed; who was raised keeps the turn."""
        for request_id in changed:
            waiting = self._waiting[request_id]
            rank = waiting.wish.demand.priority_class.rank
            if waiting.turn.rank == rank:
                waiting.turn = Turn(rank, self._shares.start_tag(request_id))

    def _on_room(self) -> None:
        if self._waiting:
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
        if not self._waiting:
            return
        try:
            self._place_some(time.monotonic(), time.time())
        finally:
            if self._waiting:
                self._wake(TICK_S)

    def _place_some(self, now_s: float, now_unix_s: float) -> None:
        standings = [s for s in self._placement.standings(now_unix_s) if s.is_open]
        if not standings:
            self._wait_for_somebody(now_s)
            return
        self._nobody_since_s = None
        self._age(now_s)
        looked_at = sorted(self._waiting.values(), key=lambda w: w.key)[:LOOKED_AT]
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
        elif self._waiting:
            self._wake(0.0)

    def _block(self, head: _Waiting, standings: Sequence[Standing], now_s: float) -> None:
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
        demands = [w.wish.demand for w in self._waiting.values()]
        least = replace(
            demands[0],
            demand_tokens=min(d.demand_tokens for d in demands),
            priority_class=min((d.priority_class for d in demands), key=lambda c: c.rank),
        )
        return [s for s in standings if s.is_idle or has_room(s, least, self._rule)]

    def _let_go(self, waiting: _Waiting, choice: Choice) -> None:
        request_id = waiting.wish.demand.request_id
        del self._waiting[request_id]
        changed = self._shares.admit(request_id)
        # It is charged what it was expected to use: its end is not awaited here.
        self._update([*changed, *self._shares.end(request_id, waiting.wish.cost_tokens)])
        if not waiting.placed.done():
            waiting.wish.take(choice)
            waiting.is_taken = True
            waiting.placed.set_result(choice)

    def _wait_for_somebody(self, now_s: float) -> None:
        """Gives all requests up when no instance has served for too long."""
        if self._nobody_since_s is None:
            self._nobody_since_s = now_s
        if now_s - self._nobody_since_s < NOBODY_MAX_S:
            return
        for waiting in list(self._waiting.values()):
            self._give_up(
                waiting, NoInstance(f"No instance has served for {NOBODY_MAX_S:g} s; try again.")
            )

    def _age(self, now_s: float) -> None:
        """Raises the first of a class that has waited for so long that it counts as a higher
        one."""
        if not self._ageing_s or self.oldest_s() < self._ageing_s:
            return
        queue = [
            Waiting(i, w.wish.demand.priority_class.rank, w.turn, now_s - w.since_s)
            for i, w in self._waiting.items()
        ]
        for request_id, turn in raised(queue, self._ageing_s).items():
            self._waiting[request_id].turn = turn
