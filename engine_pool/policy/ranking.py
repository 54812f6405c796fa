"""Instances in the order in which dispatch would take them, kept up to date one at a time.

The same choices as `dispatch.choose` (a property test compares them), but not by looking at every
instance: one that changed is put in its place (a binary search), and a choice looks at the ends.
So a choice among thousands takes as long as one among a few.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator

from engine_pool.policy.dispatch import (
    Choice,
    Refusal,
    RequestDemand,
    Score,
    choice,
    first_of,
    fits,
    prefer_cached,
    prefer_host,
    score,
    too_large,
)
from engine_pool.policy.settings import DispatchRule
from engine_pool.policy.standing import CLASSES, Standing
from engine_pool.types import InstanceName

_Place = tuple[float, int, InstanceName]


class _Order:
    """Open instances by score, for one class, with or without the headroom of higher classes."""

    def __init__(self, rank: int, rule: DispatchRule, *, with_headroom: bool) -> None:
        self._rank = rank
        self._rule = rule
        self._with_headroom = with_headroom
        self._places: list[_Place] = []
        self._scores: dict[InstanceName, tuple[_Place, Score]] = {}

    def put(self, s: Standing) -> None:
        self.remove(s.instance)
        found = score(s, self._rank, self._rule, with_headroom=self._with_headroom)
        place = (found.order_steps, found.left_tokens, s.instance)
        insort(self._places, place)
        self._scores[s.instance] = place, found

    def remove(self, instance: InstanceName) -> None:
        known = self._scores.pop(instance, None)
        if known is not None:
            del self._places[bisect_left(self._places, known[0])]

    def score_of(self, instance: InstanceName) -> Score:
        return self._scores[instance][1]

    def best(self, request: RequestDemand, fits: Callable[[InstanceName], bool]) -> InstanceName:
        """Returns the freest that fits; one of them must."""
        end = len(self._places)
        while end:
            steps, left, _ = self._places[end - 1]
            begin = bisect_left(self._places, (steps, left, ""))
            turn = begin + first_of(end - begin, request)
            for index in (*range(turn, end), *range(begin, turn)):
                instance: InstanceName = self._places[index][2]
                if fits(instance):
                    return instance
            end = begin
        raise AssertionError("the largest instance holds it, as was checked before")


class Ranking:
    """One a process that dispatches. Not thread-safe."""

    def __init__(self, rule: DispatchRule) -> None:
        self._rule = rule
        self._standings: dict[InstanceName, Standing] = {}
        self._capacities: list[int] = []
        ranks = range(len(CLASSES))
        self._orders = [_Order(rank, rule, with_headroom=True) for rank in ranks]
        self._raw = [_Order(rank, rule, with_headroom=False) for rank in ranks]
        self._hosts: list[dict[InstanceName, Standing]] = [{} for _ in ranks]

    def __len__(self) -> int:
        return len(self._standings)

    def put(self, s: Standing) -> None:
        """Takes an instance in as it is now. One that is not open is left out."""
        self.remove(s.instance)
        if not s.is_open:
            return
        self._standings[s.instance] = s
        insort(self._capacities, s.capacity_tokens)
        for order in (*self._orders, *self._raw):
            order.put(s)
        for rank, hosts in enumerate(self._hosts):
            if s.hosts(rank):
                hosts[s.instance] = s

    def remove(self, instance: InstanceName) -> None:
        """Forgets an instance; nothing when it is unknown."""
        known = self._standings.pop(instance, None)
        if known is None:
            return
        # The standing may have been changed by its owner; its capacity never is.
        del self._capacities[bisect_left(self._capacities, known.capacity_tokens)]
        for order in (*self._orders, *self._raw):
            order.remove(instance)
        for hosts in self._hosts:
            hosts.pop(instance, None)

    def choose(self, request: RequestDemand) -> Choice | Refusal:
        """As `dispatch.choose` with what was put."""
        if not self._standings:
            return Refusal("no instance is open")
        rule, rank = self._rule, request.priority_class.rank
        most = int(self._capacities[-1] * (1 - rule.watermark))
        if request.demand_tokens > most:
            return too_large(request, most)
        cached = (self._standings[i] for i in request.cached_tokens if i in self._standings)
        found = prefer_cached(self._fit(cached, request), request, rule)
        if found is None:
            hosts = self._hosts[rank].values()
            found = prefer_host(self._fit(hosts, request), request, rule)
        if found is not None:
            return found
        best, how = self._freest(self._orders[rank], request), ""
        if rule.is_elastic and best[1].left_tokens < request.demand_tokens:
            raw = self._freest(self._raw[rank], request)
            if raw[1].left_tokens >= request.demand_tokens:
                best, how = raw, "in the headroom of a higher class, since no other has room; "
        return choice(best[0], best[1], len(self._standings), how)

    def _freest(self, order: _Order, request: RequestDemand) -> tuple[Standing, Score]:
        instance = order.best(request, lambda i: fits(self._standings[i], request, self._rule))
        return self._standings[instance], order.score_of(instance)

    def _fit(self, some: Iterable[Standing], request: RequestDemand) -> Iterator[Standing]:
        return (s for s in some if fits(s, request, self._rule))
