"""Whether moves would work in this pool, and what they would take: a verdict on what was measured.

Decides only; preflight_run.py gathers, measures and keeps. What a move takes is predicted by the
same arithmetic that moves follow (migration/stages.py), over the slowest way that was measured.
"""

from collections.abc import Sequence
from itertools import permutations
from typing import Final

from controlplane.fleet.preflight_obstacles import differences, obstacles_of
from controlplane.fleet.preflight_values import Forecast, Found, Pair, PairWay, PreflightReport
from migration.ports import KvShape
from migration.stages import Prediction, Way, predict

PAIRS_MAX: Final = 12
"""Ordered pairs that are measured: all of a pool of four, a few seconds."""
LENGTHS: Final = (128, 512, 1024, 3000)
"""Tokens of the requests that are predicted, if nobody asks for others; the longest is added."""
STEP_ASSUMED_MS: Final = 30.0
"""Decode step of an engine that has not made any yet; of the default model on a CPU."""


def pairs_of(serving: Sequence[str], most: int = PAIRS_MAX) -> tuple[list[Pair], list[Pair]]:
    """Returns the ordered pairs to measure and those to leave out.

    Of many instances each is a source and a destination once before any is twice: a neighbour
    distance after the other.
    """
    names = sorted(serving)
    count = len(names)
    ordered = [
        Pair(names[i], names[(i + distance) % count])
        for distance in range(1, count)
        for i in range(count)
    ]
    assert len(ordered) == len(list(permutations(names, 2))), "every ordered pair once"
    return ordered[:most], ordered[most:]


def judge(found: Found, lengths: Sequence[int] = LENGTHS) -> PreflightReport:
    """Makes the report of what was found."""
    shape = next(iter(found.shapes.values()), None)
    has_blocks = shape is not None and shape.block_bytes > 0 and shape.block_size_tokens > 0
    usable = shape if has_blocks else None
    worked = [w for w in found.ways if w.bytes_per_s]
    slowest = min(worked, key=lambda w: w.bytes_per_s or 0.0, default=None)
    step_ms = found.step_ms or STEP_ASSUMED_MS
    forecasts = _forecasts(found, usable, slowest, step_ms, lengths)
    ok, verdict = _verdict(found, forecasts)
    return PreflightReport(
        at_unix_s=found.at_unix_s,
        ok=ok,
        verdict=verdict,
        serving=found.serving,
        token_bytes=usable.token_bytes if usable else None,
        block_bytes=usable.block_bytes if usable else None,
        block_size_tokens=usable.block_size_tokens if usable else None,
        ways=found.ways,
        left_out=found.left_out,
        slowest=Pair(slowest.source, slowest.destination) if slowest else None,
        step_ms=step_ms,
        is_step_assumed=found.step_ms is None,
        forecasts=forecasts,
        self_test=found.self_test,
        obstacles=obstacles_of(found),
    )


def lengths_of(wanted: Sequence[int], max_model_len: int | None) -> list[int]:
    """Returns the lengths to predict, ascending: those that fit the model, and the longest."""
    fitting = {n for n in wanted if max_model_len is None or n <= max_model_len}
    if max_model_len is not None:
        fitting.add(max_model_len)
    return sorted(fitting)


def _verdict(found: Found, forecasts: Sequence[Forecast]) -> tuple[bool, str]:
    blocked = _why_blocked(found)
    if blocked:
        return False, f"Moves do not work here: {blocked}."
    failed = [w for w in found.ways if w.bytes_per_s is None]
    names = ", ".join(f"{w.source} to {w.destination}" for w in failed[:3])
    but = f", but not from {names}" if failed else ""
    if not forecasts:
        return True, f"Moves work here{but}; how long they take is not known yet."
    low = min(f.downtime_ms for f in forecasts)
    high = max(f.downtime_ms for f in forecasts)
    wait = f"{low:.0f} ms" if round(low) == round(high) else f"{low:.0f}-{high:.0f} ms"
    return True, f"Moves work here{but}: a reader waits about {wait}, at every length."


def _why_blocked(found: Found) -> str:
    """Returns what keeps every request where it is, "" when nothing does."""
    if not found.is_switched_on:
        return "they are switched off (FERRY_MIGRATION)"
    if found.allowed is False:
        return found.why.rstrip(".") or "the pool process does not allow them"
    if len(found.serving) < 2:
        count = "no instance serves" if not found.serving else f"only {found.serving[0]} serves"
        return f"{count}, and a move needs two"
    if different := differences(found.shapes):
        return different
    if found.self_test is not None and not found.self_test.ok and found.self_test.is_conclusive:
        return f"the self-test failed: {found.self_test.detail.rstrip('.')}"
    if found.ways and not any(w.bytes_per_s for w in found.ways):
        return f"no instance reaches another one ({found.ways[0].problem.rstrip('.')})"
    if not found.ways:
        return "no way between two instances could be measured"
    return ""


def _forecasts(
    found: Found,
    shape: KvShape | None,
    slowest: PairWay | None,
    step_ms: float,
    lengths: Sequence[int],
) -> tuple[Forecast, ...]:
    if shape is None or slowest is None or not slowest.bytes_per_s:
        return ()
    way = Way(slowest.bytes_per_s, slowest.round_trip_ms or 0.0)
    return tuple(
        _forecast(
            predict(
                tokens=tokens,
                block_size_tokens=shape.block_size_tokens,
                block_bytes=shape.block_bytes,
                way=way,
                step_ms=step_ms,
                limits=found.limits,
                copy_share=found.copy_share,
            )
        )
        for tokens in lengths_of(lengths, found.max_model_len)
    )


def _forecast(told: Prediction) -> Forecast:
    return Forecast(
        told.tokens,
        len(told.copy_blocks) + 1,
        told.copy_blocks,
        told.last_blocks,
        told.copy_ms,
        told.downtime_ms,
        told.bytes,
    )
