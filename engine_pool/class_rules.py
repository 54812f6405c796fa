"""How operators want priority classes treated, as it is published: for dispatch, moves and queues.

A class without a rule, or a field of it that is None, leaves the pool's own setting as it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from engine_pool.policy.settings import HeadroomRule, Kept
from engine_pool.types import PriorityClass


@dataclass(frozen=True, slots=True)
class ClassRule:
    """One class, in all pools."""

    headroom_tokens: int | None = None
    """KV cache kept free on an instance that serves the class; 0: none."""
    headroom_share: float | None = None
    """The same as a share of the instance's KV cache, 0 to 1; one of both, or neither."""
    ageing_s: float | None = None
    """As PoolConfig.ageing_s, for this class."""
    is_preemptible: bool = True
    """Its running requests may make room for waiting ones of a higher class."""


ClassRules = Mapping[PriorityClass, ClassRule]


def ageing_of_rank(classes: ClassRules) -> dict[int, float]:
    """Returns the ageing bounds, seconds, of the classes that have one of their own, by rank."""
    return {c.rank: r.ageing_s for c, r in classes.items() if r.ageing_s is not None}


def with_classes(headroom: HeadroomRule, classes: ClassRules) -> HeadroomRule:
    """Returns the pool's headroom with what is wanted for its classes."""
    kept: dict[PriorityClass, Kept] = {}
    for priority_class, rule in classes.items():
        if rule.headroom_tokens is not None:
            kept[priority_class] = Kept(tokens=rule.headroom_tokens)
        elif rule.headroom_share is not None:
            kept[priority_class] = Kept(share=rule.headroom_share)
    return replace(headroom, kept=kept)
