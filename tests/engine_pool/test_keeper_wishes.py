"""What the pool does about an instance of which something else is wanted than to serve."""

import asyncio
from dataclasses import replace

import pytest

from engine_pool.errors import EngineFailed
from engine_pool.policy.wishes import SETTLE_S, InstanceWish, Leftover, WantedState
from engine_pool.types import CRASH_LOOP_FAILURES
from tests.engine_pool.keeper_scene import FakeHandle, S, Scene, pong

CORDON = InstanceWish(WantedState.CORDONED, "kim", "a look", 1.0)
DRAIN = InstanceWish(WantedState.DRAINED, "kim", "a fan", 1.0)
STOP = InstanceWish(WantedState.STOPPED, "kim", "a fan", 1.0)


async def settle(scene: Scene, handle: FakeHandle) -> None:
    """Lets an empty instance be seen so for long enough."""
    looks = handle.pings
    await scene.until(lambda: handle.pings > looks + 1)
    scene.now_s += SETTLE_S


async def test_a_cordon_closes_the_door_and_a_release_opens_it(scene):
    handle = await scene.serve()
    scene.want(CORDON)
    await scene.until(lambda: scene.status.state is S.CORDONED and handle.doors == ["cordoned"])
    assert scene.status.cause == "to be cordoned by kim: a look"
    assert (scene.status.wanted, scene.status.wanted_by) == ("cordoned", "kim")
    scene.want()
    await scene.until(lambda: scene.status.state is S.SERVING)
    assert handle.doors == ["cordoned", ""]
    assert scene.status.wanted == "serving"


async def test_drained_is_what_was_seen_empty_for_a_while(scene):
    handle = await scene.serve()
    handle.pong = pong(running=2, used_tokens=64)
    scene.want(DRAIN)
    await scene.until(lambda: scene.status.drain is not None and scene.status.drain.left == 2)
    handle.pong = replace(handle.pong, running=0, moved_away=2)
    await settle(scene, handle)
    await settle(scene, handle)
    assert scene.status.state is S.DRAINING, "blocks are in use"
    handle.pong = replace(handle.pong, used_tokens=0)
    await settle(scene, handle)
    await scene.until(lambda: scene.status.state is S.DRAINED)
    drain = scene.status.drain
    assert (drain.left, drain.moved, drain.verified_unix_s) == (0, 2, scene.now_s)
    assert not handle.is_stopped
    scene.want()
    await scene.until(lambda: scene.status.state is S.SERVING)
    assert scene.launcher.handles == [handle]


async def test_a_door_that_does_not_close_is_not_taken_for_closed(scene):
    handle = await scene.serve()
    handle.is_jammed = True
    scene.want(DRAIN)
    await scene.until(lambda: len(handle.doors) > 2)
    await settle(scene, handle)
    assert scene.status.state is S.DRAINING


async def test_a_stop_drains_first_and_holds_until_it_is_taken_back(scene):
    handle = await scene.serve()
    scene.want(STOP)
    await scene.until(lambda: scene.status.state is S.DRAINING)
    assert not handle.is_stopped
    await settle(scene, handle)
    await scene.until(lambda: scene.status.state is S.STOPPED)
    assert handle.is_stopped
    assert scene.status.drain.verified_unix_s is not None
    scene.want(DRAIN)
    await scene.until(lambda: scene.status.wanted == "drained")
    assert scene.status.state is S.STOPPED
    scene.want()
    await scene.until(lambda: len(scene.launcher.handles) == 2)
    await scene.serve()
    assert scene.status.drain is None


@pytest.mark.parametrize("turns", range(8))
async def test_an_end_that_was_wanted_is_none_however_soon_it_is_seen(scene, turns):
    handle = await scene.serve()
    handle.turns_to_stop = turns
    scene.want(STOP)
    await scene.until(lambda: scene.status.state is S.DRAINING)
    await settle(scene, handle)
    await scene.until(lambda: scene.status.state is S.STOPPED)
    scene.want()
    await scene.until(lambda: len(scene.launcher.handles) == 2)
    await scene.serve()
    assert (scene.status.restarts, scene.status.failures) == (0, 0)
    assert "instance_lost" not in scene.board.events


async def test_a_node_concerns_an_instance_that_comes_to_it_later(scene):
    await scene.until(lambda: scene.launcher.handles)
    scene.want(node=DRAIN)
    handle = scene.launcher.handles[0]
    handle.started.set_result(handle.pong)
    await scene.until(lambda: scene.status.state is S.DRAINING)
    states = [s.state for s in scene.board.said]
    assert handle.doors == ["draining"]
    assert states[states.index(S.SERVING) + 1] is S.DRAINING, "nothing between"


async def test_a_start_is_broken_off_where_a_stop_is_wanted(scene):
    await scene.until(lambda: scene.launcher.handles)
    scene.want(STOP)
    await scene.until(lambda: scene.status.state is S.STOPPED)
    assert scene.launcher.handles[0].is_stopped


async def test_what_dies_while_it_is_drained_stays_down(scene):
    handle = await scene.serve()
    scene.want(DRAIN)
    await settle(scene, handle)
    await scene.until(lambda: scene.status.state is S.DRAINED)
    handle.ended.set_result("its process ended")
    await scene.until(lambda: scene.status.state is S.STOPPED)
    assert scene.status.cause == (
        "not started again, to be drained by kim: a fan; it ended: its process ended"
    )
    scene.want()
    await scene.until(lambda: len(scene.launcher.handles) == 2)


async def test_what_dies_while_it_is_cordoned_comes_back_cordoned(scene):
    handle = await scene.serve()
    scene.want(CORDON)
    await scene.until(lambda: scene.status.state is S.CORDONED)
    handle.ended.set_result("its process ended")
    await scene.until(lambda: len(scene.launcher.handles) == 2)
    scene.launcher.handles[1].started.set_result(pong())
    await scene.until(lambda: scene.status.state is S.CORDONED)


@pytest.mark.parametrize(
    ("leftover", "codes"),
    [
        pytest.param(Leftover.WAIT, [], id="wait"),
        pytest.param(Leftover.END, ["instance_lost"], id="end"),
        pytest.param(Leftover.REPLAY, ["instance_leaving"], id="replay"),
    ],
)
async def test_what_is_left_at_the_deadline(scene, leftover, codes):
    handle = await scene.serve()
    handle.pong = pong(running=1)
    scene.want(replace(DRAIN, deadline_unix_s=10.0, leftover=leftover))
    await scene.until(lambda: scene.status.state is S.DRAINING and handle.pong.door)
    looks = handle.pings
    await scene.until(lambda: handle.pings > looks + 2)
    assert handle.left_failed == []
    scene.now_s = 10.0
    looks = handle.pings
    await scene.until(lambda: handle.pings > looks + 2)
    assert handle.left_failed == codes
    assert ("drain_deadline" in scene.board.events) is bool(codes)


async def test_an_old_engine_is_renewed_once(scene):
    handle = await scene.serve()
    scene.now_s = 50.0
    renew = InstanceWish(by="kim", reason="slow", renew_before_unix_s=50.0)
    scene.want(renew)
    await scene.until(lambda: scene.status.state is S.DRAINING)
    assert scene.status.cause == "to be started anew by kim: slow"
    await settle(scene, handle)
    await scene.until(lambda: len(scene.launcher.handles) == 2)
    second = await scene.serve()
    assert handle.is_stopped
    looks = second.pings
    await scene.until(lambda: second.pings > looks + 2)
    assert scene.status.state is S.SERVING
    assert scene.status.engine_started_unix_s >= 50.0
    assert scene.status.failures == 0


async def fail_starts(scene: Scene, count: int) -> None:
    for n in range(count):
        await scene.until(lambda n=n: len(scene.launcher.handles) == n + 1)
        scene.launcher.handles[-1].started.set_exception(EngineFailed("no memory"))
    await scene.until(lambda: scene.status.failures == count)


async def test_a_crash_loop_is_named_once_and_ends_when_it_serves(scene):
    await fail_starts(scene, CRASH_LOOP_FAILURES)
    lost = next(s for s in reversed(scene.board.said) if s.state is S.LOST)
    assert lost.cause == (
        "crash loop: 5 failures in a row, the last: no memory, next try in 0.02 s"
    )
    assert lost.is_crash_looping
    assert scene.board.events.count("instance_crash_loop") == 1
    await scene.until(lambda: len(scene.launcher.handles) == CRASH_LOOP_FAILURES + 1)
    handle = await scene.serve()
    assert scene.status.is_crash_looping
    scene.now_s += 60
    await scene.until(lambda: scene.status.failures == 0)
    assert handle.pings


async def test_a_restart_by_somebody_does_not_wait_for_the_back_off():
    scene = Scene(restart_backoff_s=3600.0, restart_backoff_max_s=3600.0)
    task = asyncio.create_task(scene.keeper.run())
    await fail_starts(scene, 1)
    scene.now_s = 1.0
    scene.want(InstanceWish(by="kim", renew_before_unix_s=1.0))
    await scene.until(lambda: len(scene.launcher.handles) == 2)
    assert scene.status.failures == 0
    task.cancel()


async def test_the_kernels_want_of_memory_is_named(scene):
    handle = await scene.serve()
    handle.pong = pong(rss_bytes=2_000_000_000)
    await scene.until(lambda: scene.status.rss_bytes == 2_000_000_000)
    scene.oom_kills = 1
    handle.ended.set_result("its process ended")
    await scene.until(lambda: len(scene.launcher.handles) == 2)
    lost = next(s for s in scene.board.said if s.state is S.LOST)
    assert lost.cause.startswith("out of memory: the kernel ended a process; it used 2,000 MB")


async def test_a_process_that_was_told_to_end_is_drained_and_replaced(scene):
    handle = await scene.serve()
    handle.pong = pong(
        running=1, door="draining", leaving_since_unix_s=1.0, leave_deadline_unix_s=10.0
    )
    await scene.until(lambda: scene.status.state is S.DRAINING)
    assert (scene.status.wanted, scene.status.wanted_by) == ("stopped", "SIGTERM")
    scene.now_s = 10.0
    await scene.until(lambda: handle.left_failed == ["instance_leaving"])
    handle.pong = replace(handle.pong, running=0)
    await settle(scene, handle)
    await scene.until(lambda: len(scene.launcher.handles) == 2)
    await scene.serve()
    assert (scene.status.wanted, scene.status.failures) == ("serving", 0)


async def test_a_process_that_has_left_by_itself_did_not_fail(scene):
    handle = await scene.serve()
    handle.pong = pong(running=1, leaving_since_unix_s=1.0)
    await scene.until(lambda: scene.status.wanted_by == "SIGTERM")
    handle.ended.set_result("its process ended")
    await scene.until(lambda: len(scene.launcher.handles) == 2)
    assert scene.status.failures == 0
    assert "instance_left" in scene.board.events
    assert "instance_lost" not in scene.board.events


@pytest.mark.parametrize(
    ("door", "state"),
    [
        pytest.param("draining", S.DRAINING, id="draining"),
        pytest.param("cordoned", S.CORDONED, id="cordoned"),
    ],
)
async def test_a_found_engine_stays_as_it_is_until_somebody_says_otherwise(door, state):
    scene = Scene()
    handle = FakeHandle("engine:i-01:old")
    handle.pong = pong(door=door, running=1)
    scene.keeper.adopt(handle, handle.pong)
    task = asyncio.create_task(scene.keeper.run())
    await scene.until(lambda: handle.pings)
    assert scene.status.state is state
    assert handle.doors == []
    scene.want()
    await scene.until(lambda: scene.status.state is S.SERVING)
    task.cancel()


async def test_an_engine_of_other_settings_is_outdated(scene):
    await scene.serve()
    assert not scene.status.is_outdated
    scene.launcher.fingerprint = "g"
    await scene.until(lambda: scene.status.is_outdated)
