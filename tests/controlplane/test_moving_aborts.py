"""An abort reaches its request, also one that is moving away from the instance that was told."""

import asyncio

import pytest
import redis

from engine_pool.aborts import AGAIN_S, RECENT_MAX, RECENT_S, RecentAborts
from engine_pool.client import PoolClient
from engine_pool.stream import Stream
from engine_pool.types import InstanceName, InstanceState
from migration.report import MoveState
from tests.controlplane.fakes import (
    FakeGate,
    FakeSink,
    Producer,
    load_of,
    move_of,
    status_of,
    until,
)
from tests.controlplane.test_dispatcher import pool, submission

ONE, TWO = InstanceName("i-01"), InstanceName("i-02")


def aborts_of(gate: FakeGate) -> list[tuple[str, tuple[str, ...]]]:
    return [(actor, ids) for kind, actor, ids in gate.calls if kind == "abort"]


async def settled(client: PoolClient) -> None:
    """Returns when all that was told has been sent."""
    await asyncio.sleep(0)
    await client.dispatcher.close()


async def test_an_abort_follows_its_request_to_where_a_frame_comes_from(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with pool(store_url, "i-01", "i-02", used={"i-02": 5000}) as (client, gate):
        await client.dispatcher.submit(submission("a"))
        producer = Producer(store)
        producer.write("a", 0, [0])
        sink = client.sink.sink
        assert isinstance(sink, FakeSink)
        await until(lambda: sink.tokens("a") == [0])
        client.dispatcher.abort(["a"])
        for i in range(1, 6):
            producer.write("a", i, [i], epoch=2, instance="i-02")
        await until(lambda: len(aborts_of(gate)) == 2)
        for i in range(6, 20):
            producer.write("a", i, [i], epoch=2, instance="i-02")
        producer.write("a", 20, [20], epoch=2, instance="i-02", finish="abort")
        await until(lambda: client.reader.is_connected)
        await settled(client)
        # Each was told once, not once a frame.
        assert aborts_of(gate) == [("actor-i-01", ("a",)), ("actor-i-02", ("a",))]
        assert sink.tokens("a") == [0]


async def test_the_last_frames_of_the_instance_that_was_told_ask_for_nothing(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with pool(store_url, "i-01") as (client, gate):
        await client.dispatcher.submit(submission("a", "b"))
        client.dispatcher.abort(["a"])
        producer = Producer(store)
        producer.write("a", 0, [0])
        producer.write("b", 0, [0])
        await until(lambda: client.reader.streams_of(["b"])[0].end == 1)
        await settled(client)
        assert aborts_of(gate) == [("actor-i-01", ("a",))]


async def test_an_abort_follows_a_queued_request_to_who_reports_it(store_url: str) -> None:
    async with pool(store_url, "i-01", "i-02", used={"i-02": 5000}) as (client, gate):
        await client.dispatcher.submit(submission("a"))
        client.dispatcher.abort(["a"])
        for seq in (2, 3, 4):
            client.view.apply(load_of("i-02", seq=seq, waiting=["a"]))
        await until(lambda: len(aborts_of(gate)) == 2)
        await settled(client)
        assert aborts_of(gate) == [("actor-i-01", ("a",)), ("actor-i-02", ("a",))]


async def test_an_abort_goes_to_where_the_request_has_moved(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with pool(store_url, "i-01", "i-02", used={"i-02": 5000}) as (client, gate):
        await client.dispatcher.submit(submission("a", "b"))
        Producer(store).write("a", 0, [0], epoch=2, instance="i-02")
        client.view.apply(move_of("b", MoveState.COMMITTED))
        await until(lambda: client.reader.streams_of(["a"])[0].instance == "i-02")
        client.dispatcher.abort(["a", "b"])
        await until(lambda: bool(aborts_of(gate)))
        await settled(client)
        assert aborts_of(gate) == [("actor-i-02", ("a", "b"))]


async def test_two_that_report_a_request_are_both_told(store_url: str) -> None:
    async with pool(store_url, "i-01", "i-02", used={"i-02": 5000}) as (client, gate):
        await client.dispatcher.submit(submission("a"))
        client.view.apply(load_of("i-01", seq=2, running=["a"]))
        client.view.apply(load_of("i-02", seq=2, running=["a"]))
        client.dispatcher.abort(["a"])
        await until(lambda: len(aborts_of(gate)) == 2)
        assert set(aborts_of(gate)) == {("actor-i-01", ("a",)), ("actor-i-02", ("a",))}


async def test_a_request_resumed_after_its_first_instance_is_gone_is_aborted_where_it_is(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with pool(store_url, "i-01", "i-02", used={"i-02": 5000}) as (first, _):
        await first.dispatcher.submit(submission("a"))
        Producer(store).write("a", 0, [0])
        Producer(store).write("a", 1, [1], epoch=2, instance="i-02")
        async with pool(store_url, "i-02") as (second, gate):
            second.view.apply(load_of("i-02", seq=2, running=["a"]))
            again = Stream("a", lambda: 0)
            await second.dispatcher.resume(again, ("i-01", "a"))
            assert (again.instance, again.actor) == ("i-02", "actor-i-02")
            sink = second.sink.sink
            assert isinstance(sink, FakeSink)
            await until(lambda: sink.tokens("a") == [0, 1])
            # The replay tells of the move, though it began at its end.
            assert [(v.origin, v.instance, v.at_token) for v in again.visits] == [
                ("i-01", "i-02", 1)
            ]
            second.dispatcher.abort(["a"])
            await until(lambda: aborts_of(gate) == [("actor-i-02", ("a",))])


async def test_a_queued_request_is_resumed_where_it_is(store_url: str) -> None:
    async with pool(store_url, "i-01", "i-02", used={"i-02": 5000}) as (client, gate):
        await client.dispatcher.submit(submission("a"))
        client.view.apply(move_of("a", MoveState.COMMITTED))
        client.view.apply(status_of("i-01", InstanceState.STOPPED))
        again = Stream("a", lambda: 0)
        await client.dispatcher.resume(again, ("i-01", "a"))
        assert again.actor == "actor-i-02"
        await until(lambda: not again.is_behind)
        client.dispatcher.abort(["a"])
        await until(lambda: aborts_of(gate) == [("actor-i-02", ("a",))])


async def test_reports_are_heard_only_while_an_abort_is_recent(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pool(store_url, "i-01") as (client, _):
        aborts = client.dispatcher._aborts
        await client.dispatcher.submit(submission("a"))
        client.dispatcher.abort(["nobody"])
        assert not aborts._listens
        client.dispatcher.abort(["a"])
        assert aborts._listens
        monkeypatch.setattr("engine_pool.aborts.RECENT_S", 0.0)
        client.view.apply(load_of("i-01", seq=2))
        await until(lambda: not aborts._listens)


def test_an_instance_is_told_once_and_again_when_it_still_has_the_request_later() -> None:
    recent = RecentAborts()
    recent.add("a", [ONE], 0.0)
    assert not recent.must_tell("a", ONE, 0.1)
    assert recent.must_tell("a", TWO, 0.1)
    assert not recent.must_tell("a", TWO, 0.2)
    # It came back, or the abort was lost.
    assert recent.must_tell("a", ONE, AGAIN_S)
    assert not recent.must_tell("a", ONE, AGAIN_S + 0.1)
    assert not recent.must_tell("b", ONE, 5.0)


def test_aborts_are_remembered_for_a_while_after_the_last_sign_of_the_request() -> None:
    recent = RecentAborts()
    recent.add("a", [ONE], 0.0)
    recent.add("b", [ONE], 0.0)
    recent.must_tell("a", TWO, 5.0)
    recent.forget_old(RECENT_S)
    assert ("a" in recent, "b" in recent) == (True, False)
    recent.forget_old(5.0 + RECENT_S)
    assert len(recent) == 0


def test_the_memory_of_aborts_is_bounded() -> None:
    recent = RecentAborts()
    for i in range(RECENT_MAX + 10):
        recent.add(str(i), [ONE], float(i))
    assert len(recent) == RECENT_MAX
    assert "9" not in recent
    assert "10" in recent
