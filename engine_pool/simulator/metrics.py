"""What a simulated run is judged by: looks at the pool at even distances, and sums over requests.

Durations in results are milliseconds. Shares are parts of 1.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields

from engine_pool.policy.freeness import freeness_of
from engine_pool.policy.settings import HeadroomRule
from engine_pool.simulator.instance_model import Instance

SAMPLES = 2000
"""Looks at the pool between first and last arrival: means of shares are good to 0.1 % by then."""
SERIES_POINTS = 600
"""Most points of a chart's line."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The pool at one moment."""

    time_s: float
    running: float
    waiting: float
    free_share: float
    freeness_mean: float | None
    """Decode steps, over the instances where it is a number; None when there is none."""
    freeness_lowest: float | None
    fragmentation: float
    """Demand of blocked heads of lines that the pool's free memory together could serve, as a share
    of the pool's memory (Llumnix, OSDI 2024, section 6.3)."""
    fragmentation_nowhere: float
    """The same for heads only that fit into no instance at all."""
    instances: float
    preemptions: float
    """Since the start, like moves."""
    moves: float


def look(
    now_s: float,
    pool: Sequence[Instance],
    headroom: HeadroomRule,
    *,
    held: int,
    held_head_tokens: int,
    instances: int,
    moves: int,
    preemptions: int,
) -> Sample:
    """Looks at the instances that serve or drain; `instances` counts starting ones, too. `held`:
    requests that wait at the gateway, and the demand of their head."""
    standings = [i.engine.standing for i in pool]
    capacity = sum(s.capacity_tokens for s in standings)
    free = sum(s.free_tokens for s in standings)
    steps = [f for s in standings if math.isfinite(f := freeness_of(s, headroom))]
    blocked = [t for i in pool if (t := i.engine.blocked_tokens)]
    if held_head_tokens and not any(i.engine.has_room(held_head_tokens) for i in pool):
        blocked.append(held_head_tokens)
    nowhere = [t for t in blocked if not any(i.engine.has_room(t) for i in pool)]
    return Sample(
        time_s=now_s,
        running=sum(s.batch for s in standings),
        waiting=sum(s.waiting for s in standings) + held,
        free_share=free / capacity if capacity else 0.0,
        freeness_mean=sum(steps) / len(steps) if steps else None,
        freeness_lowest=min(steps, default=None),
        fragmentation=_served(blocked, free) / capacity if capacity else 0.0,
        fragmentation_nowhere=_served(nowhere, free) / capacity if capacity else 0.0,
        instances=instances,
        preemptions=preemptions,
        moves=moves,
    )


def _served(demands: Iterable[int], free_tokens: int) -> int:
    """Returns how much of the demands fits into so much memory, whole requests only."""
    served = 0
    for demand in sorted(demands):
        if served + demand > free_tokens:
            break
        served += demand
    return served


class Series:
    """A bounded list of samples: when it is full, each two neighbours become one."""

    def __init__(self, points: int = SERIES_POINTS) -> None:
        self._points = points
        self._merged: list[Sample] = []
        self._pending: list[Sample] = []
        self._each = 1

    def add(self, sample: Sample) -> None:
        self._pending.append(sample)
        if len(self._pending) < self._each:
            return
        self._merged.append(_merge(self._pending))
        self._pending = []
        if len(self._merged) >= self._points:
            pairs = zip(self._merged[::2], self._merged[1::2], strict=False)
            self._merged = [_merge(two) for two in pairs]
            self._each *= 2

    def to_dict(self) -> dict[str, list[float | None]]:
        """Returns a list a field, ready for a chart."""
        rest = [_merge(self._pending)] if self._pending else []
        rows = [asdict(s) for s in (*self._merged, *rest)]
        return {f.name: [row[f.name] for row in rows] for f in fields(Sample)}


def _merge(samples: Sequence[Sample]) -> Sample:
    """Means, but for the lowest freeness and what is counted since the start."""
    last, count = samples[-1], len(samples)
    lowest = [s.freeness_lowest for s in samples if s.freeness_lowest is not None]
    return Sample(
        time_s=last.time_s,
        running=sum(s.running for s in samples) / count,
        waiting=sum(s.waiting for s in samples) / count,
        free_share=sum(s.free_share for s in samples) / count,
        freeness_mean=mean([s.freeness_mean for s in samples if s.freeness_mean is not None]),
        freeness_lowest=min(lowest, default=None),
        fragmentation=sum(s.fragmentation for s in samples) / count,
        fragmentation_nowhere=sum(s.fragmentation_nowhere for s in samples) / count,
        instances=sum(s.instances for s in samples) / count,
        preemptions=last.preemptions,
        moves=last.moves,
    )


def mean(values: Sequence[float]) -> float | None:
    """Returns None for nothing."""
    return sum(values) / len(values) if values else None


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Returns the value that so many percent are not above (nearest rank); None for nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
