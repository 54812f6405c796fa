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
from dataclasses import dataclass

from engine_pool.policy.settings import HeadroomRule
from engine_pool.policy.standing import CLASSES, Standing
from engine_pool.types import InstanceLoad, PriorityClass, RequestId


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
    other_tokens: int
    """KV tokens in use that no running request holds: room for one that moves here."""
    draining_tokens: float
    """Infinity on a draining instance, else 0."""

    @property
    def total_tokens(self) -> float:
        """The sum of V in `F = (M - sum of V) / B`."""
        used = sum(self.running_tokens.values()) - self.shared_tokens + self.other_tokens
        return used + self.queued_tokens + self.draining_tokens


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
        other_tokens=max(0, load.used_tokens - held_tokens),
        draining_tokens=math.inf if is_draining else 0.0,
    )


ALL_RANKS = len(CLASSES)
"""Stands for everybody: all headroom counts."""


def virtual_tokens(standing: Standing, rule: HeadroomRule, rank: int = ALL_RANKS) -> float:
    """Returns the sum of V of an instance from its sums: the same number as `virtual_usage`.

    `rank`: as a request of this class sees it, for which only the headroom of higher classes is
    taken; 0 sees none.
    """
    if standing.is_draining:
        return math.inf
    total = standing.used_tokens + standing.head_tokens
    for higher, running in enumerate(standing.running[:rank]):
        if running:
            total += rule.headroom_tokens(CLASSES[higher], standing.capacity_tokens)
    return total
