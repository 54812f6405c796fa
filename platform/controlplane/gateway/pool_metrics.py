"""The engines' numbers for Prometheus, taken from their last reports when somebody asks."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from prometheus_client import REGISTRY, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controlplane.fleet.watch import degraded
from engine_pool.replay_rules import CODES
from engine_pool.replay_tally import Cause
from engine_pool.types import InstanceLoad, PriorityClass
from engine_pool.view import Change
from migration.report import ABORT_CODES, MoveReport

if TYPE_CHECKING:
    from controlplane.gateway.runtime import Runtime

_LABELS: Final = ["model_name", "instance"]
_GAUGES: Final = {
    "vllm:num_requests_running": "Requests in the batch.",
    "vllm:num_requests_waiting": "Requests in the queue.",
    "vllm:kv_cache_usage_perc": "Share of the KV cache in use, 0 to 1.",
}
_COUNTERS: Final = {
    "vllm:num_preemptions": "Preemptions since the engine's start.",
    "vllm:prompt_tokens": "Prompt tokens since the engine's start.",
    "vllm:generation_tokens": "Output tokens since the engine's start.",
    "ferry:engine_requests_ended": "Requests that ended since the engine's start.",
}


MIGRATIONS: Final = Counter(
    "ferry:migrations",
    "Moves that ended while this web process listened. reason: who asked; result: committed, or the"
    " code of the abort. Every web process counts all of them.",
    ["reason", "result"],
)
DOWNTIME_S: Final = Histogram(
    "ferry:migration_downtime_seconds",
    "Of committed moves: last token at the source to the first at the destination.",
    buckets=(0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10),
)
_REASONS: Final = ("operator", "rebalancer", "drain", "self-test")
_RESULTS: Final = ("committed", *ABORT_CODES)
_OTHER: Final = "other"
_ENDS_KNOWN: Final = 1000
"""Ended moves that are recognised when they are told of twice."""


class MoveCounter:
    """Counts moves by their ends, as they are heard of; a listener of the live view."""

    def __init__(self) -> None:
        self._ended: deque[str] = deque(maxlen=_ENDS_KNOWN)

    def __call__(self, change: Change) -> None:
        if not isinstance(change, MoveReport) or not change.state.is_end:
            return
        if change.migration_id in self._ended:
            return
        self._ended.append(change.migration_id)
        result = change.abort_code or change.state.value
        # Labels are bounded: an operator's name, or a code that is not known, is none.
        who = change.asked_by.partition(" ")[0]
        MIGRATIONS.labels(
            who if who in _REASONS else _OTHER, result if result in _RESULTS else _OTHER
        ).inc()
        if change.downtime_ms is not None and not change.abort_code:
            DOWNTIME_S.observe(change.downtime_ms / 1000)


class PoolCollector(Collector):
    """Tells of all pools of a web process: two collectors of the same metrics would collide."""

    def __init__(self) -> None:
        self._runtimes: list[Runtime] = []

    def follow(self, runtime: "Runtime") -> None:
        runtime.client.view.add_listener(MoveCounter())
        self._runtimes.append(runtime)

    def forget(self, runtime: "Runtime") -> None:
        """Tells nothing of a pool any more; nothing when it is not followed."""
        self._runtimes = [known for known in self._runtimes if known is not runtime]

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        runtimes = list(self._runtimes)
        if runtimes:
            yield from _engines(runtimes)
            yield from _instances(runtimes)
            yield from _queues(runtimes)
            yield from _replays(runtimes)
            yield _degraded(runtimes)


def _engines(runtimes: Sequence["Runtime"]) -> Iterable[Metric]:
    families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {
        **{n: GaugeMetricFamily(n, text, labels=_LABELS) for n, text in _GAUGES.items()},
        **{n: CounterMetricFamily(n, text, labels=_LABELS) for n, text in _COUNTERS.items()},
    }
    for runtime in runtimes:
        for load in list(runtime.client.view.loads.values()):
            for name, value in _values(load).items():
                families[name].add_metric([runtime.model_name, load.instance], value)
    yield from families.values()


def _instances(runtimes: Sequence["Runtime"]) -> Iterable[Metric]:
    states = GaugeMetricFamily("ferry:instances", "Instances by state.", labels=["state", "pool"])
    moving = GaugeMetricFamily(
        "ferry:migrations_going_on", "Moves that go on now.", labels=["pool"]
    )
    for runtime in runtimes:
        view, pool = runtime.client.view, runtime.client.config.pool
        known = [s.state for s in list(view.statuses.values())]
        for state in sorted(set(known)):
            states.add_metric([state.value, pool], known.count(state))
        going_on = sum(not m.state.is_end for m in list(view.moves.values()))
        moving.add_metric([pool], going_on)
    yield states
    yield moving


def _replays(runtimes: Sequence["Runtime"]) -> Iterable[Metric]:
    replayed = CounterMetricFamily(
        "ferry:replayed_requests",
        "Requests that another engine has taken after theirs was lost, read by this web process."
        " reason: died, left, or forgotten.",
        labels=["reason", "pool"],
    )
    ended = CounterMetricFamily(
        "ferry:replays_refused",
        "Requests that ended when their engine was lost, by the error's code.",
        labels=["code", "pool"],
    )
    waiting = GaugeMetricFamily(
        "ferry:replays_waiting",
        "Requests of lost engines that wait in this web process for another engine.",
        labels=["pool"],
    )
    for runtime in runtimes:
        replays, pool = runtime.client.replays, runtime.client.config.pool
        for cause in Cause:
            replayed.add_metric([cause.value, pool], replays.tally.replayed[cause])
        for code in CODES:
            ended.add_metric([code, pool], replays.tally.ended[code])
        waiting.add_metric([pool], replays.waiting)
    yield replayed
    yield ended
    yield waiting


def _queues(runtimes: Sequence["Runtime"]) -> Iterable[Metric]:
    waiting = GaugeMetricFamily(
        "ferry:gateway_waiting",
        "Requests that wait in this web process for room at an instance (late binding).",
        labels=["priority_class", "pool"],
    )
    oldest = GaugeMetricFamily(
        "ferry:gateway_oldest_wait_seconds",
        "How long the oldest of them has waited.",
        labels=["pool"],
    )
    held = GaugeMetricFamily(
        "ferry:held_requests",
        "Requests that wait in this web process for the first instance of a pool at zero.",
        labels=["priority_class", "pool"],
    )
    oldest_held = GaugeMetricFamily(
        "ferry:held_oldest_seconds",
        "How long the oldest of them has waited.",
        labels=["pool"],
    )
    for runtime in runtimes:
        dispatcher, pool = runtime.client.dispatcher, runtime.client.config.pool
        queue, holding = dispatcher.queue, dispatcher.holding
        lengths, held_lengths = queue.lengths(), holding.lengths()
        for priority_class in PriorityClass:
            waiting.add_metric([priority_class.value, pool], lengths[priority_class])
            held.add_metric([priority_class.value, pool], held_lengths[priority_class])
        oldest.add_metric([pool], queue.oldest_s())
        oldest_held.add_metric([pool], holding.oldest_s())
    yield waiting
    yield oldest
    yield held
    yield oldest_held


def _degraded(runtimes: Sequence["Runtime"]) -> Metric:
    clients = [runtime.client for runtime in runtimes]
    away = {
        # By what this process itself meets, and by what it sees of all parts (fleet/parts.py).
        "store": any(not c.view.store_connected for c in clients),
        "ray": any(c.ray is not None and not c.ray.is_joined for c in clients),
        "database": any(runtime.records.is_behind for runtime in runtimes),
        "front_end": any(runtime.front is None for runtime in runtimes),
    }
    for part, is_away in degraded(clients).items():
        away[part] = away.get(part, False) or is_away
    family = GaugeMetricFamily(
        "ferry:degraded",
        "1 while a dependency does not answer, seen from this web process: store, database, worker,"
        " beat, ray, pool, engines, front_end.",
        labels=["dependency"],
    )
    for dependency, is_away in away.items():
        family.add_metric([dependency], float(is_away))
    return family


pool_collector: Final = PoolCollector()
"""This process's."""
REGISTRY.register(pool_collector)


def _values(load: InstanceLoad) -> dict[str, float]:
    return {
        "vllm:num_requests_running": len(load.running),
        "vllm:num_requests_waiting": len(load.waiting),
        "vllm:kv_cache_usage_perc": load.used_tokens / max(1, load.capacity_tokens),
        "vllm:num_preemptions": load.preemptions_total,
        "vllm:prompt_tokens": load.prompt_tokens_total,
        "vllm:generation_tokens": load.output_tokens_total,
        "ferry:engine_requests_ended": load.requests_ended_total,
    }
