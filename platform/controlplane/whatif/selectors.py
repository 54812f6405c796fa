"""Reads runs: the list without the reports, which are large, and one run whole."""

from dataclasses import dataclass
from typing import Final

from controlplane.whatif.models import GOING_ON, RunState, SimulationRun

LIMIT_MAX: Final = 200
LIMIT_DEFAULT: Final = 50
_LARGE: Final = ("report", "baseline_report")


@dataclass(frozen=True, slots=True)
class RunsPage:
    """Runs, the newest first."""

    runs: list[SimulationRun]
    """Without their reports."""
    left_out: int

    @property
    def goes_on(self) -> bool:
        """Says whether any of them waits or runs."""
        return any(not run.is_ended for run in self.runs)


def runs_list(*, state: str = "", limit: int = LIMIT_DEFAULT) -> RunsPage:
    """Returns the newest runs, only those in a state if one is named."""
    found = SimulationRun.objects.defer(*_LARGE)
    if state:
        found = found.filter(state=state)
    runs = list(found.order_by("-created_at", "-pk")[:limit])
    return RunsPage(runs, max(0, found.count() - len(runs)))


def run_get(run_id: str) -> SimulationRun | None:
    """Returns one run with its reports."""
    return SimulationRun.objects.filter(run_id=run_id).first()


def runs_before(run: SimulationRun) -> int:
    """Returns how many go before a run that waits, the one that runs among them."""
    if run.state != RunState.QUEUED:
        return 0
    earlier = SimulationRun.objects.filter(state__in=GOING_ON, created_at__lt=run.created_at)
    return earlier.count()
