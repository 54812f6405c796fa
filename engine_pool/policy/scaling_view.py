"""What the reports say about a pool's instances, sorted for a check of scaling.

A report counts when it is of the instance's present incarnation, young, and made of numbers that
can be: one that is missing, stale, negative or no number makes its instance silent, never idle.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from engine_pool.policy.scaling_facts import Picture
from engine_pool.policy.standing import Standing, standing_of
from engine_pool.types import InstanceLoad, InstanceName, InstanceState, InstanceStatus

_LEAVING = (InstanceState.DRAINING, InstanceState.DRAINED)
_THERE = (InstanceState.SERVING, InstanceState.CORDONED, *_LEAVING)
"""Its engine runs."""


@dataclass(frozen=True, slots=True)
class Intent:
    """What is wanted of a pool's instances."""

    slots: Sequence[InstanceName]
    """All that the pool has, first to last."""
    own: Collection[InstanceName] = ()
    """Those that the loop has drained or stopped."""
    kept: Collection[InstanceName] = ()
    """Those that people want cordoned, drained or stopped."""
    kept_nodes: Collection[str] = ()
    """Nodes that people want away."""


def picture_of(
    intent: Intent,
    statuses: Sequence[InstanceStatus],
    loads: Sequence[InstanceLoad],
    *,
    now_unix_s: float,
    max_age_s: float,
) -> Picture:
    """Sorts a pool's instances; demand and attainment are the caller's to add."""
    known = {s.instance: s for s in statuses}
    reports = {load.instance: load for load in loads}
    # Alike within a pool; the report of one that starts anew is its predecessor's.
    capacity_tokens = max((_capacity(load) for load in loads), default=0)
    standings: list[Standing] = []
    undrainable: set[InstanceName] = set()
    asleep: list[InstanceName] = []
    silent = starting = away = failing = 0
    others = [s.instance for s in statuses if s.instance not in set(intent.slots)]
    for name in (*intent.slots, *others):
        status, load = known.get(name), reports.get(name)
        state = None if status is None else status.state
        if load is not None and not is_usable(load, status, now_unix_s, max_age_s):
            load = None
        heard = load if state in _THERE else None
        is_kept = status is not None and status.node in intent.kept_nodes
        if name in others or name in intent.kept or is_kept:
            away += name not in others
            if heard is not None and state in _LEAVING:
                standings.append(standing_of(heard, InstanceState.DRAINING))
        elif name in intent.own:
            if heard is not None:
                standings.append(standing_of(heard, InstanceState.DRAINING))
                undrainable.add(name)
            else:
                asleep.append(name)
        elif state is InstanceState.SERVING:
            if heard is not None:
                standings.append(standing_of(heard, InstanceState.SERVING))
            else:
                silent += 1
        elif status is not None and status.is_crash_looping:
            failing += 1
        else:
            # Also one that is replaced: what it has leaves, and it comes back.
            starting += 1
            if heard is not None and state in _LEAVING:
                standings.append(standing_of(heard, InstanceState.DRAINING))
    return Picture(
        standings=standings,
        starting_tokens=(capacity_tokens,) * starting,
        silent=silent,
        undrainable=undrainable,
        asleep=_by_nearness(asleep, known),
        away=away,
        failing=failing,
    )


def is_usable(
    load: InstanceLoad, status: InstanceStatus | None, now_unix_s: float, max_age_s: float
) -> bool:
    """Says whether a report may be decided on. `max_age_s` counts both ways: one from the future
    would never become old."""
    if status is None or load.incarnation != status.incarnation:
        return False
    # Written so that a time that is no number is neither young nor old, but useless.
    if not abs(now_unix_s - load.at_unix_s) <= max_age_s:
        return False
    if not (_capacity(load) and load.block_size_tokens > 0 and load.max_running > 0):
        return False
    if not 0 <= load.used_tokens < math.inf:
        return False
    return all(
        0 <= r.kv_tokens < math.inf and 0 <= r.demand_tokens < math.inf
        for r in (*load.running, *load.waiting)
    )


def _capacity(load: InstanceLoad) -> int:
    return load.capacity_tokens if 0 < load.capacity_tokens < math.inf else 0


def _by_nearness(
    asleep: Sequence[InstanceName], known: Mapping[InstanceName, InstanceStatus]
) -> list[InstanceName]:
    """Returns first those whose engine has not ended yet, then by number."""

    def is_stopped(name: InstanceName) -> bool:
        status = known.get(name)
        return status is None or status.state is InstanceState.STOPPED

    return sorted(asleep, key=lambda name: (is_stopped(name), name))
