"""A request that has moved does not die with the instance that it left."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
import redis

from engine_pool.client import PoolClient
from engine_pool.errors import InstanceLost
from engine_pool.loss_watch import ARRIVAL_TICKS, GIVE_UP_TICKS, MOVING_TICKS
from engine_pool.stream import Stream
from engine_pool.token_log import TokenFrame, route_key
from engine_pool.types import InstanceState, RequestId
from migration.report import MoveState
from tests.controlplane.fakes import (
    FakeSink,
    Producer,
    load_of,
    move_of,
    status_of,
    until,
)
from tests.controlplane.test_dispatcher import pool, submission

pytestmark = pytest.mark.asyncio

LOST = status_of("i-01", InstanceState.LOST)


@pytest.fixture(autouse=True)
def _short_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine_pool.loss_watch.TICK_S", 0.005)


class Pool:
    """A web process with one request, "a", at i-01."""

    def __init__(self, client: PoolClient) -> None:
        self.client = client
        sink = client.sink.sink
        assert isinstance(sink, FakeSink)
        self.sink = sink
        self._seqs = {"i-01": 1, "i-02": 1}

    @property
    def stream(self) -> Stream | None:
        return next(iter(self.client.reader.streams_of(["a"])), None)

    @property
    def place(self) -> str:
        return self.stream.instance if self.stream else "no stream"

    @property
    def error(self) -> str:
        codes = [f.error.code for f in self.sink.frames if f.error]
        return codes[0] if codes else ""

    def report(self, name: str, *, running: tuple[str, ...] = (), waiting: bool = False) -> None:
        self._seqs[name] += 1
        waits = ("a",) if waiting else ()
        self.client.view.apply(load_of(name, seq=self._seqs[name], running=running, waiting=waits))

    async def ticks(self, count: int, *names: str) -> None:
        """Lets that many ticks pass, in each of which these instances report that they have
        nothing."""
        seen = 0
        watch = self.client.watch
        counted = asyncio.Event()
        original = watch._count_absent

        def count_absent(*args: object) -> None:
            nonlocal seen
            original(*args)  # type: ignore[arg-type]
            seen += 1
            if seen >= count:
                counted.set()
            for name in names:
                self.report(name)

        watch._count_absent = count_absent  # type: ignore[method-assign]
        async with asyncio.timeout(60):
            await counted.wait()
        watch._count_absent = original  # type: ignore[method-assign]
        # What the last tick gave up is ended by now, or will not be.
        await self.client.log.newest("a")
        await until(lambda: self.client.replays.waiting == 0)


@contextlib.asynccontextmanager
async def one_request(url: str) -> AsyncIterator[Pool]:
    used = {"i-02": 5000}
    async with pool(url, "i-01", "i-02", used=used, replay=False) as (client, _):
        await client.dispatcher.submit(submission("a"))
        made = Pool(client)
        assert made.place == "i-01"
        yield made


async def test_a_queued_request_that_another_instance_reports_has_moved(store_url: str) -> None:
    async with one_request(store_url) as p:
        p.report("i-01")
        p.report("i-02", waiting=True)
        await until(lambda: p.place == "i-02")
        assert p.stream is not None
        assert p.stream.actor == "actor-i-02"
        await p.ticks(2 * GIVE_UP_TICKS, "i-01")
        assert p.error == ""


async def test_a_committed_move_moves_the_stream_at_once(store_url: str) -> None:
    async with one_request(store_url) as p:
        p.client.view.apply(move_of("a", MoveState.COMMITTING))
        assert p.place == "i-01"
        p.client.view.apply(move_of("a", MoveState.COMMITTED, seq=2))
        assert p.place == "i-02"


async def test_an_old_report_of_a_move_does_not_pull_a_stream_back(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with one_request(store_url) as p:
        producer = Producer(store)
        producer.write("a", 0, [0])
        producer.write("a", 1, [1], epoch=2, instance="i-02")
        producer.write("a", 2, [2], epoch=3)
        await until(lambda: p.sink.tokens("a") == [0, 1, 2])
        # It came back meanwhile; this report is about the way there.
        p.client.view.apply(move_of("a", MoveState.COMMITTED, output_tokens=1))
        assert p.place == "i-01"


async def test_the_sources_last_frames_do_not_pull_a_stream_back(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with one_request(store_url) as p:
        producer = Producer(store)
        producer.write("a", 0, [0])
        await until(lambda: p.sink.tokens("a") == [0])
        p.client.view.apply(move_of("a", MoveState.COMMITTED, output_tokens=2))
        producer.write("a", 1, [1])
        await until(lambda: p.sink.tokens("a") == [0, 1])
        assert p.place == "i-02"
        producer.write("a", 2, [2], epoch=2, instance="i-02")
        await until(lambda: p.sink.tokens("a") == [0, 1, 2])
        assert [v.at_token for _, _, v in p.sink.visits] == [2]


async def test_a_request_that_its_lost_instance_had_given_away_goes_on(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with one_request(store_url) as p:
        Producer(store).write("a", 0, [0])
        # The source's last report is from before the move.
        p.report("i-01", running=("a",))
        p.report("i-02", running=("a",))
        p.client.view.apply(LOST)
        assert p.place == "i-02"
        await p.ticks(2 * ARRIVAL_TICKS)
        assert Producer(store).write("a", 1, [1], epoch=2, instance="i-02")
        await until(lambda: p.sink.tokens("a") == [0, 1])
        assert p.error == ""


@pytest.mark.parametrize("state", [MoveState.PAUSED, MoveState.COMMITTING])
async def test_a_source_that_dies_before_it_could_say_so_is_waited_for_at_the_destination(
    store_url: str, store: "redis.Redis[bytes]", state: MoveState
) -> None:
    async with one_request(store_url) as p:
        Producer(store).write("a", 0, [0])
        p.client.view.apply(move_of("a", state, output_tokens=1))
        p.client.view.apply(LOST)
        await p.ticks(ARRIVAL_TICKS - 2)
        assert p.error == ""
        p.report("i-02", running=("a",))
        await until(lambda: p.place == "i-02")
        assert Producer(store).write("a", 1, [1], epoch=2, instance="i-02")
        await until(lambda: p.sink.tokens("a") == [0, 1])
        assert p.error == ""


async def test_a_request_that_did_not_arrive_ends_with_its_source(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with one_request(store_url) as p:
        Producer(store).write("a", 0, [0])
        p.client.view.apply(move_of("a", MoveState.COMMITTING, output_tokens=1))
        p.client.view.apply(LOST)
        await until(lambda: p.error == InstanceLost.code)
        # Whatever the destination holds, it has nothing to say any more.
        assert not Producer(store).write("a", 1, [1], epoch=2, instance="i-02")


async def test_a_move_that_was_given_up_saves_nobody(store_url: str) -> None:
    async with one_request(store_url) as p:
        p.client.view.apply(move_of("a", MoveState.ABORTED))
        p.client.view.apply(LOST)
        assert p.client.replays.waiting == 1
        await until(lambda: p.error == InstanceLost.code)


async def test_both_sides_of_a_move_may_be_lost(store_url: str) -> None:
    async with one_request(store_url) as p:
        p.client.view.apply(move_of("a", MoveState.COMMITTING))
        p.client.view.apply(status_of("i-02", InstanceState.LOST))
        p.client.view.apply(LOST)
        await until(lambda: p.error == InstanceLost.code)


async def test_a_destination_that_dies_right_after_the_commit_ends_the_stream(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with one_request(store_url) as p:
        Producer(store).write("a", 0, [0])
        p.report("i-01", running=("a",))
        p.client.view.apply(move_of("a", MoveState.COMMITTED, output_tokens=1))
        assert p.place == "i-02"
        p.client.view.apply(status_of("i-02", InstanceState.LOST))
        # Not back to the source, whose last report is from before the commit.
        assert p.place == "i-02"
        await until(lambda: p.error == InstanceLost.code)
        assert not Producer(store).write("a", 1, [1], epoch=2, instance="i-02")


async def test_a_destination_that_nobody_heard_of_may_have_written_already(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with one_request(store_url) as p:
        producer = Producer(store)
        producer.write("a", 0, [0])
        await until(lambda: p.sink.tokens("a") == [0])
        # No report, no message: only the log knows.
        store.set(route_key("a"), "ferry:tokens:nobody")
        producer.write("a", 1, [1], epoch=2, instance="i-02")
        store.set(route_key("a"), p.client.reader.channel)
        p.client.view.apply(LOST)
        await until(lambda: p.sink.tokens("a") == [0, 1])
        assert p.place == "i-02"
        assert producer.write("a", 2, [2], epoch=2, instance="i-02")
        await until(lambda: p.sink.tokens("a") == [0, 1, 2])
        assert p.error == ""


async def test_a_frame_that_comes_while_the_log_is_being_closed_keeps_it_open(
    store_url: str, store: "redis.Redis[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    async with one_request(store_url) as p:
        producer = Producer(store)
        producer.write("a", 0, [0])
        await until(lambda: p.sink.tokens("a") == [0])
        newest = p.client.log.newest

        async def and_then_a_frame(request_id: str) -> tuple[str, TokenFrame | None]:
            found = await newest(request_id)
            monkeypatch.setattr(p.client.log, "newest", newest)
            producer.write("a", 1, [1], epoch=2, instance="i-02")
            return found

        monkeypatch.setattr(p.client.log, "newest", and_then_a_frame)
        p.client.view.apply(LOST)
        await until(lambda: p.sink.tokens("a") == [0, 1])
        await p.ticks(2 * ARRIVAL_TICKS)
        assert p.place == "i-02"
        assert p.error == ""
        assert producer.write("a", 2, [2], epoch=2, instance="i-02")


async def test_a_source_in_doubt_is_given_more_time(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with one_request(store_url) as p:
        Producer(store).write("a", 0, [0])
        p.client.view.apply(move_of("a", MoveState.COMMITTING, output_tokens=1))
        p.report("i-01")
        await p.ticks(MOVING_TICKS - 10, "i-01")
        assert p.error == ""
        # It got the request back.
        p.client.view.apply(move_of("a", MoveState.ABORTED, seq=2, output_tokens=1))
        p.report("i-01", running=("a",))
        await p.ticks(2)
        assert p.stream is not None
        assert p.stream.absent_ticks == 0


async def test_a_move_that_never_ends_does_not_hold_a_stream_for_ever(store_url: str) -> None:
    async with one_request(store_url) as p:
        p.client.view.apply(move_of("a", MoveState.COMMITTING))
        p.report("i-01")
        await p.ticks(MOVING_TICKS + 2, "i-01")
        await until(lambda: p.error == InstanceLost.code)


async def test_a_stream_learns_of_an_instance_that_it_reached_first(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with one_request(store_url) as p:
        producer = Producer(store)
        producer.write("a", 0, [0])
        producer.write("a", 1, [1], epoch=2, instance="i-03")
        await until(lambda: p.sink.tokens("a") == [0, 1])
        assert p.stream is not None
        assert p.stream.actor == ""
        p.client.view.apply(status_of("i-03"))
        await until(lambda: p.stream is not None and p.stream.actor == "actor-i-03")
        p.client.view.apply(status_of("i-03", InstanceState.LOST))
        await until(lambda: p.error == InstanceLost.code)


async def test_the_last_report_of_a_lost_instance_holds_nothing(store_url: str) -> None:
    async with one_request(store_url) as p:
        view = p.client.view
        p.report("i-01", running=("a",))
        p.report("i-02", running=("a",))
        assert [s.instance for s in view.holders("a")] == ["i-01", "i-02"]
        view.apply(LOST)
        assert [s.instance for s in view.holders("a")] == ["i-02"]
        view.apply(status_of("i-02", InstanceState.STARTING, "b"))
        assert view.holder("a") is None


async def test_the_ledger_counts_a_moved_request_where_it_is(store_url: str) -> None:
    async with one_request(store_url) as p:
        p.client.view.apply(move_of("a", MoveState.COMMITTED))
        ledger = {e.request_id: e.instance for e in p.client.view.ledger.entries()}
        assert ledger == {RequestId("a"): "i-02"}
        p.report("i-02", waiting=True)
        assert p.client.view.ledger.entries() == ()
