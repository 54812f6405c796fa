"""Sending requests to engines, against a real store and engines that do as they are told."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis

from engine_pool.client import PoolClient
from engine_pool.config import PoolConfig
from engine_pool.errors import (
    EngineRefused,
    InstanceLost,
    NoInstance,
    RequestFatal,
    RequestTooLarge,
)
from engine_pool.log_marks import FENCE_EPOCHS
from engine_pool.ports import EngineRequest
from engine_pool.submission import Submission
from engine_pool.token_log import request_key, route_key
from engine_pool.types import InstanceState
from engine_pool.view import Bulletin
from tests.controlplane.fakes import (
    FakeGate,
    FakeSink,
    Producer,
    load_of,
    request_of,
    status_of,
    until,
)

pytestmark = pytest.mark.asyncio


@contextlib.asynccontextmanager
async def pool(
    url: str, *names: str, used: dict[str, int] | None = None, **settings: Any
) -> AsyncIterator[tuple[PoolClient, FakeGate]]:
    gate = FakeGate()
    client = PoolClient(PoolConfig(redis_url=url, **settings), gate)
    client.sink.sink = FakeSink()
    await client.start()
    await until(lambda: client.view.store_connected and client.reader.is_connected)
    for name in names:
        client.view.apply(status_of(name))
        client.view.apply(load_of(name, used=(used or {}).get(name, 0)))
    try:
        yield client, gate
    finally:
        # Else a test that fails while it holds calls waits for them for ever.
        gate.hold.set()
        await client.stop()


def submission(*ids: str, prompt_tokens: int = 10) -> Submission:
    return Submission(
        [request_of(i, prompt_tokens) for i in ids], lambda: 0, "record", {"body": b"{}"}
    )


async def test_the_freest_instance_gets_it_and_the_record_says_where(store_url: str) -> None:
    async with pool(store_url, "i-01", "i-02", used={"i-01": 5000}) as (client, gate):
        sent = await client.dispatcher.submit(submission("a", "b"))
        assert sent.instance == "i-02"
        assert gate.calls == [("submit", "actor-i-02", ("a", "b"))]
        fields = await client.store.hgetall(request_key("record"))
        assert fields == {b"body": b"{}", b"at:a": b"i-02 a", b"at:b": b"i-02 a"}
        in_flight = client.view.pool_view(time.time()).in_flight
        assert {e.request_id for e in in_flight} == {"a", "b"}


async def test_what_one_refuses_another_gets(store_url: str) -> None:
    async with pool(store_url, "i-01", "i-02", used={"i-02": 100}) as (client, gate):
        gate.refusing["actor-i-01"] = "it is full"
        sent = await client.dispatcher.submit(submission("a"))
        assert sent.instance == "i-02"
        assert [r.epoch for r in gate.requests] == [1]


async def test_a_dead_actor_is_fenced_out_before_another_gets_it(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with pool(store_url, "i-01", "i-02", used={"i-02": 100}) as (client, gate):
        gate.dead.add("actor-i-01")
        sent = await client.dispatcher.submit(submission("a"))
        assert sent.instance == "i-02"
        (epoch,) = [r.epoch for r in gate.requests]
        assert not Producer(store).write("a", 0, [1], epoch=1)
        # It may even have moved on, in the queue, before its actor fell silent.
        assert not Producer(store).write("a", 0, [1], epoch=3)
        assert Producer(store).write("a", 0, [1], epoch=epoch)


async def test_a_request_that_has_begun_is_not_sent_elsewhere(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with pool(store_url, "i-01", "i-02", used={"i-02": 100}) as (client, gate):
        gate.dead.add("actor-i-01")

        def produce(actor: str, requests: list[EngineRequest]) -> None:
            Producer(store).write("a", 0, [1])

        gate.on_submit = produce
        with pytest.raises(InstanceLost):
            await client.dispatcher.submit(submission("a"))
        assert [actor for _, actor, _ in gate.calls] == ["actor-i-01"]
        assert client.reader.streams == ()


async def test_when_all_refuse_the_reason_is_told(store_url: str) -> None:
    async with pool(store_url, "i-01", "i-02") as (client, gate):
        gate.refusing = {"actor-i-01": "no room", "actor-i-02": "no room"}
        with pytest.raises(EngineRefused, match="no room"):
            await client.dispatcher.submit(submission("a"))
        assert client.view.pool_view(time.time()).in_flight == ()
        assert await client.store.exists(request_key("record"), route_key("a")) == 0


async def test_without_a_serving_instance_nothing_is_sent(store_url: str) -> None:
    async with pool(store_url) as (client, gate):
        client.view.apply(status_of("i-01", InstanceState.STARTING))
        with pytest.raises(NoInstance):
            await client.dispatcher.submit(submission("a"))
        assert gate.calls == []


async def test_a_prompt_that_no_instance_can_hold_is_refused_for_good(store_url: str) -> None:
    async with pool(store_url, "i-01") as (client, gate):
        with pytest.raises(RequestTooLarge):
            await client.dispatcher.submit(submission("a", prompt_tokens=50_000))
        assert gate.calls == []


async def test_a_burst_goes_as_one_batch_while_a_call_is_under_way(store_url: str) -> None:
    async with pool(store_url, "i-01") as (client, gate):
        gate.hold.clear()
        sending = [
            asyncio.create_task(client.dispatcher.submit(submission(f"r{i}"))) for i in range(8)
        ]
        outbox = client.dispatcher._outbox("actor-i-01")
        await until(lambda: bool(gate.calls) and len(gate.calls[0][2]) + len(outbox._requests) == 8)
        assert len(gate.calls) == 1
        gate.hold.set()
        await asyncio.gather(*sending)
        assert len(gate.calls) == 2
        assert len(gate.requests) == 8


async def test_an_abort_follows_its_request_and_never_overtakes_it(store_url: str) -> None:
    async with pool(store_url, "i-01") as (client, gate):
        gate.hold.clear()
        sending = asyncio.create_task(client.dispatcher.submit(submission("a")))
        await until(lambda: len(gate.calls) == 1)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        client.dispatcher.abort(["a"])
        assert len(gate.calls) == 1
        gate.hold.set()
        await until(lambda: len(gate.calls) == 2)
        assert gate.calls[1] == ("abort", "actor-i-01", ("a",))


async def test_what_was_aborted_before_it_was_sent_is_never_sent(store_url: str) -> None:
    async with pool(store_url, "i-01") as (client, gate):
        gate.hold.clear()
        first = asyncio.create_task(client.dispatcher.submit(submission("a")))
        await until(lambda: len(gate.calls) == 1)
        second = asyncio.create_task(client.dispatcher.submit(submission("b")))
        await until(lambda: bool(client.reader.streams_of(["b"])))
        await asyncio.sleep(0.05)
        client.dispatcher.abort(["b"])
        gate.hold.set()
        await first
        await asyncio.gather(second, return_exceptions=True)
        await client.dispatcher.close()
        assert all("b" not in ids for _, _, ids in gate.calls)


async def test_other_processes_see_what_was_sent(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with pool(store_url, "i-01") as (client, _), pool(store_url, "i-01") as (other, _):
        await client.dispatcher.submit(submission("a"))
        await until(lambda: len(other.view.pool_view(time.time()).in_flight) == 1)
        # And no longer once the instance's own report shows it.
        Bulletin(store).report_load(load_of("i-01", seq=2, running=["a"]))
        await until(lambda: other.view.pool_view(time.time()).in_flight == ())


async def test_a_request_that_engines_die_with_as_they_take_it_is_not_tried_on_a_third(
    store_url: str,
) -> None:
    used = {"i-02": 100, "i-03": 200}
    async with pool(store_url, "i-01", "i-02", "i-03", used=used) as (client, gate):
        gate.dead = {"actor-i-01", "actor-i-02"}

        def die(actor: str, requests: list[EngineRequest]) -> None:
            name = actor.removeprefix("actor-")
            client.view.apply(status_of(name, InstanceState.LOST))

        gate.on_submit = die
        with pytest.raises(RequestFatal):
            await client.dispatcher.submit(submission("a"))
        assert [actor for _, actor, _ in gate.calls] == ["actor-i-01", "actor-i-02"]
        assert client.reader.streams == ()


async def test_an_engine_that_dies_while_it_takes_a_request_is_the_dispatchers_business(
    store_url: str,
) -> None:
    async with pool(store_url, "i-01", "i-02", used={"i-02": 100}) as (client, gate):
        gate.dead = {"actor-i-01"}
        gate.hold.clear()
        sending = asyncio.create_task(client.dispatcher.submit(submission("a")))
        await until(lambda: len(gate.calls) == 1)
        client.view.apply(status_of("i-01", InstanceState.LOST))
        assert client.replays.waiting == 0
        gate.hold.set()
        assert (await sending).instance == "i-02"
        assert [r.epoch for r in gate.requests] == [1 + FENCE_EPOCHS]
        # From now on it is not.
        client.view.apply(status_of("i-02", InstanceState.LOST))
        assert client.replays.waiting == 1
