"""SIGTERM to an engine's process: noted, so that the engine is drained before the process ends.

Ray runs an actor's code in other threads than the main one, and only the main one may take a
signal. It does load the actor's class there, so this module takes SIGTERM where it is imported by a
Ray worker (engine_process.py), after Ray has installed its own handler, which would end the process
in mid stream. A second SIGTERM is Ray's again.
"""

import signal
import threading
import time
from types import FrameType
from typing import Final

import ray

_asked_unix_s: list[float] = []


def asked_unix_s() -> float | None:
    """Returns when this process was told to end, None when it was not."""
    return _asked_unix_s[0] if _asked_unix_s else None


def take() -> bool:
    """Notes SIGTERM from now on. Says whether it does: only in the main thread of a Ray worker."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or ray._private.worker.global_worker.mode != ray.WORKER_MODE:
        return False
    before: Final = signal.getsignal(signal.SIGTERM)

    def note(number: int, frame: FrameType | None) -> None:
        _asked_unix_s.append(time.time())
        signal.signal(signal.SIGTERM, before)

    signal.signal(signal.SIGTERM, note)
    return True
