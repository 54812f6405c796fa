"""What the pool does about an instance, with a fake engine actor and a board that keeps all."""

import asyncio

import pytest

from engine_pool.errors import EngineFailed
from tests.engine_pool.keeper_scene import FakeHandle, S, Scene, pong


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
