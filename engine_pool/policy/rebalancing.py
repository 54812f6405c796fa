"""One round of rebalancing: which requests start to move now, and why, or why none does.

Draining instances first: what they have goes to any open instance with room. Then three rules, in
this order: a head of the line that is blocked where it waits goes to an instance
without a queue that has room for it (no copy); one that fits nowhere gets the one move that makes
room (defragment.py); then instances are paired, least free with freest, and requests move while
both sides of a pair qualify (Llumnix, OSDI 2024, sections 4.1 and 4.4.3). Every planned move
changes the sums that the next one is judged by, so one round does not overshoot.

Without I/O and clock: the pool calls it with what the view shows, the simulator with its own sums.
Both have counted what is on its way already: a request that leaves is out of its source's sums,
one that comes is in its destination's as running.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from engine_pool.policy.defragment import make_room
from engine_pool.policy.freeness import freeness_of
from engine_pool.policy.pairing import Pair, in_words, pair
from engine_pool.policy.selection import Movable, Selection, select
from engine_pool.policy.settings import HeadroomRule, RebalanceRule
from engine_pool.policy.shifted import sums_with, sums_without
from engine_pool.policy.standing import Standing
from engine_pool.types import InstanceName

NO_PLACE = "no other instance is open and has a place free"
"""Why a draining instance keeps what it has."""

R = TypeVar("R", bound=Movable)
Ends = tuple[InstanceName, InstanceName]
"""Source and destination."""
PLACES_TRIED = 8
"""For the next request of a drain: where the freest do not take any, the others hardly do, and a
large pool's round stays short."""
RequestsOf = Callable[[InstanceName], Iterable[R]]
"""What an instance has: running requests in any order, queued ones as they stand in line. Requests
that are on their way already are left out, or cannot move."""


@dataclass(frozen=True, slots=True)
class Restraints:
    """What a round must not do, whatever the sums say."""

    going_on: Mapping[InstanceName, int] = field(default_factory=dict)
    """Moves that go on, by instance: those that come and those that go; drains' and operators',
    too."""
    apart: Collection[Ends] = ()
    """Pairs that did not reach each other lately."""
    watermark: float = 0.0
    """Share of its capacity that an engine keeps free at admission."""
    only_drains: bool = False
    """Automatic moves are paused or off: nothing leaves but what is drained."""
    drain_moves: int = 0
    """Moves of one instance at the same time, of a drain, where that is more than the rule's: as
    many as its engine takes."""


@dataclass(frozen=True, slots=True)
class PlannedMove(Generic[R]):
    request: R
    source: InstanceName
    destination: InstanceName
    reason: str


@dataclass(frozen=True, slots=True)
class Idle:
    """A pair that starts no move in this round, or no further one."""

    source: InstanceName
    destination: InstanceName
    why: str


@dataclass(frozen=True, slots=True)
class Round(Generic[R]):
    moves: tuple[PlannedMove[R], ...]
    pairs: tuple[Pair, ...]
    idle: tuple[Idle, ...]

    @property
    def paired(self) -> dict[InstanceName, InstanceName]:
        """Destination by source: `before` of the next round."""
        return {p.source: p.destination for p in self.pairs}


def plan_round(
    standings: Sequence[Standing],
    requests_of: RequestsOf[R],
    rule: RebalanceRule,
    headroom: HeadroomRule,
    before: Mapping[InstanceName, InstanceName] | None = None,
    restraints: Restraints | None = None,
) -> Round[R]:
    """Plans one round; the same for every order of `standings`, which stay as they are."""
    restraints = restraints or Restraints()
    plan = _Plan(standings, requests_of, rule, headroom, restraints)
    drains = plan.empty_draining()
    if restraints.only_drains:
        return Round(tuple(plan.moves), drains, tuple(plan.idle))
    if rule.defragments:
        plan.free_heads()
    pairs = plan.pairs(before or {})
    for one in pairs:
        plan.even_out(one)
    return Round(tuple(plan.moves), (*drains, *pairs), tuple(plan.idle))


class _Plan(Generic[R]):
    """A round while it is planned."""

    def __init__(
        self,
        standings: Sequence[Standing],
        requests_of: RequestsOf[R],
        rule: RebalanceRule,
        headroom: HeadroomRule,
        restraints: Restraints,
    ) -> None:
        self.moves: list[PlannedMove[R]] = []
        self.idle: list[Idle] = []
        self._now = {s.instance: s for s in standings}
        """As it will be after the moves planned so far."""
        self._requests_of = requests_of
        self._requests: dict[InstanceName, list[R]] = {}
        self._taken: set[str] = set()
        self._rule = rule
        self._headroom = headroom
        self._restraints = restraints
        self._going_on = Counter(restraints.going_on)
        self._tokens = 0
        self._filled: set[InstanceName] = set()
        """Destinations of drains in this round."""
        self._places: dict[InstanceName, Standing] = {}
        """Where a blocked head may go, the freest at the round's start first."""
        self._largest_tokens = 0
        """The most room of a place."""

    def empty_draining(self) -> tuple[Pair, ...]:
        """Moves what draining instances have to any open instance with room, the freest first:
        their thresholds are about who should give, and these have to."""
        pairs = []
        for s in sorted(self._now.values(), key=lambda s: s.instance):
            if s.is_draining and not s.is_idle:
                pairs += self._empty(s.instance)
        return tuple(pairs)

    def _empty(self, source: InstanceName) -> list[Pair]:
        found: dict[InstanceName, Pair] = {}
        while True:
            places = self._places_for(source)
            free = [p for p in places if not self._is_draining_busy(p.instance)]
            busy = source if self._is_draining_busy(source) else None
            if busy is None and places and not free:
                busy = places[0].instance
            if busy is not None:
                self._rest(source, busy, f"{self._going_on[busy]} moves go on at {busy}")
            elif not places:
                self._rest(source, source, NO_PLACE)
            tried = () if busy is not None else free[:PLACES_TRIED]
            if not any(self._send_away(source, p, found) for p in tried):
                return list(found.values())

    def _places_for(self, source: InstanceName) -> list[Standing]:
        """Returns where a draining instance's requests may go, the best first."""
        open_ones = (
            s
            for s in self._now.values()
            if s.is_open and not s.is_draining and s.batch < s.max_running
        )
        reached = [s for s in open_ones if self._reaches(self._now[source], s)]
        # One without a queue first: where requests wait, the room is theirs.
        return sorted(
            reached,
            key=lambda s: (s.waiting > 0, -self._steps(s), -s.free_tokens, s.instance),
        )

    def _send_away(
        self, source: InstanceName, place: Standing, found: dict[InstanceName, Pair]
    ) -> bool:
        """Plans one move out of a draining instance to a place, if there is one that can go."""
        s = self._now[source]
        chosen = select(self._of(source), s, place, self._rule, self._headroom)
        if not isinstance(chosen, Selection):
            self._rest(source, place.instance, chosen.why)
            return False
        steps = self._steps(place)
        why = f"{source} drains and {place.instance} {in_words(steps)} is open"
        if not self._add(chosen.request, source, place.instance, why, chosen.reason):
            return False
        found.setdefault(place.instance, Pair(source, place.instance, self._steps(s), steps, why))
        return True

    def _is_draining_busy(self, instance: InstanceName) -> bool:
        most = max(self._restraints.drain_moves, self._rule.moves_per_instance)
        return self._going_on[instance] >= most

    def free_heads(self) -> None:
        """Moves heads of the line that are blocked, or makes room for them."""
        staying = (s for s in self._now.values() if not s.is_draining)
        blocked = [s for s in staying if s.instance not in self._filled and self._is_blocked(s)]
        if not blocked:
            return
        self._open_places()
        for s in sorted(blocked, key=lambda s: s.instance):
            if not self._places or self._tokens >= self._rule.tokens_per_round:
                return
            if not self._is_busy(s.instance) and not self._send_head(s):
                self._make_room(s)

    def pairs(self, before: Mapping[InstanceName, InstanceName]) -> tuple[Pair, ...]:
        """Pairs what is left; two that do not reach each other get somebody else."""
        rest = tuple(s for s in self._now.values() if not s.is_draining)
        found = pair(rest, self._rule, self._headroom, before)
        # What was just sent there for a drain does not go on at once.
        found = tuple(p for p in found if p.source not in self._filled)
        apart = self._restraints.apart
        if not any((p.source, p.destination) in apart for p in found):
            return found
        taken = {p.destination for p in found}
        kept = []
        for p in found:
            if (p.source, p.destination) not in apart:
                kept.append(p)
                continue
            self._rest(p.source, p.destination, "they did not reach each other lately")
            other = self._another(p.source, taken)
            if other is not None:
                taken.add(other.destination)
                kept.append(other)
        return tuple(kept)

    def even_out(self, p: Pair) -> None:
        """Moves requests from source to destination while both qualify and the limits allow."""
        now: Pair | None = p
        while now is not None:
            if why := self._why_not_now(p):
                self._rest(p.source, p.destination, why)
                return
            source, destination = self._now[p.source], self._now[p.destination]
            # The queue of a source that stays gets no shorter by moving one that is not its head.
            requests = (r for r in self._of(p.source) if r.kv_tokens > 0)
            chosen = select(requests, source, destination, self._rule, self._headroom)
            if not isinstance(chosen, Selection):
                self._rest(p.source, p.destination, chosen.why)
                return
            if not self._add(chosen.request, p.source, p.destination, now.reason, chosen.reason):
                return
            ends = (self._now[p.source], self._now[p.destination])
            now = next(iter(pair(ends, self._rule, self._headroom)), None)

    def _open_places(self) -> None:
        steps = {s.instance: self._steps(s) for s in self._now.values() if s.can_receive}
        for name in sorted(steps, key=lambda name: (-steps[name], name)):
            if steps[name] > self._rule.above_steps and not self._is_busy(name):
                self._places[name] = self._now[name]
        self._largest_tokens = max(map(self._room, self._places.values()), default=0)

    def _note_filled(self, name: InstanceName) -> None:
        """Brings a place up to date that a request was sent to."""
        if name in self._places:
            s = self._places[name] = self._now[name]
            is_open = s.can_receive and self._steps(s) > self._rule.above_steps
            if not is_open or self._is_busy(name):
                del self._places[name]
            self._largest_tokens = max(map(self._room, self._places.values()), default=0)

    def _send_head(self, s: Standing) -> bool:
        """Moves a blocked head to the freest instance with room for it. Says whether it does."""
        head = next((r for r in self._of(s.instance) if r.kv_tokens == 0), None)
        if head is None or head.need_tokens > self._largest_tokens:
            return False
        reached = (p for p in self._places.values() if self._reaches(s, p))
        place = next((p for p in reached if head.need_tokens <= self._room(p)), None)
        if place is None:
            return False
        chosen = select((head,), s, place, self._rule, self._headroom)
        if not isinstance(chosen, Selection):
            return False
        why = (
            f"The head of the line of {s.instance} is blocked there "
            f"({s.head_tokens} KV tokens needed, {max(0, s.free_tokens)} free, "
            f"{s.batch} of {s.max_running} run) and fits into {place.instance}, "
            f"which is {in_words(self._steps(place))} > {self._rule.above_steps:g}"
        )
        return self._add(head, s.instance, place.instance, why, chosen.reason)

    def _make_room(self, s: Standing) -> None:
        short_tokens = s.head_tokens - self._room(s)
        # Looked at first, since it costs less than trying every place.
        if short_tokens <= 0 or not any(
            r.can_move and r.kv_tokens >= short_tokens and r.need_tokens <= self._largest_tokens
            for r in self._of(s.instance)
        ):
            return
        reached = [p for p in self._places.values() if self._reaches(s, p)]
        found = make_room(s, s.head_tokens, reached, self._of, self._restraints.watermark)
        if found is not None:
            self._add(found.request, found.source, found.destination, found.reason)

    def _add(self, r: R, source: InstanceName, destination: InstanceName, *why: str) -> bool:
        """Plans one move, if the round's tokens allow it, and brings both sides up to date."""
        tokens = self._tokens + r.need_tokens
        # A request that is larger than the bound goes alone: it would never move otherwise.
        if self.moves and tokens > self._rule.tokens_per_round:
            limit = self._rule.tokens_per_round
            self._rest(source, destination, f"{tokens} KV tokens are over {limit} a round")
            return False
        self._tokens = tokens
        self._taken.add(r.name)
        self._going_on[source] += 1
        self._going_on[destination] += 1
        self.moves.append(PlannedMove(r, source, destination, "; ".join(why)))
        self._now[source] = sums_without(self._now[source], r, self._next_head_tokens(source))
        self._now[destination] = sums_with(self._now[destination], r)
        self._note_filled(destination)
        return True

    def _why_not_now(self, p: Pair) -> str:
        for end in (p.source, p.destination):
            if self._is_busy(end):
                return f"{self._going_on[end]} moves go on at {end}"
        return ""

    def _another(self, source: InstanceName, taken: Collection[InstanceName]) -> Pair | None:
        others = [
            s
            for s in self._now.values()
            if s.instance not in taken
            and (source, s.instance) not in self._restraints.apart
            and self._steps(s) > self._rule.above_steps
        ]
        return next(iter(pair((self._now[source], *others), self._rule, self._headroom)), None)

    def _of(self, instance: InstanceName) -> Iterator[R]:
        """Looks at an instance's requests: once a round, and only when it matters."""
        if instance not in self._requests:
            self._requests[instance] = list(self._requests_of(instance))
        return (r for r in self._requests[instance] if r.name not in self._taken)

    def _next_head_tokens(self, instance: InstanceName) -> int:
        head = next((r for r in self._of(instance) if r.kv_tokens == 0), None)
        return head.need_tokens - self._now[instance].block_size_tokens if head else 0

    def _is_blocked(self, s: Standing) -> bool:
        if s.head_tokens == 0:
            return False
        return s.batch >= s.max_running or s.head_tokens > self._room(s)

    def _is_busy(self, instance: InstanceName) -> bool:
        return self._going_on[instance] >= self._rule.moves_per_instance

    def _room(self, s: Standing) -> int:
        return s.room_tokens(self._restraints.watermark)

    def _reaches(self, s: Standing, place: Standing) -> bool:
        return (s.instance, place.instance) not in self._restraints.apart

    def _steps(self, s: Standing) -> float:
        return freeness_of(s, self._headroom)

    def _rest(self, source: InstanceName, destination: InstanceName, why: str) -> None:
        self.idle.append(Idle(source, destination, why))
