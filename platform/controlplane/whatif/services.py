"""What changes a run: asked for and cancelled by people, claimed and ended by the worker.

Every change of state is a compare-and-set, so that a cancel, a dead worker's late answer and the
reaper cannot undo each other. The rows are the queue; nothing is lost with the broker.
"""

import logging
from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db import IntegrityError, transaction
from django.utils import timezone

from controlplane.audit.models import AuditEntry, AuditResult
from controlplane.whatif.checks import check_wish
from controlplane.whatif.limits import HEARTBEAT_LIMIT_S, KEPT_RUNS, QUEUED_MAX
from controlplane.whatif.models import ENDS, RunState, SimulationRun
from controlplane.whatif.values import Report, WhatIfRefused, Wish

logger = logging.getLogger(__name__)

START = "start_whatif"
CANCEL = "cancel_whatif"


def run_start(*, user: AbstractBaseUser | AnonymousUser, wish: Wish) -> SimulationRun:
    """Puts a run into the queue. Raises: WhatIfRefused naming the field."""
    audit = AuditEntry(
        who=user.get_username(),
        action=START,
        object=wish.name[:200] or "what-if run",
        result=AuditResult.DONE,
        after={"scenario": wish.scenario, "baseline": wish.baseline},
    )
    try:
        checked = check_wish(wish)
        waiting = SimulationRun.objects.filter(state=RunState.QUEUED).count()
        if waiting >= QUEUED_MAX:
            raise WhatIfRefused(
                f"{waiting} runs wait already, and that is the most. Cancel one, or try again when "
                "one has ended.",
                code="queue_full",
            )
    except WhatIfRefused as refusal:
        audit.result, audit.detail = AuditResult.REFUSED, str(refusal)
        audit.save()
        raise
    run = SimulationRun(
        name=checked.name,
        who=user.get_username(),
        scenario=checked.scenario,
        baseline=checked.baseline,
        baseline_label=checked.baseline_label,
    )
    audit.object = f"{run.run_id}: {run.name}"[:200]
    with transaction.atomic():
        run.save()
        audit.save()
    return run


def run_cancel(
    *, user: AbstractBaseUser | AnonymousUser, run: SimulationRun, now: datetime | None = None
) -> None:
    """Ends a waiting run at once, a running one within a second or two.

    Raises: WhatIfRefused when it has ended.
    """
    who, at = user.get_username(), now or timezone.now()
    audit = AuditEntry(
        who=who,
        action=CANCEL,
        object=f"{run.run_id}: {run.name}"[:200],
        result=AuditResult.DONE,
        before={"state": run.state, "progress": round(run.progress, 3)},
    )
    is_out = _change(
        run, RunState.QUEUED, state=RunState.CANCELLED, ended_at=at, cancel_wanted_by=who
    )
    if not is_out and not _change(run, RunState.RUNNING, cancel_wanted_by=who):
        run.refresh_from_db(fields=["state"])
        refusal = WhatIfRefused(f"The run has ended already: it is {run.state}.", code="ended")
        audit.result, audit.detail = AuditResult.REFUSED, str(refusal)
        audit.save()
        raise refusal
    audit.save()


def run_claim(*, now: datetime) -> SimulationRun | None:
    """Takes the run that has waited longest; None: none waits, or one runs."""
    if SimulationRun.objects.filter(state=RunState.RUNNING).exists():
        return None
    run = SimulationRun.objects.filter(state=RunState.QUEUED).order_by("created_at", "pk").first()
    if run is None:
        return None
    try:
        with transaction.atomic():
            is_ours = _change(
                run, RunState.QUEUED, state=RunState.RUNNING, started_at=now, heartbeat_at=now
            )
    except IntegrityError:
        # Another worker began one between the look and the change.
        return None
    if not is_ours:
        return None
    run.refresh_from_db()
    return run


def run_beat(*, run: SimulationRun, share: float, now: datetime) -> bool:
    """Notes how far a run is; False: it is to stop, or is not ours any more."""
    return bool(
        SimulationRun.objects.filter(pk=run.pk, state=RunState.RUNNING, cancel_wanted_by="").update(
            progress=min(1.0, max(0.0, share)), heartbeat_at=now
        )
    )


def run_finish(
    *, run: SimulationRun, report: Report, baseline_report: Report | None, now: datetime
) -> bool:
    """Keeps the result; False: the run was ended meanwhile."""
    return _change(
        run,
        RunState.RUNNING,
        state=RunState.DONE,
        progress=1.0,
        ended_at=now,
        report=report,
        baseline_report=baseline_report,
        ttft_p99_ms=report["summary"]["prefill_p99_ms"],
        moves=report["moves"]["committed"],
    )


def run_fail(*, run: SimulationRun, why: str, now: datetime) -> bool:
    """Ends a run without a result; False: it was ended meanwhile."""
    return _change(run, RunState.RUNNING, state=RunState.FAILED, error=why, ended_at=now)


def run_stopped(*, run: SimulationRun, now: datetime) -> bool:
    """Ends a run that somebody cancelled while it ran."""
    return _change(run, RunState.RUNNING, state=RunState.CANCELLED, ended_at=now)


def runs_reap(*, now: datetime) -> int:
    """Fails runs whose worker has died; returns how many."""
    limit = now - timedelta(seconds=HEARTBEAT_LIMIT_S)
    count = 0
    for run in SimulationRun.objects.filter(state=RunState.RUNNING, heartbeat_at__lt=limit):
        silent_s = (now - (run.heartbeat_at or now)).total_seconds()
        if run.cancel_wanted_by:
            count += run_stopped(run=run, now=now)
            continue
        why = (
            f"The worker that computed it died or was stopped: no sign of life for {silent_s:.0f} s"
            f", at {run.progress:.0%}. Run it again."
        )
        count += run_fail(run=run, why=why, now=now)
    return count


def runs_forget(*, keep: int = KEPT_RUNS) -> int:
    """Deletes all but the newest ended runs; returns how many."""
    ended = SimulationRun.objects.filter(state__in=ENDS)
    old = list(ended.order_by("-created_at", "-pk").values_list("pk", flat=True)[keep:])
    deleted, _ = SimulationRun.objects.filter(pk__in=old).delete()
    return deleted


def _change(run: SimulationRun, before: RunState, **values: Any) -> bool:
    """Sets values if the run is in the state `before`; says whether it was."""
    changed = SimulationRun.objects.filter(pk=run.pk, state=before).update(**values)
    return bool(changed)
