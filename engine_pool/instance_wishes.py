"""All that is wanted of one instance at a time: by people, by its node, by the pool, by its end."""

from collections.abc import Mapping

from engine_pool.config import PoolConfig
from engine_pool.policy.wishes import NOTHING, InstanceWish, WantedState, joined
from engine_pool.types import InstanceName


class InstanceWishes:
    """One an instance."""

    def __init__(self, instance: InstanceName) -> None:
        self._instance = instance
        self._own = self._pools = NOTHING
        self._nodes: Mapping[str, InstanceWish] = {}
        self._ending_nodes: Mapping[str, InstanceWish] = {}

    def use(
        self, config: PoolConfig, pools: InstanceWish, ending_nodes: Mapping[str, InstanceWish]
    ) -> None:
        """`pools`: the pool's own; `ending_nodes`: of the engines on nodes that are about to end,
        not of their successors."""
        if config.knows_wishes:
            self._own = config.wishes.get(self._instance, NOTHING)
            self._nodes = config.node_wishes
        self._pools = pools
        self._ending_nodes = ending_nodes

    def keep_as_found(self, wanted: WantedState) -> None:
        """Nobody knows yet what is wanted: an engine that is cordoned or drained stays so."""
        self._own = InstanceWish(wanted, reason="it was so before the pool process started")

    def now(self, node: str, *, has_engine: bool, engines_own: InstanceWish | None) -> InstanceWish:
        """Joins what counts. `engines_own`: what follows for the present engine alone."""
        wishes = [self._own, self._pools, self._nodes.get(node)]
        if has_engine:
            wishes += [self._ending_nodes.get(node), engines_own]
        return joined(w for w in wishes if w is not None and w != NOTHING)
