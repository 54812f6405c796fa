"""A what-if run's charts: the points for Plotly, the same in words and as tables. Pure."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Final, NamedTuple

from controlplane.fleet.tiles import number
from web.move_units import steps
from web.whatif_words import duration

Report = Mapping[str, Any]
Series = Mapping[str, Sequence[float | None]]
KEYS: Final = (
    "time_s",
    "running",
    "waiting",
    "free_share",
    "freeness_mean",
    "freeness_lowest",
    "instances",
    "preemptions",
    "moves",
)
DIGITS: Final = 3
"""After the point; a chart shows no more."""
TABLE_ROWS: Final = 12
POINTS: Final = 150
"""Most points of a line: two pixels each in the narrower charts."""
LAST_OF: Final = ("time_s", "preemptions", "moves")


class Chart(NamedTuple):
    """One chart: its key is also the script's (static/live/whatif.js)."""

    key: str
    title: str
    sub: str
    size: str
    """Of its panel: a class of static/css/whatif.css."""
    words: str


class _Kind(NamedTuple):
    key: str
    title: str
    sub: str
    size: str
    lines: tuple[str, ...]


FIRST: Final = (
    ("median", "prefill_p50_ms"),
    ("mean", "prefill_mean_ms"),
    ("P99", "prefill_p99_ms"),
)
"""The bars of the chart of first tokens."""
_FREENESS: Final = _Kind(
    "freeness",
    "Freeness",
    "decode steps; mean of the instances, and the lowest",
    "wide",
    ("freeness_mean", "freeness_lowest"),
)
_OVER_TIME: Final = (
    _Kind("requests", "Requests", "running and waiting", "", ("running", "waiting")),
    _Kind("free", "Free memory", "% of all KV cache", "", ("free_share",)),
    _Kind("events", "Preemptions and moves", "since the start", "", ("preemptions", "moves")),
)
_INSTANCES: Final = _Kind("instances", "Instances", "starting ones too", "whole", ("instances",))
TABLE_COLUMNS: Final = (
    "Time s",
    "Running",
    "Waiting",
    "Free %",
    "Freeness",
    "Lowest",
    "Instances",
    "Preempted",
    "Moved",
)


def data(report: Report, baseline: Report | None, label: str) -> dict[str, Any]:
    """Returns what the script draws."""
    policy, scaling = report["scenario"]["policy"], report["scenario"]["scaling"]
    return {
        "sides": [
            {
                "label": name,
                "series": _thinned(told["series"]),
                "first": [told["summary"][key] for _, key in FIRST],
            }
            for name, told in _sides(report, baseline, label)
        ],
        "below": policy["below_steps"] if policy["migration"] else None,
        "above": policy["above_steps"] if policy["migration"] else None,
        "band": [scaling["low_steps"], scaling["high_steps"]] if scaling["enabled"] else None,
    }


def charts(report: Report, baseline: Report | None, label: str) -> list[Chart]:
    """Returns the charts, each said in words too; the number of instances only where it varies."""
    sides = _sides(report, baseline, label)

    def over_time(kind: _Kind) -> Chart:
        words = " ".join(_words(name, told["series"], kind.lines) for name, told in sides)
        return Chart(kind.key, kind.title, kind.sub, kind.size, words)

    scales = any(told["scenario"]["scaling"]["enabled"] for _, told in sides)
    first = " ".join(_first_words(name, told["summary"]) for name, told in sides)
    return [
        over_time(_FREENESS),
        Chart("first", "Time to first token", "log scale", "", first),
        *(over_time(kind) for kind in _OVER_TIME),
        *([over_time(_INSTANCES)] if scales else []),
    ]


def tables(
    report: Report, baseline: Report | None, label: str
) -> list[tuple[str, list[tuple[str, ...]]]]:
    """Returns a table a side: every so many points, the last one included."""
    return [(name, _rows(told["series"])) for name, told in _sides(report, baseline, label)]


def _sides(report: Report, baseline: Report | None, label: str) -> list[tuple[str, Report]]:
    return [("what if", report)] + ([(label, baseline)] if baseline is not None else [])


def _first_words(name: str, summary: Mapping[str, float | None]) -> str:
    told = ", ".join(f"{which} {duration(summary[key])}" for which, key in FIRST)
    return f"{name.capitalize()}: {told}."


def _thinned(series: Series) -> dict[str, list[float | None]]:
    """Returns fewer points, each of some neighbours: a chart of every look is a thicket."""
    count = len(series["time_s"])
    each = max(1, math.ceil(count / POINTS))
    return {
        key: [_one(key, series[key][i : i + each]) for i in range(0, count, each)] for key in KEYS
    }


def _one(key: str, values: Sequence[float | None]) -> float | None:
    """Returns their mean; of the lowest freeness the lowest, of times and counts the last."""
    known = [v for v in values if v is not None]
    if not known:
        return None
    if key in LAST_OF:
        value = known[-1]
    elif key == "freeness_lowest":
        value = min(known)
    else:
        value = fmean(known)
    return round(value, DIGITS)


def _words(name: str, series: Series, keys: Sequence[str]) -> str:
    told = []
    for key in keys:
        known = [v for v in series[key] if v is not None]
        if known:
            low, high, end = (_shown(key, v) for v in (min(known), max(known), known[-1]))
            told.append(f"{key.replace('_', ' ')} from {low} to {high}, at the end {end}")
    return f"{name.capitalize()}: {'; '.join(told) or 'no value'}."


def _rows(series: Series) -> list[tuple[str, ...]]:
    count = len(series["time_s"])
    if not count:
        return []
    picked = sorted({round(i * (count - 1) / (TABLE_ROWS - 1)) for i in range(TABLE_ROWS)})
    return [tuple(_shown(key, series[key][i]) for key in KEYS) for i in picked]


def _shown(key: str, value: float | None) -> str:
    if key.startswith("freeness"):
        return steps(value)
    return number(value if value is None or key != "free_share" else value * 100)
