"""Percentiles of the last minute out of the gateway's own histograms.

A histogram only ever grows; the difference of two states of it is what happened between them, and
a percentile of merged buckets is honest where a mean of percentiles is not. Of this web process
alone.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from prometheus_client import Histogram

from controlplane.fleet.tiles import LATENCY_WINDOW_S, Latency

STATE_EVERY_S: Final = 2.0
"""How exactly the window's start is known."""

Buckets = tuple[tuple[float, float], ...]
"""(upper bound in s, how many so far up to it), bounds growing, the last one infinite."""


def read_buckets(histogram: Histogram, labels: Mapping[str, str] | None = None) -> Buckets:
    """Returns the histogram's state where it has these labels, all others together."""
    wanted = (labels or {}).items()
    counts: dict[float, float] = {}
    for metric in histogram.collect():
        for sample in metric.samples:
            if sample.name.endswith("_bucket") and wanted <= sample.labels.items():
                bound_s = float(sample.labels["le"])
                counts[bound_s] = counts.get(bound_s, 0.0) + sample.value
    return tuple(sorted(counts.items()))


def percentile_ms(buckets: Sequence[tuple[float, float]], share: float) -> float | None:
    """Returns a percentile, in ms, as if values lay evenly within a bucket; None without values.

    What lies above the last finite bound counts as that bound: it is at least so much.
    """
    total = buckets[-1][1] if buckets else 0.0
    if total <= 0:
        return None
    wanted = share * total
    low_s = below = 0.0
    for bound_s, count in buckets:
        if count >= wanted and count > below:
            if bound_s == float("inf"):
                break
            return 1000 * (low_s + (bound_s - low_s) * (wanted - below) / (count - below))
        low_s, below = (bound_s if bound_s != float("inf") else low_s), count
    return 1000 * low_s


class LatencyWindow:
    """TTFT of the requests that ended in the last minute."""

    def __init__(self, read: Callable[[], Buckets]) -> None:
        self._read = read
        self._states: deque[tuple[float, Buckets]] = deque()

    def latency(self, now_s: float) -> Latency:
        """Returns the window's percentiles; call it about as often as a page looks."""
        state = self._read()
        if not self._states or now_s - self._states[-1][0] >= STATE_EVERY_S:
            self._states.append((now_s, state))
        while len(self._states) > 1 and self._states[1][0] <= now_s - LATENCY_WINDOW_S:
            self._states.popleft()
        before = dict(self._states[0][1])
        grown = [(bound_s, count - before.get(bound_s, 0.0)) for bound_s, count in state]
        p50, p90, p99 = (percentile_ms(grown, share) for share in (0.5, 0.9, 0.99))
        return Latency(p50, p90, p99, round(grown[-1][1]) if grown else 0)
