"""One request of a simulated run: what it wants, where it is, what became of it.

Times are seconds of virtual time since the run's start.
"""

from dataclasses import dataclass, field
from enum import Enum

from engine_pool.types import InstanceName, PriorityClass, RequestId


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request of a workload, before any policy has seen it."""

    index: int
    """Place in the workload, from 0; the order of arrival."""
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    priority_class: PriorityClass = PriorityClass.NORMAL


class Place(Enum):
    """Where a request is. It is at exactly one engine once it was dispatched."""

    AWAY = "not dispatched yet"
    QUEUED = "queued"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    PARKED = "out of the batch for a move"
    JOINING = "waits for the end of the step to join the batch"
    DONE = "finished"


@dataclass(slots=True, eq=False)
class SimRequest:
    """Compared by identity; changed by the engine that has it."""

    index: int
    request_id: RequestId
    arrival_s: float
    prompt_tokens: int
    total_tokens: int
    """Prompt and output; it is finished when it has them all."""
    priority_class: PriorityClass
    rank: int
    key: tuple[int, int]
    """Order of queues; the last of a batch is preempted first."""
    tokens: int
    """Prompt and output so far; while it decodes, `Batch.tokens_of` knows."""
    place: Place = Place.AWAY
    instance: InstanceName | None = None
    """Where it waits or runs; None before it was dispatched and after its end."""
    offset: int = 0
    """While it decodes: tokens minus the engine's steps, which does not change."""
    finish_step: int = 0
    blocks: int = 0
    """KV blocks that it holds while it is neither queued nor decoding."""
    is_moving: bool = False
    first_token_s: float | None = None
    finish_s: float | None = None
    preemptions: int = 0
    preempted_s: float | None = None
    """When it lost its blocks; None while it has them."""
    lost_s: float = 0.0
    """Time from preemptions to the ends of the recomputations."""
    moves: int = 0
    downtimes_s: list[float] = field(default_factory=list)
    last_token_before_move_s: float | None = None
    """Set between a move's pause and the next token."""

    @property
    def output_tokens(self) -> int:
        """What it has to produce altogether."""
        return self.total_tokens - self.prompt_tokens


def request_of(arrival: Arrival, *, has_priorities: bool) -> SimRequest:
    """Makes the request of an arrival. Without priorities its class orders nothing."""
    rank = arrival.priority_class.rank if has_priorities else PriorityClass.NORMAL.rank
    return SimRequest(
        index=arrival.index,
        request_id=RequestId(f"r{arrival.index}"),
        arrival_s=arrival.arrival_s,
        prompt_tokens=arrival.prompt_tokens,
        total_tokens=arrival.prompt_tokens + arrival.output_tokens,
        priority_class=arrival.priority_class,
        rank=rank,
        key=(rank, arrival.index),
        tokens=arrival.prompt_tokens,
    )
