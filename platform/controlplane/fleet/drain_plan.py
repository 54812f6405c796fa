"""What a drain would do, before anybody presses it: who moves, where there is room, how long. Pure
but for what it is given; the numbers are those of the last reports.

Whether a particular request can move is known when its engine is asked, not before.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from controlplane.fleet.fleet_now import FleetNow
from controlplane.fleet.picture import STALE_AFTER_S
from engine_pool.policy.freeness import breakdown
from engine_pool.policy.settings import HeadroomRule
from engine_pool.policy.wishes import WantedState
from engine_pool.types import InstanceLoad, InstanceState, InstanceStatus
from migration.report import MoveReport, MoveState


@dataclass(frozen=True, slots=True)
class DrainPlan:
    """What would happen. None: nobody knows."""

    running: int | None
    waiting: int | None
    kv_tokens: int | None
    """Of the running ones, all to be copied."""
    others: int
    """Instances that serve, stay, and report."""
    room_tokens: int
    """Free there."""
    freeness_now_steps: float | None
    """Of the others together, decode steps; None: they are idle, or there are none."""
    freeness_after_steps: float | None
    """With the requests there."""
    at_once: int
    """Moves that begin side by side at one instance."""
    move_s: float | None
    """Mean duration of the last moves; None: none ended lately."""
    wait_ms: float | None
    """Mean time that their readers waited."""
    report_age_s: float | None
    """Of the oldest report among those that leave."""

    @property
    def estimate_s(self) -> float | None:
        """Until all have moved, at the rate of the last moves."""
        if self.running is None or self.move_s is None:
            return None
        return self.running * self.move_s / self.at_once

    @property
    def has_room(self) -> bool:
        """Says whether the others' memory takes what leaves."""
        return self.kv_tokens is not None and self.room_tokens >= self.kv_tokens


def drain_plan(
    now: FleetNow,
    leaving: Collection[str],
    *,
    headroom: HeadroomRule,
    at_once: int,
) -> DrainPlan:
    """Looks at what these instances have, and at the others of their pools."""
    pools = {now.statuses[name].pool for name in leaving if name in now.statuses}
    # What a dead engine had goes on elsewhere already.
    living = [name for name in leaving if name in now.statuses and _lives(now.statuses[name])]
    gone = [now.loads[name] for name in living if name in now.loads]
    is_whole = len(gone) == len(living)
    stay = [
        (status, now.loads[name])
        for name, status in now.statuses.items()
        if name not in leaving and status.pool in pools and _takes(status, now.loads.get(name), now)
    ]
    parts = [breakdown(load, status.state, headroom) for status, load in stay]
    capacity = sum(part.capacity_tokens for part in parts)
    usage = sum(part.virtual_tokens for part in parts)
    batch = sum(part.running for part in parts)
    added = sum(load.used_tokens for load in gone) + sum(
        r.demand_tokens for load in gone for r in load.waiting
    )
    joining = sum(len(load.running) for load in gone)
    move_s, wait_ms = _lately(now.moves)
    return DrainPlan(
        running=joining if is_whole else None,
        waiting=sum(len(load.waiting) for load in gone) if is_whole else None,
        kv_tokens=sum(load.used_tokens for load in gone) if is_whole else None,
        others=len(stay),
        room_tokens=sum(load.free_tokens for _, load in stay),
        freeness_now_steps=(capacity - usage) / batch if batch else None,
        freeness_after_steps=(
            (capacity - usage - added) / (batch + joining) if stay and batch + joining else None
        ),
        at_once=max(1, at_once * max(1, len(gone))),
        move_s=move_s,
        wait_ms=wait_ms,
        report_age_s=max((now.at_unix_s - load.at_unix_s for load in gone), default=None),
    )


def _lives(status: InstanceStatus) -> bool:
    return status.state not in (
        InstanceState.LOST, InstanceState.STOPPED, InstanceState.STARTING,
    )  # fmt: skip


def _takes(status: InstanceStatus, load: InstanceLoad | None, now: FleetNow) -> bool:
    is_open = status.state is InstanceState.SERVING and status.wanted == WantedState.SERVING
    return is_open and load is not None and now.at_unix_s - load.at_unix_s <= STALE_AFTER_S


def _lately(moves: Iterable[MoveReport]) -> tuple[float | None, float | None]:
    """Returns the means of the last moves' duration, seconds, and of their downtime, ms."""
    done = [m for m in moves if m.state is MoveState.COMMITTED and m.ended_ms is not None]
    took = [m.ended_ms / 1000 for m in done if m.ended_ms is not None and not m.is_queued]
    waits = [m.downtime_ms for m in done if m.downtime_ms is not None]
    return (
        sum(took) / len(took) if took else None,
        sum(waits) / len(waits) if waits else None,
    )
