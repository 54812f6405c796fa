"""A what-if run's charts: the points for Plotly, the same in words and as tables. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from controlplane.fleet.tiles import number
from web.move_units import steps

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


class Chart(NamedTuple):
    """One chart: its key is also the script's (static/live/whatif.js)."""

    key: str
    title: str
    sub: str
    words: str


_CHARTS: Final = (
    ("freeness", "Freeness", "decode steps; mean and lowest", ("freeness_mean", "freeness_lowest")),
    ("requests", "Requests", "running and waiting", ("running", "waiting")),
    ("free", "Free memory", "% of all KV cache", ("free_share",)),
    ("instances", "Instances", "starting ones too", ("instances",)),
    ("events", "Preemptions and moves", "since the start", ("preemptions", "moves")),
)
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
            {"label": name, "series": _rounded(told["series"]), "first": _first_token(told)}
            for name, told in _sides(report, baseline, label)
        ],
        "below": policy["below_steps"] if policy["migration"] else None,
        "above": policy["above_steps"] if policy["migration"] else None,
        "band": [scaling["low_steps"], scaling["high_steps"]] if scaling["enabled"] else None,
    }


def charts(report: Report, baseline: Report | None, label: str) -> list[Chart]:
    """Returns the charts over time, each said in words too."""
    sides = _sides(report, baseline, label)
    return [
        Chart(key, title, sub, " ".join(_words(name, told["series"], keys) for name, told in sides))
        for key, title, sub, keys in _CHARTS
    ]


def tables(
    report: Report, baseline: Report | None, label: str
) -> list[tuple[str, list[tuple[str, ...]]]]:
    """Returns a table a side: every so many points, the last one included."""
    return [(name, _rows(told["series"])) for name, told in _sides(report, baseline, label)]


def _sides(report: Report, baseline: Report | None, label: str) -> list[tuple[str, Report]]:
    return [("what if", report)] + ([(label, baseline)] if baseline is not None else [])


def _first_token(report: Report) -> list[float | None]:
    summary = report["summary"]
    return [summary[f"prefill_{which}_ms"] for which in ("p50", "mean", "p99")]


def _rounded(series: Series) -> dict[str, list[float | None]]:
    return {key: [None if v is None else round(v, DIGITS) for v in series[key]] for key in KEYS}


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
