"""Carries out one run: claims it, simulates its one or two scenarios, keeps what came of it."""

import logging
from typing import Final

from django.utils import timezone

from controlplane.whatif import files, services
from controlplane.whatif.models import SimulationRun
from controlplane.whatif.values import GoOn, Report, RunFailed, RunStopped, Scenario, Simulate

logger = logging.getLogger(__name__)

BROKEN: Final = "The simulator broke off: {error}. This is a fault of Ferry; the log has the rest."


def run_next(simulate: Simulate) -> SimulationRun | None:
    """Carries out the run that has waited longest; returns it, None when there was nothing to do.

    Raises: DatabaseError; the run is then failed by `runs_reap` once its heartbeat is old.
    """
    run = services.run_claim(now=timezone.now())
    if run is None:
        return None
    scenarios = [s for s in (run.baseline, run.scenario) if s is not None]
    reports: list[Report] = []
    try:
        for number, scenario in enumerate(scenarios):
            go_on = _beats(run, number / len(scenarios), 1 / len(scenarios))
            reports.append(_simulated(simulate, scenario, go_on))
    except RunStopped:
        services.run_stopped(run=run, now=timezone.now())
    except RunFailed as failure:
        services.run_fail(run=run, why=str(failure), now=timezone.now())
    else:
        baseline = reports[0] if len(reports) > 1 else None
        services.run_finish(
            run=run, report=reports[-1], baseline_report=baseline, now=timezone.now()
        )
    run.refresh_from_db()
    return run


def _simulated(simulate: Simulate, scenario: Scenario, go_on: GoOn) -> Report:
    if not go_on(0.0):
        raise RunStopped
    try:
        report = simulate(files.with_paths(scenario), go_on)
    except RunFailed as failure:
        raise RunFailed(files.without_paths(str(failure))) from failure
    except OSError as error:
        # The process that simulates could not be started or talked to.
        logger.exception("a what-if run broke off")
        raise RunFailed(BROKEN.format(error=error)) from error
    # As it was asked for, without this server's paths.
    return {**report, "scenario": scenario}


def _beats(run: SimulationRun, done: float, part: float) -> GoOn:
    """Makes the callback of one scenario, which is a part of the run."""
    return lambda share: services.run_beat(run=run, share=done + part * share, now=timezone.now())
