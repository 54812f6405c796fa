"""What a scaled pool is judged by: how often it turned round, what it kept, what it cost."""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

OSCILLATION_S: Final = 120.0
"""A change that is taken back within so long was none that the load asked for: no trace's load
turns round within it but the sawtooth's."""

Figures = dict[str, float]
Spread = dict[str, float]


@dataclass(frozen=True, slots=True)
class Change:
    at_s: float
    by: int
    """Instances: more than 0 added or woken, less drained."""


def reversals(changes: Sequence[Change], within_s: float) -> int:
    """Returns how often a change went the other way than the last one, so soon after it."""
    pairs = itertools.pairwise(changes)
    return sum((a.by > 0) is not (b.by > 0) and b.at_s - a.at_s <= within_s for a, b in pairs)


def spread(values: Sequence[float]) -> Spread:
    return {
        "median": round(statistics.median(values), 3),
        "min": round(min(values), 3),
        "max": round(max(values), 3),
    }


def summed(runs: Sequence[Figures]) -> dict[str, Spread]:
    """Returns median, least and most of every figure over repeats."""
    return {name: spread([run[name] for run in runs]) for name in runs[0]}


def table(by_trace: Mapping[str, Mapping[str, Mapping[str, Spread]]]) -> str:
    """Returns the medians for people, a line a trace and rule."""
    head = (
        f"{'trace':9} {'rule':14} {'TTFT p50':>9} {'TTFT p99':>9} {'instance-s':>10} {'most':>5} "
        f"{'least':>5} {'changes':>7} {'turns':>5} {'oscillations':>12} {'cut':>4}"
    )
    lines = [head]
    for trace, rules in by_trace.items():
        for rule, figures in rules.items():
            m = {name: values["median"] for name, values in figures.items()}
            lines.append(
                f"{trace:9} {rule:14} {m['ttft_p50_s']:8.2f}s {m['ttft_p99_s']:8.2f}s "
                f"{m['instance_s']:10.0f} {m['most']:5.0f} {m['least']:5.0f} {m['changes']:7.0f} "
                f"{m['turns']:5.0f} {m['oscillations']:12.0f} {m['would_be_cut']:4.0f}"
            )
    return "\n".join(lines)
