"""The order of one engine's queue: class, ageing, fair share. Both kinds of engine ask here.

Remembers what the pure rules (policy/urgency.py, policy/fair_share.py) need to know of each
request; the engine says what happens to its requests and puts its own queue in the order that it is
told. A request is known from its arrival to its end, parked ones too. Times are monotonic seconds.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from engine_pool.class_rules import ClassRules, ageing_of_rank
from engine_pool.config import PoolConfig
from engine_pool.errors import EngineRefused
from engine_pool.policy.fair_share import WEIGHT_MAX, WEIGHT_MIN, FairShare
from engine_pool.policy.urgency import Turn, Waiting, raised
from engine_pool.ports import EngineRequest

AGEING_CHECKS = 100
"""Looks for requests to raise in one period of ageing: none is raised later than a hundredth of
it."""


@dataclass(frozen=True, slots=True)
class TurnRules:
    """Settings; their meaning stands in PoolConfig."""

    ageing_s: float
    class_preemptions_max: int
    fair_output_tokens: int
    look_lasts_s: float
    """How long a request counts as moving after a move has looked at it."""
    ageing_of_rank: Mapping[int, float] = field(default_factory=dict)
    """Of classes that have a time of their own."""
    kept_ranks: frozenset[int] = frozenset()
    """Classes whose running requests make no room."""

    @classmethod
    def of(cls, config: PoolConfig) -> "TurnRules":
        rules = cls(
            config.ageing_s,
            config.class_preemptions_max,
            config.fair_output_tokens,
            config.migration_stage_timeout_s,
        )
        return rules.with_classes(config.classes)

    def with_classes(self, classes: ClassRules) -> "TurnRules":
        """Returns the rules with what is wanted for the classes."""
        return replace(
            self,
            ageing_of_rank=ageing_of_rank(classes),
            kept_ranks=frozenset(c.rank for c, r in classes.items() if not r.is_preemptible),
        )

    @property
    def shortest_ageing_s(self) -> float:
        """0: nobody ages."""
        return min(filter(None, (self.ageing_s, *self.ageing_of_rank.values())), default=0.0)


@dataclass(slots=True)
class _Entry:
    rank: int
    turn: Turn
    prompt_cost_tokens: int
    since_s: float | None
    """Queued since then; None: it runs."""
    waited_s: float = 0.0
    """In the queue, before that."""
    produced_tokens: int = 0
    """Here."""
    made_room: int = 0
    """How often it was preempted for a higher class."""
    looked_s: float | None = None
    """When a move looked at it last."""

    @property
    def is_raised(self) -> bool:
        return self.turn.rank < self.rank


class Turns:
    """Step thread only. Request ids that are not known are bugs, except where said."""

    def __init__(self, rules: TurnRules) -> None:
        self._rules = rules
        self._fair = FairShare()
        self._entries: dict[str, _Entry] = {}
        self._changed: set[str] = set()
        self._next_ageing_s = 0.0

    def use_classes(self, classes: ClassRules) -> None:
        """Treats the classes so from now on. Safe in any thread: a step sees the old rules or the
        new ones."""
        self._rules = self._rules.with_classes(classes)
        self._next_ageing_s = 0.0

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._entries

    @property
    def class_preemptions_max(self) -> int:
        return self._rules.class_preemptions_max

    def arrive(self, request: EngineRequest, now_s: float, output_tokens: int = 0) -> None:
        """Queues a request. `output_tokens`: what it has produced elsewhere, where its prompt and
        they were charged."""
        expected = min(request.max_tokens, self._rules.fair_output_tokens)
        prompt_tokens = 0 if output_tokens else request.prompt_tokens
        self._fair.arrive(
            request.request_id,
            request.priority_class,
            request.tenant,
            weight=request.weight,
            cost_tokens=prompt_tokens + max(1, expected - output_tokens),
        )
        rank = request.priority_class.rank
        turn = Turn(rank, self._fair.start_tag(request.request_id))
        self._entries[request.request_id] = _Entry(rank, turn, prompt_tokens, now_s)

    def admit(self, request_id: str, now_s: float) -> None:
        """Hears that a request runs. Does nothing for one that runs already."""
        entry = self._entries[request_id]
        if entry.since_s is None:
            return
        entry.waited_s += now_s - entry.since_s
        entry.since_s = None
        if not self._fair.is_admitted(request_id):
            self._retag(self._fair.admit(request_id))

    def requeue(self, request_id: str, now_s: float) -> None:
        """Hears that a running request was preempted; it is before the others of its tenant."""
        self._entries[request_id].since_s = now_s
        self._changed.add(request_id)

    def make_room(self, request_id: str, now_s: float) -> None:
        """Hears that a running request was preempted for a higher class."""
        self._entries[request_id].made_room += 1
        self.requeue(request_id, now_s)

    def produce(self, request_id: str, tokens: int) -> None:
        """Counts what a request has produced. Ignores unknown ones."""
        if entry := self._entries.get(request_id):
            entry.produced_tokens += tokens

    def end(self, request_id: str) -> None:
        """Forgets a request that ended or moved away. Ignores unknown ones."""
        if entry := self._entries.pop(request_id, None):
            if entry.produced_tokens and not self._fair.is_admitted(request_id):
                # It came, ran and ended in one step.
                self._retag(self._fair.admit(request_id))
            used_tokens = entry.prompt_cost_tokens + entry.produced_tokens
            self._retag(self._fair.end(request_id, used_tokens))
            self._changed.discard(request_id)

    def age(self, now_s: float) -> None:
        """Raises the requests that have waited too long; looks now and then only."""
        rules = self._rules
        ageing_s = rules.shortest_ageing_s
        if not ageing_s or now_s < self._next_ageing_s:
            return
        self._next_ageing_s = now_s + ageing_s / AGEING_CHECKS
        waiting = [
            Waiting(name, e.rank, e.turn, e.waited_s + now_s - e.since_s)
            for name, e in self._entries.items()
            if e.since_s is not None
        ]
        for request_id, turn in raised(waiting, rules.ageing_s, rules.ageing_of_rank).items():
            self._entries[request_id].turn = turn
            self._changed.add(request_id)

    def take_changed(self) -> set[str]:
        """Returns the requests whose `priority` may be another one than at the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def is_queued(self, request_id: str) -> bool:
        return self._entries[request_id].since_s is not None

    def priority(self, request_id: str) -> int:
        """Returns a queued request's number; the lower one goes first, at the same number the
        earlier arrival."""
        return self._entries[request_id].turn.priority

    def running_priority(self, request_id: str) -> int:
        """Returns a running request's number: the highest one is preempted first, at the same
        number the later arrival."""
        return Turn(self.counts_as(request_id), 0.0).priority

    def rank(self, request_id: str) -> int:
        """Returns the rank of a request's own class."""
        return self._entries[request_id].rank

    def counts_as(self, request_id: str) -> int:
        """Returns the rank that a request counts as, which ageing may have raised."""
        return self._entries[request_id].turn.rank

    def is_raised(self, request_id: str) -> bool:
        return self._entries[request_id].is_raised

    def times(self, request_id: str) -> int:
        """Returns how often a request has made room for a higher class."""
        return self._entries[request_id].made_room

    def is_kept(self, request_id: str) -> bool:
        """Says whether a request's class makes no room."""
        return self._entries[request_id].rank in self._rules.kept_ranks

    def look(self, request_id: str, now_s: float) -> None:
        """Hears that a move is interested in a request. Ignores unknown ones."""
        if entry := self._entries.get(request_id):
            entry.looked_s = now_s

    def is_moving(self, request_id: str, now_s: float) -> bool:
        """Says whether a move may be copying a request. A move that gives up says nothing here, so
        this ends by itself."""
        looked_s = self._entries[request_id].looked_s
        return looked_s is not None and now_s - looked_s < self._rules.look_lasts_s

    def _retag(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            entry = self._entries[request_id]
            if not entry.is_raised:
                entry.turn = Turn(entry.rank, self._fair.start_tag(request_id))
                self._changed.add(request_id)


def check_weight(request: EngineRequest) -> None:
    """Raises: EngineRefused for a weight that no tenant can have."""
    if not WEIGHT_MIN <= request.weight <= WEIGHT_MAX:
        raise EngineRefused(
            f"weight {request.weight:g}: expected a number from {WEIGHT_MIN:g} to {WEIGHT_MAX:g}",
        )
