"""The rebalancer's numbers for Prometheus, as the pool process told them last.

Every web process tells all of them. Counters begin anew when the pool process does.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine_pool.rebalancing_facts import RebalancerState, RebalancingFacts
from migration.report import ABORT_CODES

CODES: Final = (*ABORT_CODES, "failed")
"""Labels are bounded: a code that is not among these is `other`."""
_OTHER: Final = "other"


class RebalancerCollector(Collector):
    """Of one web process; registers itself. `look` returns what the store said last, by pool."""

    def __init__(
        self, look: Callable[[], Mapping[str, RebalancingFacts]], clock: Callable[[], float]
    ) -> None:
        self._look = look
        self._clock = clock
        REGISTRY.register(self)

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        return families_of(self._look(), self._clock())


def families_of(facts: Mapping[str, RebalancingFacts], now_unix_s: float) -> list[Metric]:
    """Returns the metrics of all pools; those that need a report are left out without one."""
    paused = GaugeMetricFamily(
        "ferry:rebalancer_paused",
        "1 while an operator has paused automatic moves.",
        labels=["pool"],
    )
    states = GaugeMetricFamily(
        "ferry:rebalancer_state",
        "1 for the state that the rebalancer is in.",
        labels=["pool", "state"],
    )
    rounds = CounterMetricFamily(
        "ferry:rebalancer_rounds", "Rounds of rebalancing.", labels=["pool"]
    )
    started = CounterMetricFamily(
        "ferry:rebalancer_moves_started", "Moves that it began.", labels=["pool"]
    )
    refused = CounterMetricFamily(
        "ferry:rebalancer_moves_refused",
        "Moves that it asked for and that did not begin, or were aborted.",
        labels=["pool", "code"],
    )
    age = GaugeMetricFamily(
        "ferry:rebalancer_last_round_age_seconds", "Since its last round.", labels=["pool"]
    )
    took = GaugeMetricFamily(
        "ferry:rebalancer_round_seconds", "What deciding the last round took.", labels=["pool"]
    )
    for pool, known in facts.items():
        is_paused = known.pause is not None and known.pause.holds(now_unix_s)
        paused.add_metric([pool], float(is_paused))
        report = known.report
        if report is None:
            continue
        for state in RebalancerState:
            states.add_metric([pool, state.value], float(report.state is state))
        rounds.add_metric([pool], report.rounds_total)
        started.add_metric([pool], report.started_total)
        for code, count in _bounded(report.refused_total).items():
            refused.add_metric([pool, code], count)
        if report.last_round_unix_s is not None:
            age.add_metric([pool], max(0.0, now_unix_s - report.last_round_unix_s))
        if report.round_ms is not None:
            took.add_metric([pool], report.round_ms / 1000)
    families: list[Metric] = [paused, states, rounds, started, refused, age, took]
    return [family for family in families if family.samples]


def _bounded(refused: dict[str, int]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for code, count in refused.items():
        label = code if code in CODES else _OTHER
        counts[label] = counts.get(label, 0) + count
    return counts
