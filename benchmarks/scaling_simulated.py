"""The traces in the simulator: a fixed pool, the pool's own rule, and queue-length scaling."""

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from benchmarks.scaling_figures import (
    OSCILLATION_S,
    Change,
    Figures,
    Spread,
    reversals,
    summed,
    table,
)
from benchmarks.scaling_rules import SYNC_S, OwnRule, QueueLength
from benchmarks.scaling_traces import TRACES, Sizes, Trace, arrivals_of
from engine_pool.simulator.instance_model import Instance
from engine_pool.simulator.metrics import percentile
from engine_pool.simulator.scaling_model import ScalingLoop, ScalingPool
from engine_pool.simulator.scenario import Scenario, scenario_of
from engine_pool.simulator.world import World
from engine_pool.types import InstanceState

FIXED, OWN, QUEUE, QUEUE_MOVES = "fixed", "ferry", "queue", "queue + moves"
FLOOR: Final = 1
MOST: Final = 4
SIZES: Final = Sizes(length_s=1800.0, instance_per_s=1.5, prompt_tokens=256, output_tokens=256)
"""Half an hour: the queue rule waits five minutes before it shrinks. One instance of the paper's
(LLaMA-7B on an A10) serves 0.7 such requests a second at its very limit."""
GRACE_S: Final = 30.0
"""Kubernetes kills what has not ended by itself so long after it was told to (its default)."""


class Recorder:
    """Counts what a rule does, and asks it."""

    def __init__(self, rule: ScalingLoop) -> None:
        self._rule = rule
        self.changes: list[Change] = []
        self.least = 10**6
        """Instances that served, of all checks."""
        self.drains: list[tuple[float, Instance]] = []

    def check(self, pool: ScalingPool) -> None:
        before = _states(pool)
        self._rule.check(pool)
        after = _states(pool)
        wanted = (InstanceState.STARTING, InstanceState.SERVING)
        by = sum(s in wanted for s in after.values()) - sum(s in wanted for s in before.values())
        if by:
            self.changes.append(Change(pool.now_s, by))
        self.drains += [
            (pool.now_s, i)
            for i in pool.instances
            if before.get(i.engine.name) is InstanceState.SERVING and i.state not in wanted
        ]
        self.least = min(self.least, sum(s is InstanceState.SERVING for s in after.values()))


def _states(pool: ScalingPool) -> dict[str, InstanceState]:
    return {i.engine.name: i.state for i in pool.instances}


def scenario(rule: str) -> Scenario:
    """Returns a pool as rows have it by default; the fixed one has as many as the others may."""
    is_fixed = rule == FIXED
    return scenario_of(
        {
            "pool": {"instances": MOST if is_fixed else 2},
            # Kubernetes moves nothing from a pod that goes, or from one that is full.
            "policy": {"migration": rule != QUEUE},
            "scaling": {
                "enabled": not is_fixed,
                "min_instances": FLOOR,
                "max_instances": MOST,
                "check_interval_s": SYNC_S if rule in (QUEUE, QUEUE_MOVES) else 5.0,
                "grow_after_s": 0.0,
                "shrink_after_s": 60.0,
                "shrink_cooldown_s": 120.0,
                "start_delay_s": 30.0,
            },
        }
    )


def run(trace: Trace, rule: str, seed: int, sizes: Sizes = SIZES) -> Figures:
    """Runs a trace once, to the end of its last request."""
    scenario_ = replace(scenario(rule), seed=seed)
    settings = scenario_.policy_settings()
    silent = None
    if trace.silent is not None:
        begin, end = trace.silent
        silent = (begin * sizes.length_s, end * sizes.length_s)
    kind = OwnRule if rule == OWN else QueueLength
    recorder = Recorder(kind(settings, silent))
    world = World(scenario_, arrivals_of(trace, sizes, seed), recorder)
    world.run()
    world.check_integrity()
    ttft_s = [r.first_token_s - r.arrival_s for r in world.requests if r.first_token_s is not None]
    length_s = sizes.length_s
    changes = [c for c in recorder.changes if c.at_s <= length_s]
    counts = list(itertools.accumulate((c.by for c in changes), initial=len(_first(world))))
    p50, p99 = percentile(ttft_s, 50), percentile(ttft_s, 99)
    assert p50 is not None, "there are requests"
    assert p99 is not None, "there are requests"
    return {
        "ttft_p50_s": p50,
        "ttft_p99_s": p99,
        "instance_s": sum(i.seconds_until(length_s) for i in world.instances),
        "most": max(counts),
        "least": min(min(counts), recorder.least),
        "changes": len(changes),
        "turns": reversals(changes, length_s),
        "oscillations": reversals(changes, OSCILLATION_S),
        "would_be_cut": sum(_outlives(i, at_s) for at_s, i in recorder.drains if rule == QUEUE),
        "requests": len(world.requests),
    }


def _first(world: World) -> list[Instance]:
    return [i for i in world.instances if i.started_s == 0]


def _outlives(instance: Instance, drained_s: float) -> bool:
    """Says whether an instance still had a request when Kubernetes would have killed it."""
    return instance.stopped_s is not None and instance.stopped_s - drained_s > GRACE_S


def measure(repeats: int, only: str = "") -> Mapping[str, Mapping[str, Mapping[str, Spread]]]:
    """Runs every trace, or one, with every rule; returns the figures' spreads over repeats."""
    found: dict[str, dict[str, dict[str, Spread]]] = {}
    for trace in TRACES:
        if only in ("", trace.name):
            rules = found[trace.name] = {}
            for rule in (FIXED, OWN, QUEUE, QUEUE_MOVES):
                rules[rule] = summed([run(trace, rule, seed) for seed in range(1, repeats + 1)])
                # At once: a run on a busy machine takes long, and may be ended.
                print(table({trace.name: {rule: rules[rule]}}).splitlines()[-1], flush=True)
    return found
