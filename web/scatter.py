"""Downtime against length, a dot a committed move, in percent of width and height. Pure."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from controlplane.fleet.move_selectors import DowntimePoint
from web.gantt import nice_step
from web.move_units import plural, short_ms

GRID_LINES: Final = 4
MARGIN: Final = 1.08
"""So that the outermost dots do not stand on the edge."""


class ScatterDot(NamedTuple):
    migration_id: str
    x: float
    y: float
    title: str


class ScatterTick(NamedTuple):
    place: float
    text: str


class Scatter(NamedTuple):
    dots: tuple[ScatterDot, ...]
    x_ticks: tuple[ScatterTick, ...]
    y_ticks: tuple[ScatterTick, ...]


def scatter(points: Sequence[DowntimePoint]) -> Scatter | None:
    """Returns None without a point. Both axes begin at 0."""
    if not points:
        return None
    x_step = nice_step(max(max(p.tokens for p in points), 1) * MARGIN / GRID_LINES)
    y_step = nice_step(max(max(p.downtime_ms for p in points), 1.0) * MARGIN / GRID_LINES)
    x_end, y_end = GRID_LINES * x_step, GRID_LINES * y_step
    dots = tuple(
        ScatterDot(
            p.migration_id,
            round(100 * p.tokens / x_end, 2),
            round(100 - 100 * max(0.0, p.downtime_ms) / y_end, 2),
            f"{plural(p.tokens, 'token')}: {short_ms(p.downtime_ms)} ms",
        )
        for p in points
    )
    share = 100 / GRID_LINES
    steps = range(GRID_LINES + 1)
    return Scatter(
        dots,
        tuple(ScatterTick(i * share, f"{i * x_step:,.10g}") for i in steps),
        tuple(ScatterTick(100 - i * share, f"{i * y_step:,.10g}") for i in steps),
    )
