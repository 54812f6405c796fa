"""Whose turn it is inside a class: start-time fair queueing of tenants (Goyal and others, 1996).

Each class has a virtual time, each of its tenants the tag at which its last request is done. A
request's start tag is the later of both, its finish tag `cost / weight` further; the lowest start
tag goes first. So tenants that all have requests waiting get tokens in proportion to their weights,
however many requests each has sent, and one that was away has saved nothing up.

Decides no order of classes and knows no clock. Tags are tokens divided by weight.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from engine_pool.types import PriorityClass

WEIGHT_MIN = 0.001
WEIGHT_MAX = 1000.0
"""Beyond a million to one there is no share to speak of; tags stay far below urgency's limit."""
SWEEP_EVERY = 256
"""Admissions between two rounds of forgetting idle tenants: keeps them few at no cost to speak
of."""


@dataclass(slots=True)
class _Claim:
    """One request's, until it ends."""

    priority_class: PriorityClass
    tenant: str
    weight: float
    cost_tokens: float
    arrived: float
    """Virtual time of its class when it came."""
    start: float

    @property
    def finish(self) -> float:
        return self.start + self.cost_tokens / self.weight


@dataclass(slots=True)
class _Tenant:
    """In one class."""

    finish: float = 0.0
    """Tag at which all of its admitted requests are done."""
    waiting: dict[str, _Claim] = field(default_factory=dict)
    """In the order of their arrival."""
    admitted: int = 0

    def chain(self) -> Iterator[str]:
        """Gives the waiting requests their start tags, one behind the other. Yields those that
        changed."""
        finish = self.finish
        for request_id, claim in self.waiting.items():
            start = max(claim.arrived, finish)
            if start != claim.start:
                claim.start = start
                yield request_id
            finish = claim.finish


class FairShare:
    """The tags of one engine's requests. Request ids are unique; unknown ones are bugs."""

    def __init__(self) -> None:
        self._virtual = dict.fromkeys(PriorityClass, 0.0)
        self._tenants: dict[PriorityClass, dict[str, _Tenant]] = {c: {} for c in PriorityClass}
        self._claims: dict[str, _Claim] = {}
        self._admissions = 0

    def start_tag(self, request_id: str) -> float:
        return self._claims[request_id].start

    def is_admitted(self, request_id: str) -> bool:
        """Says whether a request was ever admitted; a preempted one stays so."""
        claim = self._claims[request_id]
        return request_id not in self._tenants[claim.priority_class][claim.tenant].waiting

    def virtual_time(self, priority_class: PriorityClass) -> float:
        """Returns the start tag of the class's request that was admitted last."""
        return self._virtual[priority_class]

    def arrive(
        self,
        request_id: str,
        priority_class: PriorityClass,
        tenant: str,
        *,
        weight: float,
        cost_tokens: float,
    ) -> None:
        """Puts a request behind its tenant's others. `cost_tokens`: what it is expected to use."""
        assert WEIGHT_MIN <= weight <= WEIGHT_MAX, f"the engine takes no weight of {weight}"
        assert request_id not in self._claims, f"{request_id} is here already"
        known = self._tenants[priority_class].setdefault(tenant, _Tenant())
        virtual = self._virtual[priority_class]
        last = next(reversed(known.waiting.values()), None)
        start = max(virtual, known.finish if last is None else last.finish)
        claim = _Claim(priority_class, tenant, weight, cost_tokens, virtual, start)
        self._claims[request_id] = known.waiting[request_id] = claim

    def admit(self, request_id: str) -> tuple[str, ...]:
        """Charges a waiting request to its tenant. Returns the waiting ones whose tags changed:
        some, if it was not its tenant's first."""
        claim = self._claims[request_id]
        known = self._tenants[claim.priority_class][claim.tenant]
        is_first = next(iter(known.waiting)) == request_id
        del known.waiting[request_id]
        known.admitted += 1
        begun = max(claim.arrived, known.finish)
        known.finish = begun + claim.cost_tokens / claim.weight
        self._advance(claim.priority_class, begun)
        self._admissions += 1
        if self._admissions % SWEEP_EVERY == 0:
            self._sweep()
        return () if is_first else tuple(known.chain())

    def end(self, request_id: str, used_tokens: float) -> tuple[str, ...]:
        """Forgets a request and corrects its tenant's tag to what it has used; one that was never
        admitted has used nothing. Returns the waiting ones whose tags changed."""
        claim = self._claims.pop(request_id)
        known = self._tenants[claim.priority_class][claim.tenant]
        if known.waiting.pop(request_id, None) is None:
            known.admitted -= 1
            known.finish += (used_tokens - claim.cost_tokens) / claim.weight
        return tuple(known.chain())

    def _advance(self, priority_class: PriorityClass, begun: float) -> None:
        """Moves the virtual time on to a start tag, but not past those who wait: a request that
        came with a move did not wait its turn, and newcomers must not lose theirs by it."""
        if begun > self._virtual[priority_class]:
            tenants = self._tenants[priority_class].values()
            firsts = (next(iter(t.waiting.values())).start for t in tenants if t.waiting)
            limit = min(firsts, default=begun)
            self._virtual[priority_class] = max(self._virtual[priority_class], min(begun, limit))

    def _sweep(self) -> None:
        """Forgets tenants that have nothing here and are owed nothing: when one comes back it
        begins at the virtual time anyway."""
        for priority_class, tenants in self._tenants.items():
            virtual = self._virtual[priority_class]
            idle = [
                name
                for name, known in tenants.items()
                if not known.waiting and not known.admitted and known.finish <= virtual
            ]
            for name in idle:
                del tenants[name]
