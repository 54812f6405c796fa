"""The rebalancer's numbers for Prometheus, as the pool process told them last.

Every web process tells all of them. Counters begin anew when the pool process does.
"""

from collections.abc import Callable, Iterable
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
    """Of one web process; registers itself. `look` returns what the store said last."""

    def __init__(self, look: Callable[[], RebalancingFacts], clock: Callable[[], float]) -> None:
        self._look = look
        self._clock = clock
        REGISTRY.register(self)

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        return families_of(self._look(), self._clock())


def families_of(facts: RebalancingFacts, now_unix_s: float) -> list[Metric]:
    """Returns the metrics; those that need a report are left out without one."""
    paused = GaugeMetricFamily(
        "ferry:rebalancer_paused", "1 while an operator has paused automatic moves."
    )
    paused.add_metric([], float(facts.pause is not None and facts.pause.holds(now_unix_s)))
    report = facts.report
    if report is None:
        return [paused]
    states = GaugeMetricFamily(
        "ferry:rebalancer_state", "1 for the state that the rebalancer is in.", labels=["state"]
    )
    for state in RebalancerState:
        states.add_metric([state.value], float(report.state is state))
    rounds = CounterMetricFamily("ferry:rebalancer_rounds", "Rounds of rebalancing.")
    rounds.add_metric([], report.rounds_total)
    started = CounterMetricFamily("ferry:rebalancer_moves_started", "Moves that it began.")
    started.add_metric([], report.started_total)
    refused = CounterMetricFamily(
        "ferry:rebalancer_moves_refused",
        "Moves that it asked for and that did not begin, or were aborted.",
        labels=["code"],
    )
    for code, count in _bounded(report.refused_total).items():
        refused.add_metric([code], count)
    families: list[Metric] = [paused, states, rounds, started, refused]
    if report.last_round_unix_s is not None:
        age = GaugeMetricFamily("ferry:rebalancer_last_round_age_seconds", "Since its last round.")
        age.add_metric([], max(0.0, now_unix_s - report.last_round_unix_s))
        families.append(age)
    if report.round_ms is not None:
        took = GaugeMetricFamily(
            "ferry:rebalancer_round_seconds", "What deciding the last round took."
        )
        took.add_metric([], report.round_ms / 1000)
        families.append(took)
    return families


def _bounded(refused: dict[str, int]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for code, count in refused.items():
        label = code if code in CODES else _OTHER
        counts[label] = counts.get(label, 0) + count
    return counts
