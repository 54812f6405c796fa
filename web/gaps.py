"""Bars of the gap before each token around a move, in percent of width and height. Pure."""

from typing import Final, NamedTuple

from migration.report import MoveReport
from web.gantt import nice_step
from web.move_units import short_ms

GRID_LINES: Final = 4


class GapBar(NamedTuple):
    kind: str
    x: float
    width: float
    y: float
    height: float
    title: str


class Mark(NamedTuple):
    place: float
    text: str


class GapPlot(NamedTuple):
    bars: tuple[GapBar, ...]
    lines: tuple[Mark, ...]
    """Heights of the grid, 0 at the bottom."""
    numbers: tuple[Mark, ...]
    """Token numbers under the bars; empty when the request's count is not known."""
    longest: Mark | None
    """Words over the gap of the move."""


def gap_plot(report: MoveReport) -> GapPlot | None:
    """Returns None without two tokens to stand a gap between."""
    times = (*report.source_token_ms, *report.destination_token_ms)
    at_move = len(report.source_token_ms) if report.destination_token_ms else None
    gaps = [(i, times[i] - times[i - 1]) for i in range(1, len(times))]
    if not gaps or min(gap for _, gap in gaps) < 0:
        # Clocks of two machines: better no drawing than one that cannot be.
        return None
    top_ms = nice_step(max(0.1, *(gap for _, gap in gaps)) * 1.15 / GRID_LINES) * GRID_LINES
    last = report.output_tokens_at_pause
    first_number = None if last is None else last - len(report.source_token_ms) + 1
    slot = 100 / len(gaps)
    bars, longest = [], None
    for place, (i, gap_ms) in enumerate(gaps):
        kind = "move" if i == at_move else "source" if i < len(report.source_token_ms) else "dest"
        height = round(100 * gap_ms / top_ms, 2)
        x = round(place * slot, 2)
        name = "" if first_number is None else f"token {first_number + i}: "
        title = f"{name}{short_ms(gap_ms)} ms"
        bars.append(GapBar(kind, x, round(slot * 0.84, 2), round(100 - height, 2), height, title))
        if kind == "move":
            longest = Mark(round(x + slot * 0.42, 2), title)
    lines = tuple(
        Mark(round(100 - 100 * n / GRID_LINES, 2), short_ms(top_ms * n / GRID_LINES))
        for n in range(GRID_LINES + 1)
    )
    return GapPlot(tuple(bars), lines, _numbers(gaps, first_number, at_move, slot), longest)


def _numbers(
    gaps: list[tuple[int, float]], first_number: int | None, at_move: int | None, slot: float
) -> tuple[Mark, ...]:
    if first_number is None:
        return ()
    wanted = {gaps[0][0], gaps[-1][0], at_move}
    return tuple(
        Mark(round((place + 0.42) * slot, 2), str(first_number + i))
        for place, (i, _) in enumerate(gaps)
        if i in wanted
    )
