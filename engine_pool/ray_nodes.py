"""What Ray's nodes are called, so that one of several on a machine can be named and drained.

A node has the name that it was given (`ray start --node-name`), else its host's. Where several
nodes without a name share a host, a part of Ray's id tells them apart.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import ray

ID_CHARACTERS: Final = 6
"""Of Ray's id: enough for the nodes of one host."""


def names_of(nodes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Returns the names of all nodes that live, by Ray's id (`nodes`: of ray.nodes())."""
    alive = [n for n in nodes if n["Alive"]]
    # Ray's own default is the address, which is worth less than the host's name.
    given = {n["NodeID"]: n["NodeName"] for n in alive if n["NodeName"] != n["NodeManagerAddress"]}
    names = {n["NodeID"]: given.get(n["NodeID"]) or n["NodeManagerHostname"] for n in alive}
    shared = Counter(names.values())
    return {
        node_id: name if shared[name] == 1 else f"{name}-{node_id[:ID_CHARACTERS]}"
        for node_id, name in names.items()
    }


def own_node_name() -> str:
    """Returns the name of the node that this process runs on. Waits for Ray."""
    node_id: str = ray.get_runtime_context().get_node_id()
    return names_of(ray.nodes()).get(node_id, node_id[:ID_CHARACTERS])


@dataclass(frozen=True, slots=True)
class NodesSeen:
    """Ray's nodes that live."""

    names: Mapping[str, str] = field(default_factory=dict)
    """By Ray's id."""
    ending: Mapping[str, float] = field(default_factory=dict)
    """Names of those that are about to end (`ray start --block` got SIGTERM, or an autoscaler takes
    them away), with the time at which they do, Unix seconds; 0: unknown."""


def look_at_nodes() -> NodesSeen:
    """Asks Ray. Waits. Raises: ray.exceptions.RayError and what else Ray raises while it is
    away."""
    names = names_of(ray.nodes())
    # Ray Serve asks the same; there is no public way yet.
    found = ray._private.state.state.get_draining_nodes()
    return NodesSeen(names, {names[i]: at_ms / 1000 for i, at_ms in found.items() if i in names})
