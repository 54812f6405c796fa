"""Requests that wait in a web process, in their order: class, raised with age; turn of the tenant
inside the class; arrival. Knows nothing of instances."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count

from engine_pool.policy.dispatch import Choice, RequestDemand
from engine_pool.policy.fair_share import WEIGHT_MAX, WEIGHT_MIN, FairShare
from engine_pool.policy.urgency import Turn, Waiting, raised
from engine_pool.types import PriorityClass


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
class Waiter:
    """One request in the line."""

    wish: Wish
    number: int
    """Of its arrival."""
    since_s: float
    turn: Turn
    placed: "asyncio.Future[Choice]" = field(repr=False)
    blocked_since_s: float | None = None
    """Since when it has been the first one and fitted nowhere."""
    is_taken: bool = False
    """It stands in the ledger."""

    @property
    def request_id(self) -> str:
        return self.wish.demand.request_id

    @property
    def rank(self) -> int:
        """Of its own class."""
        return self.wish.demand.priority_class.rank

    @property
    def key(self) -> tuple[Turn, int]:
        return self.turn, self.number


class WaitingLine:
    """Of one web process. Time is the caller's."""

    def __init__(self, ageing_s: float, of_rank: Mapping[int, float] | None = None) -> None:
        self.use_ageing(ageing_s, of_rank or {})
        self._waiters: dict[str, Waiter] = {}
        """In the order of arrival."""
        self._shares = FairShare()
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._waiters)

    def lengths(self) -> Counter[PriorityClass]:
        """Returns how many wait in each class."""
        return Counter(w.wish.demand.priority_class for w in self._waiters.values())

    def oldest_since_s(self) -> float | None:
        """Returns since when the oldest waits, None when nobody does."""
        first = next(iter(self._waiters.values()), None)
        return None if first is None else first.since_s

    def demands(self) -> list[RequestDemand]:
        return [w.wish.demand for w in self._waiters.values()]

    def in_order(self) -> list[Waiter]:
        """Returns all, the next one to go first."""
        return sorted(self._waiters.values(), key=lambda w: w.key)

    def last(self) -> Waiter:
        """Returns who would go last; somebody must wait."""
        return max(self._waiters.values(), key=lambda w: w.key)

    def enter(self, wish: Wish, placed: "asyncio.Future[Choice]", now_s: float) -> Waiter:
        """Puts a request behind its tenant's others."""
        demand = wish.demand
        self._shares.arrive(
            demand.request_id,
            demand.priority_class,
            wish.tenant,
            weight=min(max(wish.weight, WEIGHT_MIN), WEIGHT_MAX),
            cost_tokens=wish.cost_tokens,
        )
        turn = Turn(demand.priority_class.rank, self._shares.start_tag(demand.request_id))
        waiter = Waiter(wish, next(self._numbers), now_s, turn, placed)
        self._waiters[demand.request_id] = waiter
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """Takes a request out that gets no place; nothing when it is out already."""
        if self._waiters.get(waiter.request_id) is waiter:
            del self._waiters[waiter.request_id]
            self._update(self._shares.end(waiter.request_id, 0.0))

    def go(self, waiter: Waiter) -> None:
        """Takes a request out that has a place. It is charged what it was expected to use: its end
        is not awaited here."""
        del self._waiters[waiter.request_id]
        self._update(self._shares.admit(waiter.request_id))
        self._update(self._shares.end(waiter.request_id, waiter.wish.cost_tokens))

    def use_ageing(self, ageing_s: float, of_rank: Mapping[int, float]) -> None:
        """Raises after these times from now on; `of_rank`: of classes with one of their own."""
        self._ageing_s = ageing_s
        self._ageing_of_rank = of_rank
        times = filter(None, (ageing_s, *of_rank.values()))
        self._shortest_ageing_s = min(times, default=0.0)

    def age(self, now_s: float) -> None:
        """Raises the first of a class that has waited for so long that it counts as a higher
        one."""
        oldest_s = self.oldest_since_s()
        shortest_s = self._shortest_ageing_s
        if not shortest_s or oldest_s is None or now_s - oldest_s < shortest_s:
            return
        queue = [
            Waiting(w.request_id, w.rank, w.turn, now_s - w.since_s) for w in self._waiters.values()
        ]
        for request_id, turn in raised(queue, self._ageing_s, self._ageing_of_rank).items():
            self._waiters[request_id].turn = turn

    def _update(self, changed: Iterable[str]) -> None:
        """Takes new turns of those whose tags changed; who was raised keeps the turn."""
        for request_id in changed:
            waiter = self._waiters[request_id]
            if waiter.turn.rank == waiter.rank:
                waiter.turn = Turn(waiter.rank, self._shares.start_tag(request_id))
