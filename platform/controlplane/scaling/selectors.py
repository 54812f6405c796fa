"""Questions about scaling: how it stands, what was decided, which windows there are."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from django.conf import settings
from django.db.models import QuerySet

from controlplane.fleet.models import Pool, ScalingMode
from controlplane.scaling.memory import memory_of
from controlplane.scaling.models import DecisionKind, ScalingDecision, ScalingState, ScalingWindow
from controlplane.scaling.schedule import Bounds, bounds_now, next_change
from controlplane.scaling.windows import windows_of
from controlplane.tenants.access import Access, Role

LATE_CHECKS: Final = 4
"""After so many intervals without a check they stand still; a busy worker misses one or two."""
CHANGES: Final = (DecisionKind.GROW, DecisionKind.SHRINK, DecisionKind.UNDRAIN)


@dataclass(frozen=True, slots=True)
class ScalingNow:
    """How a pool's scaling stands."""

    pool: str
    mode: ScalingMode
    tick: int
    checked_at: datetime | None
    next_check_at: datetime | None
    """None: there was no check yet, or there will be none."""
    is_late: bool
    """Checks stand still though there should be some."""
    bounds: Bounds
    next_bounds_at: datetime | None
    under_since: datetime | None
    over_since: datetime | None
    idle_since: datetime | None
    ttft_under_since: datetime | None
    grow_blocked_until: datetime | None
    """While a cool-down lasts."""
    shrink_blocked_until: datetime | None
    last: ScalingDecision | None
    """The newest row of any kind."""
    last_change: ScalingDecision | None


def decisions_list(
    *,
    access: Access,
    pool: str = "",
    kinds: Collection[str] = (),
    signal: str = "",
    since: datetime | None = None,
    until: datetime | None = None,
    is_applied: bool | None = None,
) -> QuerySet[ScalingDecision]:
    """Returns decisions, newest first. Needs the platform's viewer. Raises: NotVisible."""
    access.require(Role.VIEWER)
    found = ScalingDecision.objects.all()
    if pool:
        found = found.filter(pool=pool)
    if kinds:
        found = found.filter(kind__in=list(kinds))
    if signal:
        found = found.filter(signal=signal)
    if since is not None:
        found = found.filter(at__gte=since)
    if until is not None:
        found = found.filter(at__lt=until)
    if is_applied is not None:
        found = found.filter(is_applied=is_applied)
    return found


def windows_list(*, access: Access, pool: str = "") -> QuerySet[ScalingWindow]:
    """Returns windows of the schedule by pool and begin. Needs the platform's viewer.

    Raises: NotVisible.
    """
    access.require(Role.VIEWER)
    found = ScalingWindow.objects.select_related("pool")
    return found.filter(pool__name=pool) if pool else found


def scaling_now(*, access: Access, pool: Pool, now: datetime) -> ScalingNow:
    """Returns how a pool's scaling stands. Four queries. Raises: NotVisible."""
    access.require(Role.VIEWER)
    kept = ScalingState.objects.filter(pool=pool).first() or ScalingState(pool=pool)
    state = memory_of(kept.memory).state
    mode = ScalingMode(pool.scaling_mode)
    is_on = mode is not ScalingMode.OFF and pool.is_enabled
    windows = windows_of(pool)
    interval = timedelta(seconds=settings.SCALING_CHECK_S)
    checked_at, next_at, is_late = kept.checked_at, None, False
    if is_on and checked_at is not None:
        next_at = checked_at + interval
        is_late = now - checked_at > LATE_CHECKS * interval
    elif is_on:
        # The row is as old as the wish to scale at least.
        is_late = now - pool.updated_at > LATE_CHECKS * interval
    changed = [s for s in (state.grown_s, state.shrunk_s) if s is not None]
    rows = ScalingDecision.objects.filter(pool=pool.name)
    return ScalingNow(
        pool=pool.name,
        mode=mode,
        tick=kept.tick,
        checked_at=checked_at,
        next_check_at=next_at,
        is_late=is_late,
        bounds=bounds_now(pool.min_instances, pool.max_instances, windows, now),
        next_bounds_at=next_change(windows, now),
        under_since=_time(state.under_since_s),
        over_since=_time(state.over_since_s),
        idle_since=_time(state.idle_since_s),
        ttft_under_since=_time(state.ttft_under_since_s),
        grow_blocked_until=_blocked(state.grown_s, pool.grow_cooldown_s, now),
        shrink_blocked_until=_blocked(max(changed, default=None), pool.shrink_cooldown_s, now),
        last=rows.first(),
        last_change=rows.filter(kind__in=CHANGES).first(),
    )


def _blocked(changed_s: float | None, cooldown_s: float, now: datetime) -> datetime | None:
    if changed_s is None:
        return None
    until = datetime.fromtimestamp(changed_s + cooldown_s, UTC)
    return until if until > now else None


def _time(unix_s: float | None) -> datetime | None:
    return None if unix_s is None else datetime.fromtimestamp(unix_s, UTC)
