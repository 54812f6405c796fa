"""Freeness: how many decode steps an instance's batch can still take. Higher is freer, always.

`F = (M - sum of V) / B` (Llumnix, Algorithm 1): capacity minus virtual usages, in KV tokens,
divided by the running requests, each of which takes one token a step. So the unit is tokens a
request, which is decode steps. It may be negative. Without running requests an instance is as free
as can be: plus infinity; a draining one is minus infinity, whatever runs there.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from engine_pool.policy.settings import HeadroomRule
from engine_pool.policy.standing import Standing
from engine_pool.policy.virtual_usage import ALL_RANKS, virtual_tokens, virtual_usage
from engine_pool.types import InstanceLoad, InstanceState, PriorityClass


def freeness_steps(*, capacity_tokens: int, virtual_tokens: float, running: int) -> float:
    """Returns F in decode steps; plus infinity for an idle instance that does not drain."""
    if math.isinf(virtual_tokens):
        return -virtual_tokens
    return math.inf if running == 0 else (capacity_tokens - virtual_tokens) / running


def freeness_of(standing: Standing, rule: HeadroomRule, rank: int = ALL_RANKS) -> float:
    """Returns F of an instance from its sums; with a rank, as a request of that class sees it:
    only the headroom of higher classes is taken."""
    return freeness_steps(
        capacity_tokens=standing.capacity_tokens,
        virtual_tokens=virtual_tokens(standing, rule, rank),
        running=sum(standing.running),
    )


@dataclass(frozen=True, slots=True)
class Breakdown:
    """What an instance's freeness is made of, in KV tokens, for pages and reasons."""

    capacity_tokens: int
    used_tokens: int
    used_by_class: Mapping[PriorityClass, int]
    """Adds up to `used_tokens`: memory that requests share is split in proportion."""
    headroom_by_class: Mapping[PriorityClass, int]
    """Memory that the classes that run here want to keep free."""
    queued_tokens: int
    virtual_tokens: float
    """Sum of V; infinity on a draining instance."""
    running: int
    waiting: int
    freeness_steps: float

    @property
    def freeness_or_none(self) -> float | None:
        """F where it is a number; None for an idle or draining instance, whose F is infinite."""
        return self.freeness_steps if math.isfinite(self.freeness_steps) else None


def breakdown(
    load: InstanceLoad,
    state: InstanceState = InstanceState.SERVING,
    rule: HeadroomRule | None = None,
) -> Breakdown:
    """Computes an instance's freeness with all its parts."""
    is_draining = state in (InstanceState.DRAINING, InstanceState.DRAINED)
    usage = virtual_usage(load, is_draining=is_draining, rule=rule)
    virtual_tokens = usage.total_tokens
    return Breakdown(
        capacity_tokens=load.capacity_tokens,
        used_tokens=load.used_tokens,
        used_by_class=_used_by_class(load),
        headroom_by_class=usage.headroom_tokens,
        queued_tokens=usage.queued_tokens,
        virtual_tokens=virtual_tokens,
        running=len(load.running),
        waiting=len(load.waiting),
        freeness_steps=freeness_steps(
            capacity_tokens=load.capacity_tokens,
            virtual_tokens=virtual_tokens,
            running=len(load.running),
        ),
    )


def _used_by_class(load: InstanceLoad) -> dict[PriorityClass, int]:
    held = dict.fromkeys(PriorityClass, 0)
    for request in (*load.running, *load.waiting):
        held[request.priority_class] += request.kv_tokens
    total = sum(held.values())
    if total == 0:
        return held
    shares = {c: load.used_tokens * tokens // total for c, tokens in held.items()}
    largest = max(shares, key=lambda c: shares[c])
    shares[largest] += load.used_tokens - sum(shares.values())
    return shares
