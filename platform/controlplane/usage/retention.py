"""What is forgotten when: single requests soon, their sums late."""

from datetime import datetime, timedelta
from typing import Final

from controlplane.gateway.models import RequestRecord
from controlplane.usage.models import SloMinutes, UsageDay, UsageHour
from controlplane.usage.rollups import SHORT_S

SHORT_KEPT: Final = timedelta(days=2)
"""Of five-minute sums: burn rates look back six hours in them."""
BATCH_ROWS: Final = 5000
BATCHES_MAX: Final = 200
"""Of one run: a million rows, well within a task's time; the next run goes on."""


def requests_forget(*, before: datetime) -> int:
    """Deletes requests that arrived earlier and are in the sums; returns how many.

    In batches, so that no writer waits long. What is not in the sums yet stays until it is.
    """
    old = RequestRecord.objects.filter(arrived_at__lt=before, is_rolled=True)
    deleted = 0
    for _ in range(BATCHES_MAX):
        ids = list(old.order_by("arrived_at").values_list("pk", flat=True)[:BATCH_ROWS])
        if ids:
            deleted += RequestRecord.objects.filter(pk__in=ids).delete()[0]
        if len(ids) < BATCH_ROWS:
            break
    return deleted


def sums_forget(*, now: datetime, kept_days: int) -> int:
    """Deletes sums that are too old; returns how many."""
    before = now - timedelta(days=kept_days)
    short, _ = SloMinutes.objects.filter(length_s=SHORT_S, at__lt=now - SHORT_KEPT).delete()
    periods, _ = SloMinutes.objects.filter(at__lt=before).delete()
    hours, _ = UsageHour.objects.filter(hour__lt=before).delete()
    days, _ = UsageDay.objects.filter(day__lt=before).delete()
    return short + periods + hours + days
