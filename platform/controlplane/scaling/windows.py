"""The schedule's rows as schedule.py reads them."""

from controlplane.fleet.models import Pool
from controlplane.scaling.models import ScalingWindow
from controlplane.scaling.schedule import Window


def windows_of(pool: Pool) -> list[Window]:
    """Returns the pool's windows that are switched on. One query."""
    return [window_of(row) for row in pool.scaling_windows.filter(is_enabled=True)]


def window_of(row: ScalingWindow) -> Window:
    return Window(
        name=row.name,
        weekdays=row.weekdays,
        begins=row.begins,
        ends=row.ends,
        timezone=row.timezone,
        min_instances=row.min_instances,
        max_instances=row.max_instances,
    )
