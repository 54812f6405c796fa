"""What decisions need of one instance: sums over its requests, in KV tokens.

Decides nothing. A live report is summed up by `standing_of`; the simulator keeps the sums as it
goes. So the decisions are the same functions in both, and take the same time however many
requests an instance has. Policies never change a Standing; whoever owns it may.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from engine_pool.types import (
    InFlight,
    InstanceLoad,
    InstanceName,
    InstanceState,
    PriorityClass,
    RequestLoad,
)

CLASSES = tuple(sorted(PriorityClass, key=lambda c: c.rank))
"""Highest first; lists of sums are in this order, so that a rank is an index."""


def _per_class() -> list[int]:
    return [0] * len(CLASSES)


@dataclass(slots=True)
class Standing:
    """One instance as of one moment. Lists have one number a class, highest class first."""

    instance: InstanceName
    capacity_tokens: int
    block_size_tokens: int
    max_running: int
    used_tokens: int = 0
    running: list[int] = field(default_factory=_per_class)
    """Running requests."""
    running_tokens: list[int] = field(default_factory=_per_class)
    """KV tokens they hold; shared ones count for each."""
    queued: list[int] = field(default_factory=_per_class)
    """Requests that wait, those that were just sent there included."""
    queued_tokens: list[int] = field(default_factory=_per_class)
    """KV tokens that they need before they can run."""
    head_tokens: int = 0
    """What the head of the line needs; 0 without a queue."""
    is_open: bool = True
    """It takes new requests, and requests that move."""
    is_draining: bool = False
    """Everything shall leave it."""

    @property
    def batch(self) -> int:
        return sum(self.running)

    @property
    def waiting(self) -> int:
        return sum(self.queued)

    @property
    def free_tokens(self) -> int:
        return self.capacity_tokens - self.used_tokens

    @property
    def is_idle(self) -> bool:
        return not any(self.running) and not any(self.queued)

    @property
    def can_receive(self) -> bool:
        """Whether requests may move here: it is open, with neither a queue nor a full batch."""
        is_open = self.is_open and not self.is_draining
        return is_open and not any(self.queued) and sum(self.running) < self.max_running

    def room_tokens(self, watermark: float) -> int:
        """Returns the KV tokens that a request can get at once. `watermark`: share of the capacity
        that the engine keeps free at admission."""
        return self.free_tokens - int(self.capacity_tokens * watermark)

    def hosts(self, rank: int) -> bool:
        """Says whether requests of a class run or wait here."""
        return self.running[rank] > 0 or self.queued[rank] > 0


def standing_of(
    load: InstanceLoad, state: InstanceState, in_flight: Iterable[InFlight] = ()
) -> Standing:
    """Sums a report up. `in_flight`: what was sent to this instance; what the report shows
    already is left out."""
    standing = Standing(
        instance=load.instance,
        capacity_tokens=load.capacity_tokens,
        block_size_tokens=load.block_size_tokens,
        max_running=load.max_running,
        used_tokens=load.used_tokens,
        head_tokens=load.head_demand_tokens,
        is_open=state is InstanceState.SERVING,
        is_draining=state in (InstanceState.DRAINING, InstanceState.DRAINED),
    )
    for r in load.running:
        rank = r.priority_class.rank
        standing.running[rank] += 1
        standing.running_tokens[rank] += r.kv_tokens
    for r in load.waiting:
        add_queued(standing, r.priority_class.rank, r.demand_tokens)
    sent = tuple(in_flight)
    if sent:
        shown = {r.request_id for r in (*load.running, *load.waiting)}.union(load.ended)
        for entry in sent:
            if entry.request_id not in shown:
                add_queued(standing, entry.priority_class.rank, entry.demand_tokens)
    return standing


def add_queued(standing: Standing, rank: int, demand_tokens: int) -> None:
    """Counts one more queued request in; it is the head of the line when nobody else waits."""
    if not any(standing.queued):
        standing.head_tokens = demand_tokens
    standing.queued[rank] += 1
    standing.queued_tokens[rank] += demand_tokens


def need_tokens(request: RequestLoad, block_size_tokens: int) -> int:
    """Returns the room that a request needs at another instance: what it holds, or needs to begin,
    and a block to grow into."""
    return (request.kv_tokens or request.demand_tokens) + block_size_tokens
