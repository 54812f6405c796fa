"""An SLO's charts: the points for Plotly, the same in words and as tables. Pure."""

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from statistics import quantiles
from typing import Any, Final, NamedTuple

from controlplane.fleet.tiles import DASH
from controlplane.usage.sums import SloState
from web.ledger_words import lasts, percent

BINS: Final = 28
"""Bars of a distribution: 12 px each in the narrower chart."""
POINTS_MAX: Final = 180
TABLE_ROWS: Final = 14


class Chart(NamedTuple):
    """One chart: its key is also the script's (static/live/slo.js)."""

    key: str
    title: str
    sub: str
    words: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


class Budget(NamedTuple):
    """What of the error budget was left, at the end of each part of the window."""

    at: list[str]
    left: list[float]


class Bins(NamedTuple):
    """A distribution over bars whose widths grow by a constant factor."""

    edges_ms: list[float]
    counts: list[int]
    target_ms: float | None
    values: int
    median_ms: float | None
    p99_ms: float | None
    over: int
    """Values over the target."""


def budget_over_time(objective: float, hours: Mapping[datetime, tuple[int, int]]) -> Budget:
    """Returns the budget of the window's requests as it was used up, oldest first.

    `hours`: requests that count and those that met their targets, by the hour's beginning.
    """
    allowed = (1 - objective) * sum(requests for requests, _ in hours.values())
    if not allowed:
        return Budget([], [])
    missed = 0
    at: list[str] = []
    left: list[float] = []
    each = max(1, math.ceil(len(hours) / POINTS_MAX))
    for number, hour in enumerate(sorted(hours), start=1):
        requests, met = hours[hour]
        missed += requests - met
        if number % each == 0 or number == len(hours):
            at.append(_iso(hour))
            left.append(round(1 - missed / allowed, 4))
    return Budget(at, left)


def bins_of(values: Iterable[float], target_ms: float | None) -> Bins:
    """Returns a distribution of times. Without values there are no bars."""
    known = sorted(v for v in values if v > 0)
    if not known:
        return Bins([], [], target_ms, 0, None, None, 0)
    low = math.floor(math.log10(max(known[0], 0.1)) * 10) / 10
    high = math.ceil(math.log10(max(known[-1], target_ms or 0.0)) * 10 + 0.5) / 10
    step = max((high - low) / BINS, 0.01)
    edges = [round(10 ** (low + i * step), 3) for i in range(BINS + 1)]
    counts = [0] * BINS
    for value in known:
        place = int((math.log10(max(value, 0.1)) - low) / step)
        counts[min(BINS - 1, max(0, place))] += 1
    p99 = quantiles(known, n=100)[98] if len(known) > 1 else known[0]
    over = 0 if target_ms is None else sum(v > target_ms for v in known)
    middle = known[len(known) // 2]
    return Bins(edges, counts, target_ms, len(known), middle, p99, over)


def data(state: SloState, budget: Budget, ttft: Bins, tpot: Bins) -> dict[str, Any]:
    """Returns what the script draws."""
    return {
        "objective": state.objective,
        "attainment": {
            "at": [_iso(p.at) for p in state.series],
            "share": [p.attainment for p in state.series],
            "requests": [p.requests for p in state.series],
        },
        "budget": {"at": budget.at, "left": budget.left},
        "ttft": _bars(ttft),
        "tpot": _bars(tpot),
    }


def charts(state: SloState, budget: Budget, ttft: Bins, tpot: Bins) -> list[Chart]:
    """Returns the charts, each said in words and as a table too."""
    days = f"{state.window_days} days"
    return [
        Chart(
            "attainment", "Attainment", f"% of requests, {days}; dashed: the objective",
            _attainment_words(state),
            ("From, UTC", "Requests", "Attainment"),
            _thin([(_day(p.at), f"{p.requests:,}", percent(p.attainment)) for p in state.series]),
        ),
        Chart(
            "budget", "Error budget left", f"% of the window's budget, {days}",
            _budget_words(budget), ("At, UTC", "Left"),
            _thin([(at[:16].replace("T", " "), percent(left)) for at, left in
                   zip(budget.at, budget.left, strict=True)]),
        ),
        _distribution("ttft", "Time to first token", ttft),
        _distribution("tpot", "Time per output token", tpot),
    ]  # fmt: skip


def _distribution(key: str, title: str, bins: Bins) -> Chart:
    rows = [
        (lasts(low), lasts(high), f"{count:,}")
        for low, high, count in zip(bins.edges_ms, bins.edges_ms[1:], bins.counts, strict=False)
        if count
    ]
    return Chart(key, title, f"requests by time, log scale, newest {bins.values:,}",
                 _bins_words(bins), ("From", "To", "Requests"), rows)  # fmt: skip


def _bars(bins: Bins) -> dict[str, Any]:
    return {"edges": bins.edges_ms, "counts": bins.counts, "target": bins.target_ms}


def _attainment_words(state: SloState) -> str:
    known = [p.attainment for p in state.series if p.attainment is not None]
    if not known:
        return "Too few requests to say."
    return (
        f"From {percent(min(known))} to {percent(max(known))}, last {percent(known[-1])};"
        f" the objective is {percent(state.objective)}."
    )


def _budget_words(budget: Budget) -> str:
    if not budget.left:
        return "No request that counts in the window."
    return f"From 100 % at the window's beginning to {percent(budget.left[-1])} now."


def _bins_words(bins: Bins) -> str:
    if not bins.values:
        return "No request with this time in the window."
    target = "no target"
    if bins.target_ms is not None:
        target = f"{bins.over:,} of {bins.values:,} over the target of {lasts(bins.target_ms)}"
    return f"Median {lasts(bins.median_ms)}, P99 {lasts(bins.p99_ms)}; {target}."


def _thin(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Returns some of the rows, the first and the last included."""
    if len(rows) <= TABLE_ROWS:
        return rows
    picked = {round(i * (len(rows) - 1) / (TABLE_ROWS - 1)) for i in range(TABLE_ROWS)}
    return [row for number, row in enumerate(rows) if number in picked]


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="minutes").removesuffix("+00:00")


def _day(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M}" if at else DASH
