"""What the pool's own rule of scaling is compared with in the simulator.

Queue-length scaling is what users of KEDA do with vLLM: requests that wait, by a target an instance
(vLLM's production stack documents 5), on Kubernetes' horizontal autoscaler with its defaults.
https://docs.vllm.ai/projects/production-stack/en/latest/use_cases/autoscaling-keda.html
https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/
"""

import math
from collections import deque
from dataclasses import replace
from typing import Final

from engine_pool.policy.scaling_facts import Picture
from engine_pool.policy.settings import PolicySettings
from engine_pool.simulator.scaling_model import Scaler, ScalingPool
from engine_pool.types import InstanceState

QUEUE_TARGET: Final = 5
"""Waiting requests an instance."""
SYNC_S: Final = 15.0
"""Between two looks of the autoscaler, and of KEDA's at Prometheus in turn."""
STABILISATION_S: Final = 300.0
"""Down only to the most that was recommended in this time."""
TOLERANCE: Final = 0.1
"""A ratio so near to one changes nothing."""
PODS_A_SYNC: Final = 4
"""So many more at once, or twice as many as there are."""

Silent = tuple[float, float] | None
"""From when to when, in seconds, the first instance's reports are no numbers."""


def is_silent(silent: Silent, now_s: float) -> bool:
    return silent is not None and silent[0] <= now_s < silent[1]


class OwnRule(Scaler):
    """The pool's own rule, one of whose instances says nothing for a while."""

    def __init__(self, settings: PolicySettings, silent: Silent) -> None:
        super().__init__(settings)
        self._silent = silent

    def picture(self, pool: ScalingPool) -> Picture:
        seen = super().picture(pool)
        serving = seen.serving
        if not serving or not is_silent(self._silent, pool.now_s):
            return seen
        heard = [s for s in seen.standings if s is not serving[0]]
        return replace(seen, standings=heard, silent=1)


class QueueLength:
    """Desired instances = waiting requests / target, rounded up."""

    def __init__(self, settings: PolicySettings, silent: Silent) -> None:
        self._least = settings.scaling.min_instances
        self._most = settings.scaling.max_instances
        self._silent = silent
        self._recommended: deque[tuple[float, int]] = deque()

    def check(self, pool: ScalingPool) -> None:
        there = [
            i for i in pool.instances if i.state in (InstanceState.STARTING, InstanceState.SERVING)
        ]
        serving = [i for i in pool.pool_now() if i.state is InstanceState.SERVING]
        if is_silent(self._silent, pool.now_s):
            # Prometheus adds up the series that there are: one that is missing counts as nothing.
            serving = serving[1:]
        waiting = sum(i.seen.waiting for i in serving)
        current = len(there)
        ratio = waiting / (QUEUE_TARGET * current)
        wanted = current if abs(1 - ratio) <= TOLERANCE else math.ceil(waiting / QUEUE_TARGET)
        wanted = min(self._most, max(self._least, wanted))
        self._recommended.append((pool.now_s, wanted))
        while self._recommended[0][0] < pool.now_s - STABILISATION_S:
            self._recommended.popleft()
        if wanted < current:
            wanted = min(current, max(count for _, count in self._recommended))
        wanted = min(wanted, max(current * 2, current + PODS_A_SYNC))
        for _ in range(wanted - current):
            pool.start_instance()
        # Those that are not ready go first, then the youngest.
        going = sorted(there, key=lambda i: (i.state is InstanceState.SERVING, -i.started_s))
        for instance in going[: current - wanted]:
            pool.set_state(instance.engine.name, InstanceState.DRAINING)
