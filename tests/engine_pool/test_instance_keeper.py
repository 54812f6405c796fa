"""What the pool does about an instance, with a fake engine actor and a board that keeps all."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from engine_pool.config import PoolConfig
from engine_pool.errors import EngineFailed
from engine_pool.instance_keeper import InstanceKeeper
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
        self.doors: list[str] = []
        self.left_failed: list[str] = []

    async def start(self, timeout_s: float) -> Pong:
        return await asyncio.shield(self.started)

    async def ping(self, timeout_s: float) -> Pong:
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
    def __init__(self) -> None:
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
            CONFIG,
            self.launcher,
            self.board,
            asyncio.Semaphore(1),
            oom_kills=lambda: self.oom_kills,
            clock=lambda: self.now_s,
            wall_clock=lambda: self.now_s,
        )

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


@pytest.fixture
async def scene(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    monkeypatch.setattr("engine_pool.instance_keeper.PING_INTERVAL_S", 0.005)
    one = Scene()
    task = asyncio.create_task(one.keeper.run())
    yield one
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_an_engine_serves_once_it_has_started(scene):
    await scene.until(lambda: scene.status.state is S.STARTING and scene.launcher.handles)
    assert scene.status.cause == "first start, loads the model"
    handle = await scene.serve()
    assert scene.status.actor == handle.actor
    assert (scene.status.pid, scene.status.max_model_len) == (1, 2048)
    assert scene.board.events == ["instance_starting", "instance_serving"]


async def test_a_death_is_told_and_answered_by_a_new_incarnation(scene):
    first = await scene.serve()
    before = scene.status.incarnation
    first.ended.set_result("its process ended")
    await scene.until(lambda: len(scene.launcher.handles) == 2)
    lost = next(s for s in scene.board.said if s.state is S.LOST)
    assert lost.cause == "its process ended, restart in 0.01 s"
    assert first.is_killed
    await scene.serve()
    assert scene.status.restarts == 1
    assert scene.status.incarnation != before
    assert "instance_lost" in scene.board.events


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        pytest.param({"is_silent": True}, "no answer to ping for 10 s", id="silent"),
        pytest.param({"pong": pong(running=3)}, "no step for 61 s with 3 requests", id="stalled"),
    ],
)
async def test_an_engine_that_makes_no_progress_is_replaced(scene, trouble, words):
    handle = await scene.serve()
    await asyncio.sleep(0.02)
    for name, value in trouble.items():
        setattr(handle, name, value)
    await asyncio.sleep(0.02)
    scene.now_s += 61
    await scene.until(lambda: len(scene.launcher.handles) == 2)
    assert words in next(s for s in scene.board.said if s.state is S.LOST).cause
    assert handle.is_killed


async def test_an_engine_that_cannot_start_is_tried_again_later_and_later(scene):
    for n in range(3):
        await scene.until(lambda n=n: len(scene.launcher.handles) == n + 1)
        scene.launcher.handles[-1].started.set_exception(EngineFailed("no memory"))
    await scene.until(lambda: len(scene.launcher.handles) == 4)
    causes = [s.cause for s in scene.board.said if s.state is S.LOST]
    assert causes == [
        "no memory, restart in 0.01 s",
        "no memory, restart in 0.02 s",
        "no memory, restart in 0.02 s",
    ]


async def test_a_death_during_the_start_does_not_wait_for_the_timeout(scene):
    await scene.until(lambda: scene.launcher.handles)
    scene.launcher.handles[0].ended.set_result("its process ended")
    await scene.until(lambda: len(scene.launcher.handles) == 2)
    lost = next(s for s in scene.board.said if s.state is S.LOST)
    assert lost.cause.startswith("its process ended while it started")


async def test_a_found_engine_is_adopted_without_a_start():
    scene = Scene()
    handle = FakeHandle("engine:i-01:old")
    scene.keeper.adopt(handle, pong(incarnation="old"))
    task = asyncio.create_task(scene.keeper.run())
    await asyncio.sleep(0.02)
    assert scene.status.state is S.SERVING
    assert scene.status.incarnation == "old"
    assert scene.launcher.handles == []
    handle.ended.set_result("its process ended")
    await scene.until(lambda: scene.launcher.handles)
    task.cancel()


async def test_a_stop_ends_the_engine():
    scene = Scene()
    task = asyncio.create_task(scene.keeper.run())
    handle = await scene.serve()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await scene.keeper.stop()
    assert handle.is_stopped
    assert scene.status.state is S.STOPPED
    assert [s.state for s in scene.board.said][-2:] == [S.STOPPING, S.STOPPED]
