"""Virtual usage: what a request counts for, which may be more than the KV memory it holds.

Decides nothing. Llumnix, OSDI 2024, Algorithm 1. Unit: KV tokens, everywhere.

- A running request counts its physical usage, plus its share of its class's headroom: the headroom
is
  counted once an instance, whenever a request of the class runs there, and divided among them.
- Of the queue, the head of the line counts with its demand, the others behind it with 0.
- A draining instance has one more, made-up request of infinite usage, so that everything leaves it.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine_pool.types import InstanceLoad, PriorityClass, RequestId

DEFAULT_TARGET_LOAD_TOKENS = 1600
"""Load at which the paper's engine still decodes at ideal speed (LLaMA-7B on an A10)."""


@dataclass(frozen=True, slots=True)
class HeadroomRule:
    """How much of an instance each class wants to keep free, in KV tokens."""

    target_load_tokens: Mapping[PriorityClass, int] = field(
        default_factory=lambda: {PriorityClass.HIGH: DEFAULT_TARGET_LOAD_TOKENS}
    )
    """Load up to which the class is served at ideal speed; a class without one has no headroom."""

    def headroom_tokens(self, priority_class: PriorityClass, capacity_tokens: int) -> int:
        """Returns capacity minus target load, at least 0."""
        target_tokens = self.target_load_tokens.get(priority_class)
        return 0 if target_tokens is None else max(0, capacity_tokens - target_tokens)


@dataclass(frozen=True, slots=True)
class VirtualUsage:
    """The virtual usages of one instance, in KV tokens."""

    running_tokens: Mapping[RequestId, float]
    """Physical usage plus share of the headroom of each running request."""
    headroom_tokens: Mapping[PriorityClass, int]
    """The headroom in `running_tokens` of each class that runs here."""
    queued_tokens: int
    """Demand of the head of the line; 0 without a queue."""
    shared_tokens: int
    """KV tokens that several requests hold together (prefix cache) and the sum counts too often."""
    draining_tokens: float
    """Infinity on a draining instance, else 0."""

    @property
    def total_tokens(self) -> float:
        """The sum of V in `F = (M - sum of V) / B`."""
        running = sum(self.running_tokens.values()) - self.shared_tokens
        return running + self.queued_tokens + self.draining_tokens


def virtual_usage(
    load: InstanceLoad, *, is_draining: bool = False, rule: HeadroomRule | None = None
) -> VirtualUsage:
    """Computes Algorithm 1 for one instance."""
    rule = rule or HeadroomRule()
    batch = Counter(r.priority_class for r in load.running)
    headroom = {c: rule.headroom_tokens(c, load.capacity_tokens) for c in batch}
    running = {
        r.request_id: r.kv_tokens + headroom[r.priority_class] / batch[r.priority_class]
        for r in load.running
    }
    held_tokens = sum(r.kv_tokens for r in load.running)
    return VirtualUsage(
        running_tokens=running,
        headroom_tokens=headroom,
        queued_tokens=load.head_demand_tokens,
        shared_tokens=max(0, held_tokens - load.used_tokens),
        draining_tokens=math.inf if is_draining else 0.0,
    )
