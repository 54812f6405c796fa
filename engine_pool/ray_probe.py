"""Looks at Ray from outside, for the doctor: does it answer, do the engine actors answer. Blocking.

Raises whatever Ray raises (OSError, RuntimeError, RayError): the caller says it in words.
"""

import socket
import sys
from typing import Final

from engine_pool.config import RAY_NAMESPACE

CONNECT_TIMEOUT_S: Final = 5.0
PING_TIMEOUT_S: Final = 10.0
"""An actor answers between two steps; the longest step is a long prefill on a busy CPU."""


def count_nodes(address: str) -> int:
    """Joins the cluster and returns how many of its nodes live."""
    # Ray itself goes on trying for minutes where nobody listens.
    host, _, port = address.rpartition(":")
    if port.isdigit():
        socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S).close()

    import ray

    if not ray.is_initialized():
        ray.init(
            address=address,
            namespace=RAY_NAMESPACE,
            log_to_driver=False,
            logging_level="ERROR",
        )
    return sum(bool(node.get("Alive")) for node in ray.nodes())


def ping_engine(actor: str) -> str | None:
    """Asks an engine actor for a sign of life. Returns why there was none; None: it answered."""
    import ray

    try:
        handle = ray.get_actor(actor, namespace=RAY_NAMESPACE)
        ray.get(handle.ping.remote(), timeout=PING_TIMEOUT_S)
    except ValueError:
        return "no actor has its name"
    except ray.exceptions.RayError as error:
        return type(error).__name__
    return None


def leave() -> None:
    """Leaves the cluster, if this process joined it."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        ray.shutdown()
