"""The checks of all pools, and changes to the schedule."""

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import redis
from django.core.exceptions import ValidationError
from django.db import DatabaseError
from django.db.models import Max

from controlplane.fleet.models import Pool, ScalingMode
from controlplane.scaling import lease, tally
from controlplane.scaling.facts import slots_of
from controlplane.scaling.loop import Check, Dropped, pool_check
from controlplane.scaling.models import DecisionKind, ScalingDecision, ScalingState, ScalingWindow
from controlplane.scaling.schedule import zone_of
from controlplane.tenants.access import Access, Role
from controlplane.tenants.changes import row_add, row_change, row_remove
from engine_pool.errors import ConfigError
from engine_pool.policy.wishes import WantedState
from engine_pool.pool_keys import demand_key

logger = logging.getLogger(__name__)

HEARTBEATS_KEPT_DAYS: Final = 3
"""They say only that the loop ran; one a minute and pool."""
WINDOW_FIELDS: Final = (
    "name",
    "weekdays",
    "begins",
    "ends",
    "timezone",
    "min_instances",
    "max_instances",
    "is_enabled",
)


def checks_make(
    *, store: "redis.Redis[bytes]", clock: Callable[[], float] = time.time
) -> list[ScalingDecision]:
    """Checks every pool with scaling, if nobody else does so now; returns the rows it wrote.

    A pool that cannot be checked keeps no other from it. Raises: DatabaseError, redis.RedisError
    when nothing could be begun.
    """
    pools = Pool.objects.filter(is_enabled=True).exclude(scaling_mode=ScalingMode.OFF)
    return _check(dict(pools.values_list("pk", "name")), store, clock, is_woken=False)


def demanded_wake(
    *, store: "redis.Redis[bytes]", clock: Callable[[], float] = time.time
) -> list[ScalingDecision]:
    """Checks the pools at once that have no instance while somebody waits for one.

    Raises: as `checks_make`.
    """
    pools = Pool.objects.filter(is_enabled=True, scaling_mode=ScalingMode.ACT)
    asleep = {p.pk: p.name for p in pools.prefetch_related("wanted_instances") if _is_asleep(p)}
    if not asleep:
        return []
    waited = store.mget([demand_key(name) for name in asleep.values()])
    demanded = {pk: n for (pk, n), known in zip(asleep.items(), waited, strict=True) if known}
    return _check(demanded, store, clock, is_woken=True)


def _is_asleep(pool: Pool) -> bool:
    serving = WantedState.SERVING
    away = {row.instance for row in pool.wanted_instances.all() if row.wanted != serving}
    return away.issuperset(slots_of(pool))


def _check(
    pools: Mapping[int, str],
    store: "redis.Redis[bytes]",
    clock: Callable[[], float],
    *,
    is_woken: bool,
) -> list[ScalingDecision]:
    if not pools:
        return []
    above = ScalingState.objects.aggregate(fence=Max("fence"))["fence"] or 0
    held = lease.take(store, above=above)
    if held is None:
        return []
    rows: list[ScalingDecision] = []
    try:
        for pool_id, name in pools.items():
            if not lease.renew(store, held):
                logger.warning("the lease of scaling is over; the next check does the rest")
                break
            check = Check(pool_id, name, held, is_woken)
            try:
                row = pool_check(check, store=store, clock=clock)
            except Dropped as why:
                logger.info("%s is not decided on: %s", name, why)
            except (redis.RedisError, OSError, DatabaseError, ConfigError) as error:
                # One pool's trouble is not the others'; the next check tries again.
                logger.warning("%s cannot be checked: %s: %s", name, type(error).__name__, error)
            else:
                rows += [] if row is None else [row]
    finally:
        with contextlib.suppress(redis.RedisError, OSError):
            lease.give_back(store, held)
    return rows


def decisions_forget(*, now: datetime, kept_days: int) -> int:
    """Deletes decisions that are too old, heartbeats sooner; returns how many."""
    old, _ = ScalingDecision.objects.filter(at__lt=now - timedelta(days=kept_days)).delete()
    days = min(kept_days, HEARTBEATS_KEPT_DAYS)
    beats = ScalingDecision.objects.filter(
        kind=DecisionKind.HEARTBEAT, at__lt=now - timedelta(days=days)
    )
    return old + beats.delete()[0]


def reports_tidy(*, store: "redis.Redis[bytes]") -> None:
    """Removes from Prometheus what pools say that are not checked any more.

    Raises: DatabaseError, redis.RedisError.
    """
    pools = Pool.objects.filter(is_enabled=True).exclude(scaling_mode=ScalingMode.OFF)
    checked = set(pools.values_list("name", flat=True))
    for name in store.hkeys(tally.REPORTS):
        if name.decode() not in checked:
            tally.forget(store, name.decode())


def window_add(
    *, access: Access, pool: Pool, changes: Mapping[str, Any], reason: str = ""
) -> ScalingWindow:
    """Returns a new window of a pool's schedule; in force from the next check on.

    `changes`: of WINDOW_FIELDS. Needs the platform's operator. Raises: NotAllowed; ValidationError
    naming the field.
    """
    access.require(Role.OPERATOR)
    window = ScalingWindow(pool=pool, **_only(changes))
    _check_window(window)
    return row_add(
        window, access=access, action="scaling_window_create", fields=WINDOW_FIELDS, reason=reason
    )


def window_update(
    *,
    access: Access,
    window: ScalingWindow,
    changes: Mapping[str, Any],
    version: int | None = None,
    reason: str = "",
) -> ScalingWindow:
    """Changes any of WINDOW_FIELDS. Needs the platform's operator. Raises: as `window_add`;
    VersionConflict."""
    access.require(Role.OPERATOR)
    values = _only(changes)
    after = ScalingWindow.objects.select_related("pool").filter(pk=window.pk).first() or window
    for name, value in values.items():
        setattr(after, name, value)
    _check_window(after)
    return row_change(
        window, values, access=access, action="scaling_window_update", version=version,
        reason=reason,
    )  # fmt: skip


def window_remove(
    *, access: Access, window: ScalingWindow, version: int | None = None, reason: str = ""
) -> None:
    """Removes a window. Needs the platform's operator. Raises: NotAllowed, VersionConflict."""
    access.require(Role.OPERATOR)
    if version is not None:
        row_change(window, {}, access=access, action="scaling_window_remove", version=version)
    current = ScalingWindow.objects.filter(pk=window.pk).first()
    if current is not None:
        row_remove(
            current, access=access, action="scaling_window_remove", fields=WINDOW_FIELDS,
            reason=reason,
        )  # fmt: skip


def _check_window(window: ScalingWindow) -> None:
    window.clean_fields(exclude=["pool"])
    if window.weekdays == 0:
        raise ValidationError({"weekdays": "must name a day at least"})
    try:
        zone_of(window.timezone)
    except ValueError as error:
        raise ValidationError({"timezone": str(error)}) from None
    least, most = window.pool.min_instances, window.pool.max_instances
    if window.min_instances < least:
        words = f"must not be below the pool's min_instances, {least}"
        raise ValidationError({"min_instances": words})
    for name in ("min_instances", "max_instances"):
        value = getattr(window, name)
        if value is not None and value > most:
            raise ValidationError({name: f"must not be above the pool's max_instances, {most}"})
    if window.max_instances is not None and window.max_instances < window.min_instances:
        raise ValidationError({"max_instances": "must not be below min_instances"})


def _only(values: Mapping[str, Any]) -> dict[str, Any]:
    for name in values:
        if name not in WINDOW_FIELDS:
            raise ValidationError({name: "cannot be set"})
    return dict(values)
