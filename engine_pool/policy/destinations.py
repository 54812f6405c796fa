"""Where a running request could move to, and how free each instance would be with it there.

Decides which destinations fit and their order; not whether anything should move. An instance that
takes no requests, whose report is old, or that lacks room is listed with the reason.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from engine_pool.policy.freeness import breakdown, freeness_steps
from engine_pool.policy.settings import HeadroomRule
from engine_pool.types import (
    InstanceLoad,
    InstanceName,
    InstanceState,
    InstanceStatus,
    PoolView,
    RequestLoad,
)

REPORT_MAX_AGE_S = 5.0
"""Older reports do not count; as for dispatch."""


@dataclass(frozen=True, slots=True)
class Destination:
    """One instance as a place for one request."""

    instance: InstanceName
    freeness_now_steps: float | None
    """Decode steps; plus infinity when idle, None without a fresh report."""
    freeness_after_steps: float | None
    """With the request there."""
    why_not: str
    """Empty: it fits."""


def destinations(
    view: PoolView,
    request: RequestLoad,
    source: InstanceName,
    now_unix_s: float,
    headroom: HeadroomRule,
) -> tuple[Destination, ...]:
    """Returns all other instances: those that fit first, the freest afterwards first among them."""
    loads = {load.instance: load for load in view.loads}
    block = loads[source].block_size_tokens if source in loads else 1
    need_tokens = (request.kv_tokens or request.demand_tokens) + block
    found = [
        _destination(status, loads.get(status.instance), need_tokens, now_unix_s, headroom)
        for status in view.statuses
        if status.instance != source
    ]
    return tuple(sorted(found, key=_order))


def _order(place: Destination) -> tuple[bool, float, float, str]:
    after = place.freeness_after_steps
    now = place.freeness_now_steps
    return (
        bool(place.why_not),
        math.inf if after is None else -after,
        math.inf if now is None else -now,
        place.instance,
    )


def _destination(
    status: InstanceStatus,
    load: InstanceLoad | None,
    need_tokens: int,
    now_unix_s: float,
    headroom: HeadroomRule,
) -> Destination:
    if load is None or load.incarnation != status.incarnation:
        return Destination(status.instance, None, None, _no_report(status))
    parts = breakdown(load, status.state, headroom)
    after = freeness_steps(
        capacity_tokens=load.capacity_tokens,
        virtual_tokens=parts.virtual_tokens + need_tokens,
        running=parts.running + 1,
    )
    why_not = "; ".join(_why_not(status, load, need_tokens, now_unix_s))
    return Destination(status.instance, parts.freeness_steps, after, why_not)


def _no_report(status: InstanceStatus) -> str:
    if status.state is not InstanceState.SERVING:
        return f"it is {status.state.value}"
    return "no report from it yet"


def _why_not(
    status: InstanceStatus, load: InstanceLoad, need_tokens: int, now_unix_s: float
) -> Iterator[str]:
    if status.state is not InstanceState.SERVING:
        yield f"it is {status.state.value}"
    age_s = now_unix_s - load.at_unix_s
    if age_s > REPORT_MAX_AGE_S:
        yield f"its last report is {age_s:.0f} s old"
    if len(load.running) >= load.max_running:
        yield f"it runs {len(load.running)} of at most {load.max_running} requests"
    if need_tokens > load.free_tokens:
        yield f"it has {load.free_tokens} KV tokens free, the request needs {need_tokens}"
