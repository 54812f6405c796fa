"""Turns what the rebalancing benchmark saw into its figures. Pure.

Ratios are without / with, so above 1 rebalancing (or the class) is better. They are taken round by
round, over the same arrivals; what is given is the median and the spread over the rounds.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.rebalance_load import Outcome, Seen

Figures = dict[str, float]
Ratio = dict[str, float | None]
RATIOS: Final = (
    "ttft_mean_ms",
    "ttft_p50_ms",
    "ttft_p99_ms",
    "itl_p50_ms",
    "itl_p99_ms",
    "latency_mean_ms",
    "latency_p99_ms",
    "preemptions",
)
SHOWN_OF_CLASSES: Final = (
    "requests",
    "ttft_mean_ms",
    "ttft_p50_ms",
    "ttft_p99_ms",
    "latency_mean_ms",
)


@dataclass(frozen=True, slots=True)
class Round:
    """One round of one mode."""

    outcome: Outcome
    preemptions: int
    moves: int
    aborted: int


def percentile(values: Iterable[float], percent: float) -> float:
    """Returns the value that so many percent are not above (nearest rank); nan of nothing."""
    known = sorted(values)
    if not known:
        return math.nan
    return known[max(0, math.ceil(len(known) * percent / 100) - 1)]


def figures_of(seen: Sequence[Seen]) -> Figures:
    """Returns the latencies of some requests."""
    ttft = [s.ttft_ms for s in seen]
    latency = [s.latency_ms for s in seen]
    gaps = [gap for s in seen for gap in s.gaps_ms]
    return {
        "requests": len(seen),
        "ttft_mean_ms": _mean(ttft),
        "ttft_p50_ms": percentile(ttft, 50),
        "ttft_p99_ms": percentile(ttft, 99),
        "itl_p50_ms": percentile(gaps, 50),
        "itl_p99_ms": percentile(gaps, 99),
        "latency_mean_ms": _mean(latency),
        "latency_p99_ms": percentile(latency, 99),
    }


def round_figures(one: Round) -> Figures:
    tokens = sum(s.output_tokens for s in one.outcome.seen)
    return figures_of(one.outcome.seen) | {
        "preemptions": one.preemptions,
        "moves": one.moves,
        "moves_aborted": one.aborted,
        "failures": len(one.outcome.failures),
        "tokens_per_s": tokens / one.outcome.wall_s,
        "client_late_ms": one.outcome.late_ms,
    }


def mode_figures(rounds: Sequence[Round]) -> dict[str, Any]:
    """Returns the figures of all requests of a mode together, and those of each round."""
    pooled = figures_of([s for one in rounds for s in one.outcome.seen])
    each = [round_figures(one) for one in rounds]
    counted = ("preemptions", "moves", "moves_aborted", "failures")
    pooled |= {name: sum(f[name] for f in each) for name in counted}
    pooled["client_late_ms"] = max(f["client_late_ms"] for f in each)
    return {**_rounded(pooled), "each": [_rounded(f) for f in each]}


def ratios_of(
    without: Sequence[Figures], with_it: Sequence[Figures], names: Sequence[str]
) -> dict[str, Ratio]:
    """Returns median, least and largest ratio of each figure over the rounds."""
    return {name: spread([f[name] for f in without], [f[name] for f in with_it]) for name in names}


def spread(without: Sequence[float], with_it: Sequence[float]) -> Ratio:
    """Returns how many times less there is with it. Null where there was nothing with it: `total`
    is the ratio of the sums then, if at least one round had some."""
    pairs = [a / b for a, b in zip(without, with_it, strict=True) if b and _is_number(a / b)]
    total = sum(with_it)
    return {
        "median": round(statistics.median(pairs), 3) if pairs else None,
        "min": round(min(pairs), 3) if pairs else None,
        "max": round(max(pairs), 3) if pairs else None,
        "total": round(sum(without) / total, 3) if _is_number(total) and total else None,
    }


def class_figures(
    plain: Sequence[Round], classed: Sequence[Round], high: Sequence[set[int]]
) -> dict[str, Any]:
    """Compares the requests of each class with the same requests in rounds without classes.
    `high`: indices of the requests that have the high class, round by round."""
    result: dict[str, Any] = {}
    names = [n for n in RATIOS if n != "preemptions"]
    for name, wanted in (("high", True), ("normal", False)):
        without, with_it = (
            [
                [s for s in one.outcome.seen if (s.index in chosen) is wanted]
                for one, chosen in zip(rounds, high, strict=True)
            ]
            for rounds in (plain, classed)
        )
        result[name] = {
            "without": _rounded(figures_of([s for one in without for s in one])),
            "with": _rounded(figures_of([s for one in with_it for s in one])),
            "ratios": ratios_of(
                [figures_of(s) for s in without], [figures_of(s) for s in with_it], names
            ),
        }
    each = [round_figures(one) for one in classed]
    for name in ("preemptions", "moves", "failures"):
        result[name] = sum(f[name] for f in each)
    return result


def table(result: dict[str, Any]) -> str:
    """Returns the figures for a reader."""
    off, on, ratios = result["off"], result["on"], result["ratios"]
    lines = [f"{'':24}{'off':>10}{'on':>10}   off / on: median [min-max] of the rounds"]
    lines += [
        _line(name, off[name], on[name], ratios.get(name))
        for name in (*RATIOS, "moves", "moves_aborted", "failures")
    ]
    if classes := result.get("classes"):
        lines += ["", f"{'a tenth is high':24}{'without':>10}{'with':>10}   without / with"]
        for kind in ("high", "normal"):
            found = classes[kind]
            lines += [
                _line(f"{kind} {name}", found["without"][name], found["with"][name], ratio)
                for name, ratio in {"requests": None, **found["ratios"]}.items()
                if name in SHOWN_OF_CLASSES
            ]
    return "\n".join(lines)


def _line(name: str, one: float | None, other: float | None, ratio: Ratio | None) -> str:
    numbers = "".join(f"{'-' if x is None else f'{x:,.0f}':>10}" for x in (one, other))
    return f"{name:24}{numbers}   {'' if ratio is None else _ratio(ratio)}".rstrip()


def _ratio(s: Ratio) -> str:
    if s["median"] is None:
        return "-"
    return f"{s['median']:.2f} [{s['min']:.2f}-{s['max']:.2f}], of the sums {s['total'] or 0:.2f}"


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else math.nan


def _is_number(value: float) -> bool:
    return math.isfinite(value)


def _rounded(figures: Figures) -> dict[str, float | None]:
    """JSON has no nan."""
    return {k: round(v, 2) if _is_number(v) else None for k, v in figures.items()}


def failures_of(rounds: Iterable[Round]) -> list[str]:
    return [why for one in rounds for why in one.outcome.failures]
