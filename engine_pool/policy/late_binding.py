"""Which requests leave the gateway's queue, and where to: those that some instance has room for.

An option. Requests wait in one queue until their prefill fits somewhere, instead of in the queue of
an instance that was chosen too early. Highest class first, in the order in which the caller gives
them within a class (arrival, or fair shares). When the head fits nowhere, smaller ones may pass it,
but only for so long: then the queue waits for it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from engine_pool.policy.dispatch import (
    Choice,
    Refusal,
    RequestDemand,
    choose,
    holds_tokens,
    score,
)
from engine_pool.policy.settings import DispatchRule
from engine_pool.policy.standing import Standing, add_queued
from engine_pool.types import InstanceName

LOOKED_AT = 64
"""Waiting requests that are looked at behind a blocked head: bounds the work of a long queue."""


@dataclass(frozen=True, slots=True)
class Held:
    """One request in the gateway's queue."""

    demand: RequestDemand
    blocked_since_s: float | None = None
    """Since when it has been at the head and fitted nowhere; None: not so far."""


@dataclass(frozen=True, slots=True)
class Release:
    """A request that may go, and where to."""

    position: int
    """In the queue as it was given."""
    choice: Choice


@dataclass(frozen=True, slots=True)
class Outcome:
    releases: tuple[Release, ...]
    blocked: int | None
    """Position of the head that fits nowhere; None when the queue is empty now."""
    is_passing: bool
    """Whether smaller ones were let past it."""


def release(
    queue: Sequence[Held], standings: Iterable[Standing], rule: DispatchRule, now_s: float
) -> Outcome:
    """Decides for a queue in its order. What is released counts for those behind it."""
    places = {s.instance: _copy(s) for s in standings}
    releases: list[Release] = []
    blocked: int | None = None
    for position, held in enumerate(queue[:LOOKED_AT]):
        found = _place(held.demand, places, rule)
        if found is not None:
            releases.append(Release(position, found))
        elif blocked is None:
            blocked = position
            since_s = now_s if held.blocked_since_s is None else held.blocked_since_s
            if now_s - since_s >= rule.late_pass_s:
                return Outcome(tuple(releases), blocked, is_passing=False)
    return Outcome(tuple(releases), blocked, is_passing=blocked is not None)


def has_room(s: Standing, demand: RequestDemand, rule: DispatchRule) -> bool:
    """Says whether a request could run there at once and leave enough room to grow; in the headroom
    of a higher class only where that is elastic."""
    if s.batch + s.waiting >= s.max_running:
        return False
    rank = demand.priority_class.rank
    found = score(s, rank, rule, lends=rule.is_elastic)
    # It goes ahead of lower classes, and must not wait behind them here.
    left = found.left_tokens + sum(s.queued_tokens[rank + 1 :]) - demand.demand_tokens
    return left >= rule.late_floor_steps * (found.requests + 1)


def _place(
    demand: RequestDemand, places: dict[InstanceName, Standing], rule: DispatchRule
) -> Choice | None:
    fit = [
        s
        for s in places.values()
        if s.is_open and (has_room(s, demand, rule) or _is_whole(s, demand, rule))
    ]
    found = choose(fit, demand, rule) if fit else None
    if found is None or isinstance(found, Refusal):
        return None
    add_queued(places[found.instance], demand.priority_class.rank, demand.demand_tokens)
    return found


def _is_whole(s: Standing, demand: RequestDemand, rule: DispatchRule) -> bool:
    """An idle instance takes whatever it can hold: waiting would make it no freer."""
    return s.is_idle and demand.demand_tokens <= holds_tokens(s, rule)


def _copy(s: Standing) -> Standing:
    return replace(s, queued=list(s.queued), queued_tokens=list(s.queued_tokens))
