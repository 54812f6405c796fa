"""The board and the sampler: what the pool says reaches the store, whatever happens to it."""

import asyncio
import threading

import redis.asyncio

from engine_pool.board import Board
from engine_pool.sampler import Sampler
from engine_pool.types import InstanceName, InstanceState, RequestId
from engine_pool.view import read_events, read_samples, read_view
from tests.engine_pool.conftest import StoreServer
from tests.engine_pool.make import NOW_UNIX_S, load, running, status


async def seen(store: StoreServer):
    """Returns what a web process reads: statuses and events."""
    client = redis.asyncio.Redis.from_url(store.url)
    statuses, _ = await read_view(client)
    events = await read_events(client)
    await client.aclose()
    return {s.instance: s for s in statuses}, [e.kind for e in events]


async def test_what_is_said_is_shown(store):
    board = Board(store.url)
    board.put_status(status("i-01"))
    board.put_status(status("i-02", InstanceState.LOST))
    board.put_event("instance_lost", "i-02 was lost", "why", "i-02", "bad")
    await board.write()
    statuses, events = await seen(store)
    assert statuses["i-02"].state is InstanceState.LOST
    assert events == ["instance_lost"]
    board.forget(InstanceName("i-02"))
    await board.write()
    assert set((await seen(store))[0]) == {"i-01"}
    await board.close()


async def test_a_store_that_comes_back_empty_is_told_everything_again(store):
    board = Board(store.url)
    board.put_status(status("i-01"))
    await board.write()
    await asyncio.to_thread(store.kill)
    board.put_status(status("i-02"))
    board.put_event("instance_serving", "i-02 serves", "")
    await board.write()
    await asyncio.to_thread(store.start)
    await board.write()
    await board.write()
    statuses, events = await seen(store)
    assert set(statuses) == {"i-01", "i-02"}
    assert events == ["store_back", "store_lost", "instance_serving"]
    await board.close()


async def test_a_store_that_lost_its_memory_unnoticed_is_told_again(store):
    board = Board(store.url)
    board.put_status(status("i-01"))
    await board.write()
    client = redis.asyncio.Redis.from_url(store.url)
    await client.flushall()
    await board.write()
    assert set((await seen(store))[0]) == {"i-01"}
    await client.aclose()
    await board.close()


async def test_what_is_forgotten_stays_so_though_a_cancelled_write_is_still_under_way(store):
    board = Board(store.url)
    may_go_on, has_begun, is_done = threading.Event(), threading.Event(), threading.Event()
    report = board._bulletin.report_status

    def slow_report(said):
        has_begun.set()
        assert may_go_on.wait(60)
        report(said)
        is_done.set()

    board._bulletin.report_status = slow_report
    board.put_status(status("i-01"))
    writing = asyncio.create_task(board.write())
    await asyncio.to_thread(has_begun.wait, 10)
    writing.cancel()
    await asyncio.wait({writing})
    board.forget(InstanceName("i-01"))
    forgetting = asyncio.create_task(board.write())
    await asyncio.sleep(0.1)
    may_go_on.set()
    await forgetting
    await asyncio.to_thread(is_done.wait, 10)
    assert (await seen(store))[0] == {}
    await board.close()


async def test_a_sample_reaches_the_charts(store):
    board = Board(store.url)
    board.put_sample(Sampler().sample([status()], [load()], NOW_UNIX_S))
    await board.write()
    client = redis.asyncio.Redis.from_url(store.url)
    (sample,) = await read_samples(client, 0.0)
    assert sample.at_unix_s == NOW_UNIX_S
    await client.aclose()
    await board.close()


def test_a_missing_or_old_report_is_a_gap_and_no_zero():
    statuses = [status("i-01"), status("i-02"), status("i-03"), status("i-04")]
    loads = [
        load("i-01", batch=(running(160),)),
        load("i-02", at_unix_s=NOW_UNIX_S - 6),
        load("i-03", incarnation="dead"),
    ]
    sample = Sampler().sample(statuses, loads, NOW_UNIX_S)
    assert sample.instances["i-01"].freeness_tokens == 1440
    for name in ("i-02", "i-03", "i-04"):
        assert sample.instances[InstanceName(name)].running is None


def test_a_draining_instance_has_no_finite_numbers():
    sample = Sampler().sample(
        [status(state=InstanceState.DRAINING)], [load(batch=(running(160),))], NOW_UNIX_S
    )
    one = sample.instances[InstanceName("i-01")]
    assert one.freeness_tokens is one.virtual_tokens is None
    assert one.used_tokens == 160


def test_counters_do_not_fall_when_an_engine_is_restarted():
    from dataclasses import replace

    sampler = Sampler()
    first = replace(load(), output_tokens_total=100, ended=(RequestId("x"),))
    assert sampler.sample([status()], [first], NOW_UNIX_S).output_tokens_total == 100
    second = replace(load(incarnation="b"), output_tokens_total=7)
    assert sampler.sample([status()], [second], NOW_UNIX_S).output_tokens_total == 107
