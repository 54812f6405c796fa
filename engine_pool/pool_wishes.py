"""What a pool itself wants of its instances: to end those that are one too many or lose their node.

Pure; times are wall-clock seconds.
"""

from collections.abc import Collection, Mapping
from typing import Final

from engine_pool.policy.wishes import InstanceWish, Leftover, WantedState
from engine_pool.ray_nodes import NodesSeen

BY_POOL: Final = "the pool"
BY_RAY: Final = "Ray"
RETIRE_MAX_S: Final = 300.0
"""Above nearly all answers; most requests move away long before. What is left then goes on
elsewhere from its log."""
NODE_MARGIN_S: Final = 5.0
"""Before the end of a node its requests go on elsewhere: so long it takes to tell them."""


def retirement(now_unix_s: float) -> InstanceWish:
    """Of an instance that the pool's size leaves out."""
    return InstanceWish(
        WantedState.STOPPED,
        by=BY_POOL,
        reason="it has fewer instances now",
        since_unix_s=now_unix_s,
        deadline_unix_s=now_unix_s + RETIRE_MAX_S,
        leftover=Leftover.REPLAY,
    )


def ending_wish(node: str, at_unix_s: float) -> InstanceWish:
    """Of the engines on a node that is about to end; `at_unix_s`: when, 0: unknown."""
    return InstanceWish(
        WantedState.STOPPED,
        by=BY_RAY,
        reason=f"the node {node} is about to end",
        deadline_unix_s=at_unix_s - NODE_MARGIN_S if at_unix_s else None,
        leftover=Leftover.REPLAY,
    )


def avoided_nodes(nodes: NodesSeen, wishes: Mapping[str, InstanceWish]) -> Collection[str]:
    """Returns Ray's ids of the nodes that should get no new engine."""
    closed = {n for n, w in wishes.items() if w.wanted is not WantedState.SERVING}
    found = [i for i, name in nodes.names.items() if name in closed or name in nodes.ending]
    # With all of them closed there is nothing to prefer.
    return () if len(found) == len(nodes.names) else tuple(sorted(found))
