"""Turns the runs of `benchmarks.paper` into rows, a summary and the table in docs/benchmarks.md.
Pure."""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Final

from benchmarks.paper_cases import (
    CLASS_OPTIONS,
    COST_BANDS,
    LEDGERLESS_CV,
    MIXES,
    OPTIONS_CV,
    PRIORITY_CVS,
    PRIORITY_RATE_PER_S,
    SCALING_CV_RATE_PER_S,
    SCALING_CVS,
    SCALING_RATES_PER_S,
    Run,
)
from benchmarks.paper_stats import Row, Summary, crossing, frontier, geomean, make_row

SERVING_METRICS: Final = (
    "prefill_p99_ms",
    "prefill_mean_ms",
    "request_mean_ms",
    "request_p99_ms",
    "decode_p99_ms",
    "preemption_loss_mean_ms",
    "fragmentation",
)
CLASS_METRICS: Final = ("prefill_mean_ms", "request_mean_ms", "decode_mean_ms")
PAPER_BEST: Final = {
    ("L-L", "prefill_p99_ms"): 14.8,
    ("M-M", "prefill_p99_ms"): 13.0,
    ("M-M", "prefill_mean_ms"): 7.75,
    ("L-S", "request_mean_ms"): 1.49,
    ("L-S", "request_p99_ms"): 1.61,
    ("S-L", "decode_p99_ms"): 2.05,
    ("M-M", "fragmentation"): 7.9 / 0.7,
}
"""The paper's best case of a metric, at whichever rate it had it; shown with the knee's row."""
VARIANTS: Final = {
    "defaults": "ours",
    "paper's settings": "paper",
    "late binding": "late binding",
}
EQUAL_P99_S: Final = 4.5
"""At this P99 of the prefill the paper compares what both cost in instances."""
KNEE_P99_S: Final = (10.0, 100.0)
"""Below it nothing waits and every ratio is about 1; far past it all that counts is the queue."""
GOALS: Final = {
    "p99_prefill_geomean": (4.0, 2.5),
    "p99_prefill_best": (8.0, 5.0),
    "mean_prefill_geomean": (2.5, 2.5),
    "request_mean_geomean": (1.15, 1.15),
    "preemption_loss_worst": (-0.85, -0.65),
    "fragmentation_worst": (0.006, None),
    "high_request_ratio": (1.12, None),
    "normal_request_cost": (0.05, None),
    "instances_saved_equal_p99": (0.12, 0.10),
}
"""Ours, and what is realistic (None: no number was named)."""
LOWER_IS_BETTER: Final = {"preemption_loss_worst", "fragmentation_worst", "normal_request_cost"}


class Runs:
    """All runs, found by what they were."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = runs

    def of(self, experiment: str, policy: str, **wanted: object) -> list[Summary]:
        """Returns what the seeds measured, in their order."""
        found = [
            r
            for r in self._runs
            if r.experiment == experiment
            and r.policy == policy
            and all(getattr(r, name) == value for name, value in wanted.items())
        ]
        return [r.summary for r in sorted(found, key=lambda r: r.seed)]


def rows(runs: Sequence[Run]) -> list[Row]:
    """Compares all that was run, seed by seed."""
    found = Runs(runs)
    made = [*_serving(found), *_priorities(found), *_scaling(found)]
    return [row for row in made if row is not None]


def _serving(runs: Runs) -> Iterator[Row]:
    for name, mix in MIXES.items():
        for rate in mix.rates_per_s:
            where = {"mix": name, "rate": rate}
            baseline = runs.of("serving", "baseline", **where)
            for variant, policy in VARIANTS.items():
                ours = runs.of("serving", policy, **where)
                if not ours or not baseline:
                    continue
                for metric in SERVING_METRICS:
                    best = PAPER_BEST.get((name, metric)) if rate == mix.knee_per_s else None
                    yield make_row(
                        "serving",
                        name,
                        rate,
                        metric,
                        baseline,
                        ours,
                        paper_ratio=best,
                        variant=variant,
                    )
        turn = runs.of("serving", "round robin", mix=name, rate=mix.knee_per_s)
        ours = runs.of("serving", "ours", mix=name, rate=mix.knee_per_s)
        if not turn or not ours:
            continue
        for metric in ("prefill_p99_ms", "prefill_mean_ms"):
            paper = {"prefill_p99_ms": 9.9, "prefill_mean_ms": 17.5} if name == "S-S" else {}
            yield make_row(
                "round robin",
                name,
                mix.knee_per_s,
                metric,
                turn,
                ours,
                paper_ratio=paper.get(metric),
            )


def _priorities(runs: Runs) -> Iterator[Row]:
    for cv in PRIORITY_CVS:
        cases = [("no classes", "ours", "defaults")]
        if cv == LEDGERLESS_CV:
            cases.append(("no classes, no ledger", "no ledger", "no ledger"))
        if cv == OPTIONS_CV:
            cases += [("no classes", option, option) for option in CLASS_OPTIONS]
        for without, policy, variant in cases:
            baseline = runs.of("priorities", without, cv=cv)
            ours = runs.of("priorities", policy, cv=cv)
            if not baseline or not ours:
                continue
            for metric in (f"{c}_{m}" for c in ("high", "normal") for m in CLASS_METRICS):
                yield make_row(
                    "priorities",
                    "S-S",
                    PRIORITY_RATE_PER_S,
                    metric,
                    baseline,
                    ours,
                    cv=cv,
                    variant=variant,
                )


def _scaling(runs: Runs) -> Iterator[Row]:
    cases = [("scaling rate", rate, 1.0) for rate in SCALING_RATES_PER_S]
    cases += [("scaling cv", SCALING_CV_RATE_PER_S, cv) for cv in SCALING_CVS]
    for experiment, rate, cv in cases:
        where = {"rate": rate, "cv": cv}
        baseline = runs.of(experiment, "baseline", **where)
        ours = runs.of(experiment, "ours", **where)
        if not baseline or not ours:
            continue
        for metric in ("prefill_p99_ms", "prefill_mean_ms", "instances_mean"):
            yield make_row(experiment, "L-L", rate, metric, baseline, ours, cv=cv)


Bands = Sequence[tuple[float, float]]


def cost_curve(
    runs: Sequence[Run], policy: str, bands: Bands = COST_BANDS
) -> list[tuple[float, float]]:
    """Returns (instances, P99 prefill in s) of each scaling band, medians over the seeds."""
    found = Runs(runs)
    curve = []
    for low, high in bands:
        some = found.of("cost", policy, band_low=low, band_high=high)
        if not some:
            continue
        instances = median(s["instances_mean"] for s in some)
        curve.append((instances, median(s["prefill_p99_ms"] for s in some) / 1000))
    return curve


def instances_saved(
    runs: Sequence[Run], p99_s: float = EQUAL_P99_S, bands: Bands = COST_BANDS
) -> float | None:
    """Returns the part of the baseline's instances that ours does without at the same P99
    prefill, each with the best of its bands; None where a curve does not cross it."""
    baseline, ours = (
        crossing(frontier(cost_curve(runs, policy, bands)), p99_s)
        for policy in ("baseline", "ours")
    )
    return None if baseline is None or ours is None else 1 - ours / baseline


def knees(p99_rows: Sequence[Row]) -> dict[str, list[float]]:
    """Returns the rates of each mix at which the median of the baseline's P99 prefill is within
    KNEE_P99_S, whatever ours is; the middle one of the sweep where there is none."""
    found: dict[str, list[float]] = {}
    for row in p99_rows:
        places = found.setdefault(row.mix, [])
        if KNEE_P99_S[0] <= row.baseline / 1000 <= KNEE_P99_S[1]:
            places.append(row.rate)
    return {mix: rates or [MIXES[mix].knee_per_s] for mix, rates in found.items()}


def _is_at(row: Row, places: Mapping[str, Sequence[float]]) -> bool:
    return row.rate in places[row.mix]


def summary(runs: Sequence[Run], made: Sequence[Row]) -> dict[str, float | None]:
    """Sums the rows up as the goals are stated: at the knees, but for the best of all rates."""
    mine = [r for r in made if r.experiment == "serving" and r.variant == "defaults"]
    by_metric = {m: [r for r in mine if r.metric == m] for m in SERVING_METRICS}

    places = knees(by_metric["prefill_p99_ms"])

    def at_the_knee(metric: str) -> list[float]:
        return [
            geomean([r.ratio for r in by_metric[metric] if r.rate in places[mix] and r.mix == mix])
            for mix in places
        ]

    classes = [r for r in made if r.experiment == "priorities" and r.variant == "defaults"]
    high = [r.ratio for r in classes if r.metric == "high_request_mean_ms"]
    normal = [r.ratio for r in classes if r.metric == "normal_request_mean_ms"]
    losses = [_change(r) for r in by_metric["preemption_loss_mean_ms"] if _is_at(r, places)]
    fragmented = [r.ours for r in by_metric["fragmentation"] if _is_at(r, places)]
    found: dict[str, float | None] = {
        "p99_prefill_geomean": geomean(at_the_knee("prefill_p99_ms")),
        "p99_prefill_best": max((r.ratio for r in by_metric["prefill_p99_ms"]), default=None),
        "p99_prefill_worst_mix": min(at_the_knee("prefill_p99_ms"), default=None),
        "mean_prefill_geomean": geomean(at_the_knee("prefill_mean_ms")),
        "mean_prefill_best": max((r.ratio for r in by_metric["prefill_mean_ms"]), default=None),
        "request_mean_geomean": geomean(at_the_knee("request_mean_ms")),
        "preemption_loss_worst": max(losses, default=None),
        "fragmentation_worst": max(fragmented, default=None),
        "high_request_ratio": median(high) if high else None,
        "normal_request_cost": max((1 / r - 1 for r in normal), default=None),
        "instances_saved_equal_p99": instances_saved(runs),
    }
    return {
        name: None if value is None or not math.isfinite(value) else float(f"{value:.4g}")
        for name, value in found.items()
    }


def _change(row: Row) -> float:
    """Returns how much ours changed the baseline's figure, as a share of it: negative is less."""
    return 1 / row.ratio - 1 if row.ratio else math.inf


def verdict(name: str, value: float | None) -> str:
    """Says whether a goal was met."""
    if name not in GOALS:
        return ""
    goal, realistic = GOALS[name]
    if value is None:
        return "not measured"
    sign = -1 if name in LOWER_IS_BETTER else 1
    if sign * value >= sign * goal:
        return f"met ({goal:g})"
    if realistic is not None and sign * value >= sign * realistic:
        return f"MISSED ({goal:g}), over what is realistic ({realistic:g})"
    return f"MISSED ({goal:g})"


def markdown(made: Sequence[Row]) -> str:
    """Returns the table for docs/benchmarks.md."""
    head = "| experiment | mix | rate | CV | metric | baseline | ours | ratio | paper |"
    lines = [head, "|---|---|---|---|---|---|---|---|---|"]
    for row in made:
        name = row.experiment + ("" if row.variant == "defaults" else f", {row.variant}")
        ratio = f"{_short(row.ratio)} [{_short(row.ratio_min)}-{_short(row.ratio_max)}]"
        paper = "" if row.paper_ratio is None else _short(row.paper_ratio)
        cells: list[Any] = [name, row.mix, f"{row.rate:g}", f"{row.cv:g}", row.metric]
        cells += [_short(row.baseline), _short(row.ours), ratio, paper]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def _short(value: float) -> str:
    if math.isinf(value):
        return "∞"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
