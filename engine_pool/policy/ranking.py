"""Instances in the order in which dispatch would take them, kept up to date one at a time.

The same choices as `dispatch.choose` (a property test compares them), but not by looking at every
instance: one that changed is put in its place (a binary search), and a choice looks at the ends.
So a choice among thousands takes about as long as one among a few.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator

from engine_pool.policy.dispatch import (
    IN_HEADROOM,
    Choice,
    Refusal,
    RequestDemand,
    Score,
    choice,
    first_of,
    fits,
    headroom_above,
    packed_tokens,
    prefer_cached,
    prefer_host,
    score,
    too_large,
)
from engine_pool.policy.settings import DispatchRule
from engine_pool.policy.standing import CLASSES, Standing
from engine_pool.types import InstanceName, PriorityClass

_Place = tuple[float, int, InstanceName]


class _Order:
    """Open instances by score, for one class. `is_lending`: only those that keep headroom of higher
    classes free, with what they lend of it."""

    def __init__(self, rank: int, rule: DispatchRule, *, is_lending: bool = False) -> None:
        self._rank = rank
        self._rule = rule
        self._is_lending = is_lending
        self._places: list[_Place] = []
        self._scores: dict[InstanceName, tuple[_Place, Score]] = {}

    def put(self, s: Standing) -> None:
        if self._is_lending and not headroom_above(s, self._rank, self._rule):
            self.remove(s.instance)
            return
        found = score(s, self._rank, self._rule, lends=self._is_lending)
        place = (found.order_steps, found.left_tokens, s.instance)
        known = self._scores.get(s.instance)
        self._scores[s.instance] = place, found
        if known is not None:
            if known[0] == place:
                return
            del self._places[bisect_left(self._places, known[0])]
        insort(self._places, place)

    def remove(self, instance: InstanceName) -> None:
        known = self._scores.pop(instance, None)
        if known is not None:
            del self._places[bisect_left(self._places, known[0])]

    def score_of(self, instance: InstanceName) -> Score:
        return self._scores[instance][1]

    def best(
        self, request: RequestDemand, fits: Callable[[InstanceName], bool]
    ) -> InstanceName | None:
        """Returns the freest that fits."""
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
        return None


class _Hosts:
    """Instances on which a class is packed, by score, as long as they are within its target."""

    def __init__(self, rank: int, rule: DispatchRule) -> None:
        self._rank = rank
        self._rule = rule
        self._places: list[_Place] = []
        self._rooms: list[int] = []
        """Tokens up to the target."""
        self._known: dict[InstanceName, tuple[_Place, int]] = {}

    def put(self, s: Standing) -> None:
        self.remove(s.instance)
        load = packed_tokens(s, self._rank)
        target = self._rule.headroom.target_tokens(CLASSES[self._rank], s.capacity_tokens)
        if load is None or target is None or load > target:
            return
        found = score(s, self._rank, self._rule)
        place = (found.order_steps, found.left_tokens, s.instance)
        insort(self._places, place)
        insort(self._rooms, target - load)
        self._known[s.instance] = place, target - load

    def remove(self, instance: InstanceName) -> None:
        known = self._known.pop(instance, None)
        if known is not None:
            del self._places[bisect_left(self._places, known[0])]
            del self._rooms[bisect_left(self._rooms, known[1])]

    def with_room(self, demand_tokens: int) -> Iterator[InstanceName]:
        """Yields those that stay within the target with a request, freest first."""
        if not self._rooms or self._rooms[-1] < demand_tokens:
            return
        for _, _, instance in reversed(self._places):
            if self._known[instance][1] >= demand_tokens:
                yield instance


class Ranking:
    """One a process that dispatches. Not thread-safe."""

    def __init__(self, rule: DispatchRule) -> None:
        self._rule = rule
        self._standings: dict[InstanceName, Standing] = {}
        self._capacities: list[int] = []
        ranks = range(len(CLASSES))
        self._orders = [_Order(rank, rule) for rank in ranks]
        # Kept only where a higher class can have headroom that may be lent.
        self._lenders = {
            rank: _Order(rank, rule, is_lending=True)
            for rank in ranks
            if rule.packs_classes and rule.is_elastic and self._has_headroom(CLASSES[:rank])
        }
        self._hosts: dict[int, _Hosts] = {}
        if rule.packs_classes:
            self._hosts = {
                c.rank: _Hosts(c.rank, rule) for c in CLASSES if rule.headroom.has_headroom(c)
            }
        self._kept: tuple[_Order | _Hosts, ...] = (
            *self._orders,
            *self._lenders.values(),
            *self._hosts.values(),
        )

    def __len__(self) -> int:
        return len(self._standings)

    def put(self, s: Standing) -> None:
        """Takes an instance in as it is now. One that is not open is left out."""
        if not s.is_open:
            self.remove(s.instance)
            return
        known = self._standings.get(s.instance)
        # The standing may have been changed by its owner; its capacity never is.
        if known is None or known.capacity_tokens != s.capacity_tokens:
            self.remove(s.instance)
            insort(self._capacities, s.capacity_tokens)
        self._standings[s.instance] = s
        for kept in self._kept:
            kept.put(s)

    def remove(self, instance: InstanceName) -> None:
        """Forgets an instance; nothing when it is unknown."""
        known = self._standings.pop(instance, None)
        if known is None:
            return
        del self._capacities[bisect_left(self._capacities, known.capacity_tokens)]
        for kept in self._kept:
            kept.remove(instance)

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
            found = self._packed(request)
        if found is not None:
            return found
        best, how = self._freest(self._orders[rank], request), ""
        assert best is not None, "the largest instance holds it, as was checked before"
        lenders = self._lenders.get(rank)
        if lenders is not None and best[1].left_tokens < request.demand_tokens:
            lender = self._freest(lenders, request)
            # Freer than the others, too: `dispatch.choose` looks at all of them together.
            if (
                lender is not None
                and lender[1].left_tokens >= request.demand_tokens
                and lender[1].key > best[1].key
            ):
                best, how = lender, IN_HEADROOM
        return choice(best[0], best[1], len(self._standings), how)

    def _has_headroom(self, classes: Iterable[PriorityClass]) -> bool:
        return any(map(self._rule.headroom.has_headroom, classes))

    def _packed(self, request: RequestDemand) -> Choice | None:
        hosts = self._hosts.get(request.priority_class.rank)
        if hosts is None:
            return None
        for instance in hosts.with_room(request.demand_tokens):
            one = self._fit((self._standings[instance],), request)
            if (found := prefer_host(one, request, self._rule)) is not None:
                return found
        return None

    def _freest(self, order: _Order, request: RequestDemand) -> tuple[Standing, Score] | None:
        instance = order.best(request, lambda i: fits(self._standings[i], request, self._rule))
        if instance is None:
            return None
        return self._standings[instance], order.score_of(instance)

    def _fit(self, some: Iterable[Standing], request: RequestDemand) -> Iterator[Standing]:
        return (s for s in some if fits(s, request, self._rule))
