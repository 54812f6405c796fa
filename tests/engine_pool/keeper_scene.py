"""An instance's keeper with a fake engine actor, a board that keeps all, and clocks moved by
hand."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from engine_pool.config import PoolConfig
from engine_pool.errors import EngineFailed
from engine_pool.instance_keeper import InstanceKeeper
from engine_pool.policy.wishes import NOTHING, InstanceWish
from engine_pool.ports import Pong
from engine_pool.types import EngineKind, InstanceName, InstanceState, InstanceStatus

S = InstanceState
CONFIG = PoolConfig(restart_backoff_s=0.01, restart_backoff_max_s=0.02, stalled_after_s=60.0)
PATIENCE_S = 60.0


def pong(**changes: object) -> Pong:
    told = Pong("i-01", "inc", "f", True, "n", 1, 100, 0, 0, 0, None, False, 2048)
    return replace(told, **changes)


class FakeHandle:
    """An engine actor that starts, answers and dies when the test says so."""

    def __init__(self, actor: str) -> None:
        self.actor = actor
        self.started = asyncio.get_running_loop().create_future()
        self.ended = asyncio.get_running_loop().create_future()
        self.pong = pong()
        self.is_silent = False
        self.is_stopped = False
        self.is_killed = False
        self.is_jammed = False
        """Its door does not close."""
        self.pings = 0
        self.turns_to_stop = 0
        """Of the event loop: how much sooner its end is seen than the answer to its stop."""
        self.doors: list[str] = []
        self.left_failed: list[str] = []

    async def start(self, timeout_s: float) -> Pong:
        return await asyncio.shield(self.started)

    async def ping(self, timeout_s: float) -> Pong:
        self.pings += 1
        if self.is_silent:
            raise EngineFailed(f"no answer to ping for {timeout_s:.0f} s")
        return self.pong

    async def wait_end(self) -> str:
        return await asyncio.shield(self.ended)

    async def close_door(self, why: str) -> None:
        self.doors.append(why)
        if not self.is_jammed:
            self.pong = replace(self.pong, door=why, door_since_unix_s=1.0)

    async def open_door(self) -> None:
        self.doors.append("")
        self.pong = replace(self.pong, door="", door_since_unix_s=None)

    async def fail_left(self, code: str, why: str) -> None:
        self.left_failed.append(code)

    async def stop(self, timeout_s: float) -> None:
        self.is_stopped = True
        if not self.ended.done():
            self.ended.set_result("its process ended")
        for _ in range(self.turns_to_stop):
            await asyncio.sleep(0)

    def kill(self) -> None:
        self.is_killed = True


class FakeLauncher:
    fingerprint = "f"

    def __init__(self) -> None:
        self.handles: list[FakeHandle] = []

    def launch(self, instance: InstanceName, incarnation: str) -> FakeHandle:
        self.handles.append(FakeHandle(f"engine:{instance}:{incarnation}"))
        return self.handles[-1]


class FakeBoard:
    def __init__(self) -> None:
        self.said: list[InstanceStatus] = []
        self.events: list[str] = []

    def put_status(self, status: InstanceStatus) -> None:
        self.said.append(status)

    def put_event(self, kind, headline, detail, instance="", severity="info") -> None:
        self.events.append(kind)


class Scene:
    def __init__(self, **settings: float) -> None:
        self.config = replace(CONFIG, **settings)
        self.launcher, self.board, self.now_s = FakeLauncher(), FakeBoard(), 0.0
        self.oom_kills = 0
        first = InstanceStatus(
            instance=InstanceName("i-01"),
            pool="default",
            incarnation="",
            state=S.STOPPED,
            cause="not started yet",
            since_unix_s=0.0,
            node="",
            model="m",
            engine=EngineKind.SIMULATED,
        )
        self.keeper = InstanceKeeper(
            first,
            self.config,
            self.launcher,
            self.board,
            asyncio.Semaphore(1),
            oom_kills=lambda: self.oom_kills,
            clock=lambda: self.now_s,
            wall_clock=lambda: self.now_s,
        )

    def want(
        self,
        own: InstanceWish = NOTHING,
        node: InstanceWish | None = None,
        pools: InstanceWish = NOTHING,
    ) -> None:
        """Publishes a wish of the instance's own, of its node, of its pool."""
        config = replace(
            self.config,
            knows_wishes=True,
            wishes={"i-01": own},
            node_wishes={} if node is None else {"n": node},
        )
        self.keeper.use(config, pools)

    @property
    def status(self) -> InstanceStatus:
        return self.keeper.status

    async def until(self, claim: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not claim():  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.001)

    async def serve(self) -> FakeHandle:
        """Waits for the next engine and lets it start."""
        count = len(self.launcher.handles)
        await self.until(lambda: len(self.launcher.handles) >= max(1, count))
        handle = self.launcher.handles[-1]
        handle.started.set_result(handle.pong)
        await self.until(lambda: self.status.state is S.SERVING)
        return handle
