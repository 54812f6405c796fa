"""Auto-scaling of a simulated pool: the policy's checks, and what starting and draining take."""

from collections.abc import Sequence
from typing import Protocol

from engine_pool.policy.scaling import decide
from engine_pool.policy.scaling_facts import Picture, ScalingState
from engine_pool.policy.settings import PolicySettings
from engine_pool.simulator.instance_model import Instance
from engine_pool.types import InstanceName, InstanceState


class ScalingPool(Protocol):
    """What a check needs of the world."""

    @property
    def now_s(self) -> float: ...

    @property
    def instances(self) -> Sequence[Instance]:
        """All that there ever were."""

    def pool_now(self) -> list[Instance]:
        """Returns the instances that serve or drain, brought up to now."""

    def start_instance(self) -> None: ...

    def set_state(self, instance: InstanceName, state: InstanceState) -> None: ...


class ScalingLoop(Protocol):
    """What decides how many instances there are."""

    def check(self, pool: ScalingPool) -> None: ...


class Scaler:
    """The pool's own rule; remembers since when it has been outside the band."""

    def __init__(self, settings: PolicySettings) -> None:
        self._rule = settings.scaling
        self._headroom = settings.dispatch.headroom
        self._state = ScalingState()

    def check(self, pool: ScalingPool) -> None:
        picture = self.picture(pool)
        decision, state = decide(
            picture,
            rule=self._rule,
            headroom=self._headroom,
            state=self._state,
            now_s=pool.now_s,
        )
        self._state = state.after(decision, pool.now_s)
        for _ in range(decision.add):
            pool.start_instance()
        if decision.undrain is not None:
            pool.set_state(decision.undrain, InstanceState.SERVING)
        if decision.drain is not None:
            pool.set_state(decision.drain, InstanceState.DRAINING)

    def picture(self, pool: ScalingPool) -> Picture:
        """Returns what the check sees."""
        starting = [i for i in pool.instances if i.state is InstanceState.STARTING]
        standings = [i.seen for i in pool.pool_now()]
        return Picture(
            standings=standings,
            starting_tokens=[i.engine.standing.capacity_tokens for i in starting],
            undrainable=[s.instance for s in standings if s.is_draining],
        )
