"""What a Ray worker process loads to host an engine: the actor, and this process's signals.

Ray imports this in the worker's main thread, the only place where a signal can be taken.
"""

from engine_pool import sigterm
from engine_pool.engine_actor import EngineActor

HAS_TAKEN_SIGTERM = sigterm.take()


class EngineProcess(EngineActor):
    """EngineActor, as Ray gets it."""
