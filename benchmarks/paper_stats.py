"""Paired ratios: the same arrivals under two policies, seed by seed. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, Final

Summary = Mapping[str, float]
"""What one run measured, by metric; units in the names."""

TINY: Final = 1e-9
"""Below this a figure counts as 0: a ratio of it says nothing."""


@dataclass(frozen=True, slots=True)
class Row:
    """One metric of one mix at one rate, over all seeds."""

    experiment: str
    mix: str
    rate: float
    cv: float
    metric: str
    baseline: float
    ours: float
    ratio: float
    """Median of the paired ratios baseline / ours: above 1, ours is better."""
    ratio_min: float
    ratio_max: float
    paper_ratio: float | None
    seeds: int
    variant: str = "defaults"
    """Which settings "ours" had."""


def paired_ratios(baseline: Sequence[float], ours: Sequence[float]) -> list[float]:
    """Returns baseline / ours for each seed; 1 where neither has any, infinity where only ours has
    none."""
    assert len(baseline) == len(ours), "the same seeds under both"
    return [_ratio(b, o) for b, o in zip(baseline, ours, strict=True)]


def _ratio(baseline: float, ours: float) -> float:
    if ours > TINY:
        return baseline / ours
    return 1.0 if baseline <= TINY else math.inf


def make_row(
    experiment: str,
    mix: str,
    rate: float,
    metric: str,
    baseline: Sequence[Summary],
    ours: Sequence[Summary],
    *,
    cv: float = 1.0,
    paper_ratio: float | None = None,
    variant: str = "defaults",
) -> Row:
    """Compares two policies; both sequences are in the order of their seeds."""
    theirs = [run[metric] for run in baseline]
    mine = [run[metric] for run in ours]
    ratios = paired_ratios(theirs, mine)
    return Row(
        experiment=experiment,
        mix=mix,
        rate=rate,
        cv=cv,
        metric=metric,
        baseline=median(theirs),
        ours=median(mine),
        ratio=median(ratios),
        ratio_min=min(ratios),
        ratio_max=max(ratios),
        paper_ratio=paper_ratio,
        seeds=len(ratios),
        variant=variant,
    )


def geomean(values: Sequence[float]) -> float:
    """Returns the geometric mean; infinite values count as the largest finite one."""
    finite = [v for v in values if math.isfinite(v)]
    if not finite:
        return math.nan
    return math.exp(sum(math.log(min(v, max(finite))) for v in values) / len(values))


def frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Returns the (cost, latency) points that no cheaper point beats, by cost."""
    best: list[tuple[float, float]] = []
    for cost, latency in sorted(points):
        if not best or latency < best[-1][1]:
            best.append((cost, latency))
    return best


def crossing(points: Sequence[tuple[float, float]], level: float) -> float | None:
    """Returns x at which a falling curve y(x), given as (x, y), reaches a level, by linear
    interpolation between neighbours; None where it never does."""
    ordered = sorted(points)
    for (x1, y1), (x2, y2) in pairwise(ordered):
        if (y1 - level) * (y2 - level) <= 0 and y1 != y2:
            return x1 + (y1 - level) * (x2 - x1) / (y1 - y2)
    return None


def as_json(row: Row) -> dict[str, Any]:
    """Returns a row with readable numbers; infinity becomes null."""
    found: dict[str, Any] = {}
    for name in Row.__slots__:
        value = getattr(row, name)
        if isinstance(value, float):
            value = float(f"{value:.4g}") if math.isfinite(value) else None
        found[name] = value
    return found
