"""What the pool drives: an engine actor, and what makes one. Ray's are in launcher.py."""

from typing import Protocol

from engine_pool.ports import Pong
from engine_pool.types import InstanceName


class EngineHandle(Protocol):
    """An engine actor; launcher.RayEngine, or a fake in tests. Failures are EngineFailed."""

    actor: str

    async def start(self, timeout_s: float) -> Pong: ...

    async def ping(self, timeout_s: float) -> Pong: ...

    async def wait_end(self) -> str: ...

    async def close_door(self, why: str) -> None: ...

    async def open_door(self) -> None: ...

    async def fail_left(self, code: str, why: str) -> None: ...

    async def stop(self, timeout_s: float) -> None: ...

    def kill(self) -> None: ...


class EngineLauncher(Protocol):
    @property
    def fingerprint(self) -> str:
        """Of the engines that it starts now."""

    def launch(self, instance: InstanceName, incarnation: str) -> EngineHandle: ...
