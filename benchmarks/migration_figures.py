"""Turns what the migration benchmark saw into its figures. Pure."""

import itertools
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.migration_engine import LIVE, STOP_AND_COPY, Step
from migration.report import MoveReport

RECOMPUTE: Final = "recompute"
REFERENCE_LENGTH: Final = 3000
"""Of the goal that compares live with recompute."""
GROWTH_MAX: Final = 1.3
GAPS_MAX: Final = 3.0
GAIN_MIN: Final = 40.0
SLOWDOWN_MAX: Final = 1.03


@dataclass(frozen=True, slots=True)
class Moved:
    """One move that was made. Monotonic seconds, milliseconds."""

    method: str
    length: int
    is_loaded: bool
    asked_s: float
    source_times_s: tuple[float, ...]
    """When the reader saw each token of the source."""
    gap_ms: float
    report: MoveReport | None
    source_steps: list[Step]
    destination_steps: list[Step]

    @property
    def decode_gaps_ms(self) -> list[float]:
        """Gaps between two tokens before the move was asked for."""
        times_s = [t for t in self.source_times_s if t <= self.asked_s]
        return [(b - a) * 1000 for a, b in itertools.pairwise(times_s)]

    def rounds_ms(self, steps: Sequence[Step]) -> tuple[list[float], list[float]]:
        """Returns the times from step to step before the move was asked for, and from then until
        the source's last token. Steps with a prefill are left out."""
        before: list[float] = []
        during: list[float] = []
        for last, this in itertools.pairwise(steps):
            if this.is_prefill or last.is_prefill or not this.outputs:
                continue
            round_ms = (this.ended_s - last.ended_s) * 1000
            if this.ended_s <= self.asked_s:
                before.append(round_ms)
            elif last.ended_s >= self.asked_s and this.ended_s <= self.source_times_s[-1]:
                during.append(round_ms)
        return before, during


def figures(moved: Sequence[Moved]) -> dict[str, Any]:
    """Returns the figures by length, idle and loaded, and the goals."""
    lengths = sorted({m.length for m in moved})
    result: dict[str, Any] = {}
    for name, is_loaded in (("lengths", False), ("loaded", True)):
        rows = {
            str(length): row([m for m in moved if m.length == length and m.is_loaded is is_loaded])
            for length in lengths
        }
        result[name] = rows
    loaded = [m for m in moved if m.is_loaded and m.method == LIVE]
    result["slowdown"] = {
        "source": slowdown(loaded, lambda m: m.source_steps),
        "destination": slowdown(loaded, lambda m: m.destination_steps),
    }
    result["goals"] = goals(result, lengths)
    return result


def row(moved: Sequence[Moved]) -> dict[str, Any]:
    """Returns the figures of one length and load."""
    live = [m for m in moved if m.method == LIVE]
    gap_ms = statistics.median(gap for m in moved for gap in m.decode_gaps_ms)
    downtime = spread(m.gap_ms for m in live)
    return {
        "downtime_ms": downtime,
        "median_gap_ms": round(gap_ms, 2),
        "downtime_gaps": round(downtime["median"] / gap_ms, 2),
        "stop_copy_ms": spread(m.gap_ms for m in moved if m.method == STOP_AND_COPY),
        "recompute_ms": spread(m.gap_ms for m in moved if m.method == RECOMPUTE),
        "source_step_slowdown": slowdown(live, lambda m: m.source_steps),
        "destination_step_slowdown": slowdown(live, lambda m: m.destination_steps),
        "parts_ms": parts_ms(live),
        "copies": statistics.median(copies(m) for m in live),
    }


def spread(values: Iterable[float]) -> dict[str, float]:
    """Returns median, quartiles, 99th percentile (of few values: nearly the largest)."""
    known = sorted(values)
    if not known:
        return dict.fromkeys(("median", "p25", "p75", "p99"), float("nan"))
    cuts = statistics.quantiles(known, n=100, method="inclusive") if len(known) > 1 else known * 99
    return {
        "median": round(cuts[49], 2),
        "p25": round(cuts[24], 2),
        "p75": round(cuts[74], 2),
        "p99": round(cuts[98], 2),
    }


def slowdown(
    moved: Sequence[Moved], steps_of: "Callable[[Moved], list[Step]]"
) -> dict[str, float] | None:
    """Returns how much longer an engine's rounds are while moves run: ratios of the medians and of
    the means without the longest twentieth. None when there were none."""
    before: list[float] = []
    during: list[float] = []
    for move in moved:
        one, other = move.rounds_ms(steps_of(move))
        before += one
        during += other
    if not before or not during:
        return None
    return {
        "median": round(statistics.median(during) / statistics.median(before), 3),
        "mean": round(trimmed_mean(during) / trimmed_mean(before), 3),
        "rounds": len(during),
    }


def trimmed_mean(values: Sequence[float]) -> float:
    """On shared cores a few rounds are ten times as long, whether something moves or not."""
    kept = sorted(values)[: max(1, round(len(values) * 0.95))]
    return statistics.fmean(kept)


def copies(move: Moved) -> int:
    return sum(not s.is_last for s in move.report.stages) if move.report else 0


def parts_ms(moved: Sequence[Moved]) -> dict[str, float]:
    """Returns where the downtime goes, medians, as the source's report tells it."""
    rows = [one for m in moved if m.report and (one := parts_of(m.report))]
    return {
        name: round(statistics.median(r[name] for r in rows), 2)
        for name in (rows[0] if rows else ())
    }


def parts_of(report: MoveReport) -> dict[str, float]:
    """Splits a committed move's downtime. {} when its report lacks something."""
    said = {m.name: m.at_ms for m in report.messages}
    times = (report.paused_ms, report.committed_ms, report.first_token_ms)
    if None in times or not report.source_token_ms or "Received" not in said:
        return {}
    paused_ms, committed_ms, first_ms = (t for t in times if t is not None)
    return {
        "last_token_to_park": paused_ms - report.source_token_ms[-1],
        "park_to_received": said["Received"] - paused_ms,
        "received_to_commit": said["Commit"] - said["Received"],
        "commit_to_committed": committed_ms - said["Commit"],
        "committed_to_token": first_ms - committed_ms,
    }


def goals(result: dict[str, Any], lengths: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Returns each goal, what was reached and whether it is met, idle and loaded."""
    met: dict[str, dict[str, Any]] = {}
    for name in ("lengths", "loaded"):
        rows = result[name]
        first, last = rows[str(lengths[0])], rows[str(lengths[-1])]
        growth = last["downtime_ms"]["median"] / first["downtime_ms"]["median"]
        met[f"growth_{name}"] = goal(growth, GROWTH_MAX, is_most=True)
        met[f"gaps_{name}"] = goal(last["downtime_gaps"], GAPS_MAX, is_most=True)
        if (known := rows.get(str(REFERENCE_LENGTH))) is not None:
            gain = known["recompute_ms"]["median"] / known["downtime_ms"]["median"]
            met[f"gain_{name}"] = goal(gain, GAIN_MIN, is_most=False)
    for side, ratio in result["slowdown"].items():
        if ratio is not None:
            met[f"slowdown_{side}"] = goal(ratio["mean"], SLOWDOWN_MAX, is_most=True)
    return met


def goal(reached: float, bound: float, *, is_most: bool) -> dict[str, Any]:
    is_met = reached <= bound if is_most else reached >= bound
    return {"reached": round(reached, 3), "goal": bound, "met": is_met}


def table(result: dict[str, Any]) -> str:
    """Returns the figures for a reader."""
    lines = []
    for name, title in (("lengths", "idle"), ("loaded", "4 more requests on each engine")):
        lines += [
            title,
            f"{'tokens':>7} {'live':>16} {'stop-copy':>16} {'recompute':>18}   gap  slowdown",
        ]
        for length, r in result[name].items():
            slow = r["source_step_slowdown"]
            lines.append(
                f"{length:>7} {_cell(r['downtime_ms']):>16} {_cell(r['stop_copy_ms']):>16}"
                f" {_cell(r['recompute_ms']):>18} {r['median_gap_ms']:5.1f}"
                f"  {slow['mean'] if slow else '-'}   {r['parts_ms']}"
            )
    for name, g in result["goals"].items():
        word = "met" if g["met"] else "MISSED"
        lines.append(f"{name:<22} {g['reached']:>8} goal {g['goal']:>6}  {word}")
    return "\n".join(lines)


def _cell(s: dict[str, float]) -> str:
    return f"{s['median']:.1f} ({s['p25']:.1f}-{s['p75']:.1f})"
