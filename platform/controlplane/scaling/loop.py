"""One check of one pool: what is seen, what is decided, what is stored and done.

Decision, memory, row and action are one transaction, whose first step is the fence: a lease that is
older than the last one that decided here decides nothing, nor does a picture that is older than the
last check's. So it does not matter which worker was asked, how often, or how long it slept.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

import redis
from django.conf import settings
from django.db import connection, transaction

from controlplane.fleet.models import Pool, ScalingMode
from controlplane.fleet.publishing import pools_publish_soon
from controlplane.scaling import acting, events, facts, tally
from controlplane.scaling.lease import Lease
from controlplane.scaling.memory import Memory, as_json, memory_of
from controlplane.scaling.models import DecisionKind, ScalingDecision, ScalingState
from controlplane.scaling.schedule import bounds_now
from controlplane.scaling.telling import Telling, row_of, what_to_tell
from controlplane.scaling.windows import windows_of
from engine_pool.policy.scaling import decide
from engine_pool.policy.scaling_view import picture_of
from engine_pool.types import InstanceName

logger = logging.getLogger(__name__)

PICTURE_MAX_AGE_S: Final = 10.0
"""From the look at the reports to the decision: milliseconds, unless the process was stopped or the
database made it wait."""
CLOCK_STEP_S: Final = 60.0
"""A last check that lies further in the future was made by a clock that has been set back since."""
GAP_S: Final = 60.0
"""After so long without a check nobody knows how it was meanwhile: elapsed times begin anew."""
EARLY_SHARE: Final = 0.5
"""Of the interval: a check that comes so soon after the last one was asked for twice."""
STATEMENT_TIMEOUT_MS: Final = 5000
"""PostgreSQL's; each statement takes about one. SQLite waits for its lock 10 s at most."""


class Dropped(Exception):
    """Nothing was decided, and nothing was written. The message says why."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check that is to be made."""

    pool_id: int
    pool: str
    lease: Lease
    is_woken: bool = False
    """Somebody waits: it may come soon after the last one."""


def pool_check(
    check: Check, *, store: "redis.Redis[bytes]", clock: Callable[[], float]
) -> ScalingDecision | None:
    """Makes a check; returns its row, None when there was nothing to tell.

    `clock`: wall-clock seconds. Raises: Dropped; redis.RedisError before anything is decided;
    DatabaseError, ConfigError, with which nothing has been done.
    """
    seen_s = clock()
    reports = facts.read_reports(store, check.pool)
    ScalingState.objects.get_or_create(pool_id=check.pool_id)
    with transaction.atomic():
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute(f"SET LOCAL statement_timeout = {STATEMENT_TIMEOUT_MS}")
        # nowait: a process that was stopped within its transaction holds it until it is ended.
        kept = ScalingState.objects.select_for_update(nowait=True).get(pool_id=check.pool_id)
        _check_fence(kept, check, seen_s, clock())
        pool = Pool.objects.select_for_update().filter(pk=check.pool_id, is_enabled=True).first()
        if pool is None or pool.scaling_mode == ScalingMode.OFF:
            raise Dropped("the pool is off")
        row, told = _decide(pool, kept, check, reports, seen_s)
    tally.tell(store, told)
    if row is not None:
        events.event_tell(store, row)
    return row


def _check_fence(kept: ScalingState, check: Check, seen_s: float, now_s: float) -> None:
    if kept.fence > check.lease.fence:
        raise Dropped(f"lease {kept.fence} has decided since, this one is {check.lease.fence}")
    if not now_s - seen_s <= PICTURE_MAX_AGE_S:
        raise Dropped(f"the picture is {now_s - seen_s:.0f} s old")
    if kept.checked_at is None:
        return
    since_s = seen_s - kept.checked_at.timestamp()
    if -CLOCK_STEP_S < since_s < 0:
        raise Dropped("a newer picture has been decided on")
    is_early = 0 <= since_s < EARLY_SHARE * settings.SCALING_CHECK_S
    if is_early and not check.is_woken:
        raise Dropped(f"the last check was {since_s:.1f} s ago")


def _decide(
    pool: Pool, kept: ScalingState, check: Check, reports: facts.Reports, now_s: float
) -> tuple[ScalingDecision | None, tally.Told]:
    now = datetime.fromtimestamp(now_s, UTC)
    memory = _remembered(kept, now_s)
    bounds = bounds_now(pool.min_instances, pool.max_instances, windows_of(pool), now)
    rule = facts.rule_of(pool, bounds)
    rows = {InstanceName(r.instance): r for r in pool.wanted_instances.select_for_update()}
    picture = picture_of(
        facts.intent_of(pool, rows),
        reports.statuses,
        reports.loads,
        now_unix_s=now_s,
        max_age_s=rule.report_max_age_s,
    )
    state = memory.state
    since_s = max((s for s in (state.grown_s, state.starting_s) if s is not None), default=None)
    picture = replace(
        picture,
        attainment=facts.attainment_of(pool, now_s, since_s),
        is_demanded=reports.is_demanded,
    )
    decision, state = decide(
        picture, rule=rule, headroom=facts.headroom_of(pool), state=state, now_s=now_s
    )
    is_acting = pool.scaling_mode == ScalingMode.ACT
    instance: InstanceName | None = decision.drain or decision.undrain or decision.wake
    has_changed = False
    if is_acting and decision.is_change:
        instance = acting.act(pool, rows, decision, now)
        state, has_changed = state.after(decision, now_s), True
    elif is_acting:
        statuses = {status.instance: status for status in reports.statuses}
        has_changed = acting.tidy(pool, rows, statuses, now)
    kept.tick += 1
    kept.fence, kept.checked_at = check.lease.fence, now
    telling = Telling(decision, picture, rule, instance or "", is_acting)
    kind, memory = what_to_tell(telling, replace(memory, state=state), now_s)
    kept.memory = as_json(memory)
    kept.save()
    row = None
    if kind is not None:
        row = row_of(telling, kind, pool, kept)
        row.save(force_insert=True)
        if kind != DecisionKind.HEARTBEAT:
            logger.info("%s %s: %s", pool.name, kind, decision.reason)
    if has_changed:
        transaction.on_commit(pools_publish_soon)
    average = decision.average_steps
    told = tally.Told(
        pool=pool.name,
        mode=pool.scaling_mode,
        kind="" if row is None else row.kind,
        reason=decision.barrier.value or decision.signal.value,
        report=tally.Report(
            mode=pool.scaling_mode,
            checked_unix_s=now_s,
            wanted=acting.wanted_count(pool, rows),
            serving=len(picture.serving),
            starting=len(picture.starting_tokens),
            silent=picture.silent,
            min_instances=bounds.min_instances,
            max_instances=bounds.max_instances,
            average_steps=average if average is not None and math.isfinite(average) else None,
        ),
    )
    return row, told


def _remembered(kept: ScalingState, now_s: float) -> Memory:
    memory = memory_of(kept.memory)
    if kept.checked_at is None or now_s - kept.checked_at.timestamp() <= GAP_S:
        return memory
    return replace(memory, state=memory.state.after_gap())
