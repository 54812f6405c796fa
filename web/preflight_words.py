"""The pre-flight's result as tables for its page. Pure."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from controlplane.fleet.preflight_values import Applies, Forecast, PreflightReport
from controlplane.fleet.tiles import DASH, number
from web.move_units import megabytes, milliseconds, plural

SLOW_SHARE: Final = 0.5
"""A way under half of the fastest one's bandwidth is marked: something is in its way."""
MATRIX_MAX: Final = 16
APPLIES: Final = {
    Applies.YES: ("bad", "in the way"),
    Applies.NO: ("ok", "not here"),
    Applies.UNKNOWN: ("warn", "not known"),
    Applies.PER_REQUEST: ("plain", "depends on the request"),
}


class Cell(NamedTuple):
    """One pair in the matrix."""

    text: str
    tone: str
    title: str


class ForecastRow(NamedTuple):
    tokens: str
    stages: str
    mb: str
    copy: str
    wait: str


class ObstacleRow(NamedTuple):
    what: str
    why: str
    tone: str
    word: str


def matrix(report: PreflightReport) -> list[tuple[str, list[Cell]]]:
    """Returns a row a source, a cell a destination: GB/s, or why there is no number."""
    names = report.serving[:MATRIX_MAX]
    ways = {(w.source, w.destination): w for w in report.ways}
    best = max((w.bytes_per_s for w in report.ways if w.bytes_per_s), default=0.0)
    rows = []
    for source in names:
        cells = []
        for destination in names:
            way = ways.get((source, destination))
            if source == destination:
                cells.append(Cell("", "same", "the same instance"))
            elif way is None:
                cells.append(Cell(DASH, "none", f"{source} to {destination}: not measured"))
            elif not way.bytes_per_s:
                cells.append(Cell("✕", "bad", f"{source} to {destination}: {way.problem}"))
            else:
                tone = "slow" if way.bytes_per_s < SLOW_SHARE * best else "fast"
                text = f"{way.bytes_per_s / 1e9:.2f}"
                trip = milliseconds(way.round_trip_ms)
                title = f"{source} to {destination}: {text} GB/s, round trip {trip}"
                cells.append(Cell(text, tone, title))
        rows.append((source, cells))
    return rows


def forecast_rows(report: PreflightReport) -> list[ForecastRow]:
    """Returns what moves of the chosen lengths would take."""
    return [
        ForecastRow(
            number(f.tokens),
            f"{len(f.copy_blocks)} + 1",
            megabytes(f.bytes),
            milliseconds(f.copy_ms),
            milliseconds(f.downtime_ms),
        )
        for f in report.forecasts
    ]


def obstacle_rows(report: PreflightReport) -> list[ObstacleRow]:
    """Returns what would refuse a move, those in the way first."""
    order = (Applies.YES, Applies.UNKNOWN, Applies.PER_REQUEST, Applies.NO)
    found = sorted(report.obstacles, key=lambda o: order.index(o.applies))
    return [ObstacleRow(o.what, o.why, *APPLIES[o.applies]) for o in found]


def forecast_for(forecasts: Sequence[Forecast], tokens: int) -> str:
    """Says what a move of so many tokens would take, by the next longer forecast; "" without."""
    near = next((f for f in sorted(forecasts, key=lambda f: f.tokens) if f.tokens >= tokens), None)
    if near is None:
        return ""
    copy, wait = milliseconds(near.copy_ms), milliseconds(near.downtime_ms)
    return f"at most {copy} to copy, {wait} to wait (for {plural(near.tokens, 'token')})"
