"""Scaling's numbers for Prometheus, as the loop told them last. Every web process tells all."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Final

import redis
import redis.asyncio
from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controlplane.fleet.models import ScalingMode
from controlplane.scaling import tally
from controlplane.scaling.models import DecisionKind
from controlplane.scaling.tally import Tally
from engine_pool.policy.scaling_facts import Barrier, Signal

logger = logging.getLogger(__name__)

READ_TIMEOUT_S: Final = 1.0
"""Whoever scrapes waits so long at most; then it gets what was read before."""
_OTHER: Final = "other"
_DIRECTIONS: Final = frozenset(kind.value for kind in DecisionKind)
_REASONS: Final = frozenset([*(s.value for s in Signal), *(b.value for b in Barrier if b)])


class ScalingCollector(Collector):
    """Of one web process; registers itself."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._known = Tally({}, {})
        REGISTRY.register(self)

    async def read(self, store: "redis.asyncio.Redis[bytes]") -> None:
        """Reads what is to be told; without an answer it stays what it was."""
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                self._known = await tally.read(store)
        except (redis.RedisError, OSError, TimeoutError) as error:
            logger.debug("scaling's numbers are old: %s", type(error).__name__)
        except ValueError as error:
            logger.warning("scaling's numbers cannot be read: %s", error)

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        return families_of(self._known, self._clock())


def families_of(known: Tally, now_unix_s: float) -> list[Metric]:
    """Returns the metrics of all pools that are checked."""
    decisions = CounterMetricFamily(
        "ferry:scaling_decisions",
        "Decisions of scaling by direction, and what they followed or what forbade them.",
        labels=["pool", "direction", "reason"],
    )
    counts: dict[tuple[str, str, str], int] = {}
    for (pool, direction, reason), count in known.counts.items():
        # Labels are bounded, whatever another version has counted.
        labels = (pool, _of(direction, _DIRECTIONS), _of(reason, _REASONS))
        counts[labels] = counts.get(labels, 0) + count
    for labels, count in counts.items():
        decisions.add_metric(labels, count)
    modes = GaugeMetricFamily(
        "ferry:scaling_mode", "1 for the mode that scaling is in.", labels=["pool", "mode"]
    )
    gauges = {
        "wanted": GaugeMetricFamily(
            "ferry:instances_wanted", "Instances that are wanted to serve.", labels=["pool"]
        ),
        "min_instances": GaugeMetricFamily(
            "ferry:instances_wanted_min", "The least in force, of pool or window.", labels=["pool"]
        ),
        "max_instances": GaugeMetricFamily(
            "ferry:instances_wanted_max", "The most in force, of pool or window.", labels=["pool"]
        ),
        "silent": GaugeMetricFamily(
            "ferry:scaling_silent_instances",
            "Instances that should serve and had no report that could be used.",
            labels=["pool"],
        ),
        "average_steps": GaugeMetricFamily(
            "ferry:scaling_average_freeness",
            "Average freeness at the last check, decode steps; none when nothing ran.",
            labels=["pool"],
        ),
    }
    age = GaugeMetricFamily(
        "ferry:scaling_check_age_seconds", "Since the last check.", labels=["pool"]
    )
    for pool, report in known.reports.items():
        for mode in ScalingMode.values:
            modes.add_metric([pool, mode], float(report.mode == mode))
        for name, family in gauges.items():
            if (value := getattr(report, name)) is not None:
                family.add_metric([pool], value)
        age.add_metric([pool], max(0.0, now_unix_s - report.checked_unix_s))
    families: list[Metric] = [decisions, modes, *gauges.values(), age]
    return [family for family in families if family.samples]


def _of(label: str, known: frozenset[str]) -> str:
    return label if label in known else _OTHER


collector: Final = ScalingCollector()
