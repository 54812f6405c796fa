"""The live view, against a real store."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest
import redis

from engine_pool import view
from engine_pool.ledger import LEDGER_LIFE_S
from engine_pool.live_view import LiveView
from engine_pool.store import connect_async
from engine_pool.types import FleetEvent, InFlight, InstanceName, PriorityClass, RequestId
from engine_pool.view import Bulletin
from tests.controlplane.fakes import assert_ends_after, load_of, status_of, until
from tests.controlplane.moving_pool import committed

TURNS = 30
"""Of the event loop: a broken connection is seen within about five."""

pytestmark = pytest.mark.asyncio


@contextlib.asynccontextmanager
async def following(url: str) -> AsyncIterator[LiveView]:
    client = connect_async(url)
    live = LiveView(client)
    task = asyncio.create_task(live.run())
    await until(lambda: live.store_connected)
    try:
        yield live
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.aclose()


def sent(request_id: str, at_unix_s: float) -> InFlight:
    return InFlight(
        RequestId(request_id), InstanceName("i-01"), PriorityClass.NORMAL, 10, at_unix_s
    )


async def test_it_has_what_was_there_before_and_what_comes(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    bulletin = Bulletin(store)
    bulletin.report_status(status_of("i-01"))
    bulletin.report_event(FleetEvent(1.0, "k", "first", ""))
    async with following(store_url) as live:
        assert set(live.statuses) == {"i-01"}
        bulletin.report_status(status_of("i-02"))
        bulletin.report_load(load_of("i-02"))
        bulletin.report_event(FleetEvent(2.0, "k", "second", ""))
        await until(lambda: len(live.events) == 2 and "i-02" in live.loads)
        assert [e.headline for e in live.events] == ["second", "first"]
        bulletin.forget(InstanceName("i-02"))
        await until(lambda: "i-02" not in live.statuses)
        assert "i-02" not in live.loads


async def test_an_older_report_does_not_replace_a_newer_one(store_url: str) -> None:
    async with following(store_url) as live:
        live.apply(load_of("i-01", seq=5))
        live.apply(load_of("i-01", seq=4))
        assert live.loads[InstanceName("i-01")].seq == 5
        live.apply(load_of("i-01", seq=1, incarnation="b"))
        assert live.loads[InstanceName("i-01")].incarnation == "b"


async def test_the_ledger_forgets_what_is_shown_or_too_old(store_url: str) -> None:
    async with following(store_url) as live:
        now = time.time()
        live.note_sent([sent("a", now), sent("b", now)])
        live.apply(load_of("i-01", running=["a"]))
        assert [e.request_id for e in live.pool_view(now).in_flight] == ["b"]
        # Its own message comes back later than the report: it must not count again.
        live.note_sent([sent("a", now)])
        assert [e.request_id for e in live.pool_view(now).in_flight] == ["b"]
        assert live.pool_view(now + LEDGER_LIFE_S + 0.1).in_flight == ()


async def test_it_comes_back_after_a_broken_connection(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with following(store_url) as live:
        store.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        await until(lambda: not live.store_connected)
        Bulletin(store).report_status(status_of("i-09"))
        await until(lambda: live.store_connected and "i-09" in live.statuses)


async def test_instances_that_went_while_it_was_away_are_gone(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    Bulletin(store).report_status(status_of("i-01"))
    async with following(store_url) as live:
        told: list[view.Change] = []
        live.add_listener(told.append)
        store.hdel(view.STATUSES, "i-01")
        store.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        await until(lambda: "i-01" not in live.statuses)
        assert "i-01" in told


async def test_it_ends_though_its_connections_break_at_that_moment(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    client = connect_async(store_url)
    for turns in range(TURNS):
        live = LiveView(client)
        task = asyncio.create_task(live.run())
        await until(lambda live=live: live.store_connected)
        store.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        store.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await assert_ends_after(task, turns)
    await client.aclose()


async def test_garbage_on_the_channel_is_ignored(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with following(store_url) as live:
        store.publish(view.FLEET_CHANNEL, b"L\xc1")
        store.publish(view.FLEET_CHANNEL, b"?what")
        Bulletin(store).report_status(status_of("i-01"))
        await until(lambda: "i-01" in live.statuses)


@pytest.mark.parametrize(
    "order", [("i-01", "i-02"), ("i-02", "i-01")], ids=["source first", "last"]
)
async def test_of_two_that_report_a_request_the_one_it_moved_to_holds_it(
    order: tuple[str, ...],
) -> None:
    """The source's last report is from before the move, for a moment."""
    seen = LiveView(connect_async("redis://127.0.0.1:1"))
    for name in order:
        seen.apply(status_of(name))
        seen.apply(load_of(name, 1, used=160, running=["r1"]))
    seen.apply(committed("m1"))
    holder = seen.holder("r1")
    assert holder is not None
    assert holder.instance == "i-02"
