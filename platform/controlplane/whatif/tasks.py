"""Periodic tasks: the worker's door to the runs. The schedule stands in controlplane/celery.py."""

from celery import shared_task
from django.utils import timezone

from controlplane.whatif import services
from controlplane.whatif.apart import simulate_apart
from controlplane.whatif.limits import RUN_LIMIT_S
from controlplane.whatif.runner import run_next

_MARGIN_S = 60


@shared_task(time_limit=RUN_LIMIT_S * 2 + _MARGIN_S)
def run_one() -> None:
    """Carries out the run that has waited longest, if none runs."""
    run_next(simulate_apart)


@shared_task
def tidy_runs() -> None:
    """Fails runs whose worker died, and forgets old ones."""
    services.runs_reap(now=timezone.now())
    services.runs_forget()
