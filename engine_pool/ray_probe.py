"""Looks at Ray from outside, for the doctor: does it answer, do the engine actors answer. Blocking.

Raises whatever Ray raises (ConnectionError, RuntimeError, RayError): the caller says it in words.
"""

from typing import Final

from engine_pool.config import RAY_NAMESPACE

PING_TIMEOUT_S: Final = 10.0
"""An actor answers between two steps; the longest step is a long prefill on a busy CPU."""


def count_nodes(address: str) -> int:
    """Joins the cluster and returns how many of its nodes live."""
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
    import ray

    if ray.is_initialized():
        ray.shutdown()
