"""How a pool stands now, as scaling would see it: from a web process's live view, by the loop's own
sums. So the pages can tell it between two checks, and while there is no loop at all."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from controlplane.fleet.models import Pool
from controlplane.scaling.acting import wanted_count
from controlplane.scaling.facts import headroom_of, intent_of
from engine_pool.policy.scaling import average_steps
from engine_pool.policy.scaling_view import picture_of
from engine_pool.policy.settings import ScalingRule
from engine_pool.types import InstanceLoad, InstanceName, InstanceState, InstanceStatus

REPORT_MAX_AGE_S: Final = ScalingRule().report_max_age_s
LEAVING: Final = (InstanceState.DRAINING, InstanceState.DRAINED, InstanceState.STOPPING)
LOADS: Final = "loads the model"
"""What the pool process says of an instance whose engine has a process (instance_keeper.py)."""


@dataclass(frozen=True, slots=True)
class OnItsWay:
    """An instance that comes or goes."""

    instance: str
    node: str
    state: str
    """An InstanceState."""
    since_unix_s: float
    words: str
    step: int
    """Of one that comes: 0 its process starts, 1 it loads the model. Of one that goes: 0 requests
    are left, 1 it is empty, 2 it ends."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A pool at one moment."""

    wanted: int
    """Instances that are wanted to serve."""
    serving: int
    starting: int
    """Those that are wanted and not there yet among them."""
    draining: int
    silent: int
    away: int
    """Cordoned, drained or stopped by people."""
    failing: int
    average_steps: float | None
    """None: nothing runs, or nobody knows."""
    is_idle: bool
    """Instances serve, and nothing runs or waits."""
    on_their_way: tuple[OnItsWay, ...]


def pool_seen(
    pool: Pool,
    statuses: Mapping[InstanceName, InstanceStatus],
    loads: Mapping[InstanceName, InstanceLoad],
    now_unix_s: float,
) -> Seen:
    """Returns how a pool stands. Three queries. Raises: ConfigError for settings that cannot be."""
    rows = {InstanceName(row.instance): row for row in pool.wanted_instances.all()}
    picture = picture_of(
        intent_of(pool, rows),
        list(statuses.values()),
        list(loads.values()),
        now_unix_s=now_unix_s,
        max_age_s=REPORT_MAX_AGE_S,
    )
    average = None
    if picture.serving:
        average = average_steps(picture.serving, picture.starting_tokens, headroom_of(pool))
    return Seen(
        wanted=wanted_count(pool, rows),
        serving=len(picture.serving),
        starting=len(picture.starting_tokens),
        draining=len(picture.leaving),
        silent=picture.silent,
        away=picture.away,
        failing=picture.failing,
        average_steps=average if average is not None and math.isfinite(average) else None,
        is_idle=picture.is_idle,
        on_their_way=tuple(on_their_way(statuses.values())),
    )


def on_their_way(statuses: Iterable[InstanceStatus]) -> list[OnItsWay]:
    """Returns the instances that come or go, by name."""
    found = []
    for status in sorted(statuses, key=lambda s: s.instance):
        if status.state is InstanceState.STARTING:
            found.append(_on_its_way(status, status.cause, int(LOADS in status.cause)))
        elif status.state in LEAVING:
            found.append(_on_its_way(status, _leaves(status), LEAVING.index(status.state)))
    return found


def _leaves(status: InstanceStatus) -> str:
    drain = status.drain
    if status.state is not InstanceState.DRAINING or drain is None:
        return status.cause
    words = f"{drain.left} left, {drain.moved} moved"
    if drain.estimate_s is not None:
        words += f", about {drain.estimate_s:.0f} s"
    return f"{words}; {drain.obstacle}" if drain.obstacle else words


def _on_its_way(status: InstanceStatus, words: str, step: int) -> OnItsWay:
    return OnItsWay(
        str(status.instance), status.node, status.state.value, status.since_unix_s, words, step
    )
