"""The reading side of the token path, against a real store."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis
import redis.asyncio

from engine_pool import view
from engine_pool.errors import ServerStopping, StoreUnavailable, StreamGone, StreamSuperseded
from engine_pool.store import connect, connect_async
from engine_pool.stream import Stream
from engine_pool.token_log import FENCE_EPOCHS, LogTimes, TokenLogReader, log_key, route_key
from engine_pool.token_reader import UNREAD_MAX, TokenReader
from tests.controlplane.fakes import FakeSink, Producer, status_of, until
from tests.embedded_store import started_store

pytestmark = pytest.mark.asyncio


class Reading:
    """A running reader with its sink."""

    def __init__(self, url: str, store_timeout_s: float = 5.0, name: str = "web-1") -> None:
        self.store = connect_async(url)
        self.log = TokenLogReader(self.store, LogTimes())
        self.sink = FakeSink()
        self.reader = TokenReader(
            self.store,
            self.log,
            self.sink,
            web_process=name,
            store_timeout_s=store_timeout_s,
            status_of=lambda instance: None if instance == "i-09" else status_of(instance),
        )
        self.unread = 0

    async def open(self, request_id: str) -> Stream:
        stream = Stream(request_id, lambda: self.unread)
        self.reader.open(stream)
        await self.log.open([request_id], self.reader.channel)
        return stream


@contextlib.asynccontextmanager
async def reading(url: str, **options: object) -> AsyncIterator[Reading]:
    made = Reading(url, **options)  # type: ignore[arg-type]
    task = asyncio.create_task(made.reader.run())
    await until(lambda: made.reader.is_connected)
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await made.store.aclose()


async def test_tokens_arrive_in_order_and_the_stream_closes_with_its_last_frame(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with reading(store_url) as r:
        await r.open("a")
        producer = Producer(store)
        for i in range(5):
            producer.write("a", i, [i])
        producer.write("a", 5, [5], finish="stop")
        await until(lambda: r.sink.tokens("a") == [0, 1, 2, 3, 4, 5])
        assert r.reader.streams == ()


async def test_a_lost_message_is_healed_from_the_log(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with reading(store_url) as r:
        await r.open("a")
        producer = Producer(store)
        producer.write("a", 0, [0])
        await until(lambda: r.sink.tokens("a") == [0])
        # These two are logged but told to nobody.
        store.set(route_key("a"), "ferry:tokens:nobody")
        producer.write("a", 1, [1])
        producer.write("a", 2, [2])
        store.set(route_key("a"), r.reader.channel)
        producer.write("a", 3, [3])
        await until(lambda: r.sink.tokens("a") == [0, 1, 2, 3])
        producer.write("a", 4, [4], finish="length")
        await until(lambda: r.sink.tokens("a") == [0, 1, 2, 3, 4])


async def test_a_frame_that_comes_while_the_logs_end_is_read_is_no_gap(
    store_url: str, store: "redis.Redis[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """The channel may bring it before the answer to a question that was asked earlier."""
    async with reading(store_url) as r:
        stream = await r.open("a")
        producer = Producer(store)
        producer.write("a", 0, [0])
        await until(lambda: r.sink.tokens("a") == [0])
        read = r.log.read_all_after

        async def late(request_id: str, **options: Any) -> Any:
            found = await read(request_id, **options)
            if found[1] is None and stream.missed < (1, 2):
                producer.write("a", 1, [1])
                await until(lambda: stream.missed == (1, 2))
            return found

        monkeypatch.setattr(r.log, "read_all_after", late)
        r.reader.reread("a")
        await until(lambda: r.sink.tokens("a") == [0, 1])
        producer.write("a", 2, [2], finish="stop")
        await until(lambda: r.sink.tokens("a") == [0, 1, 2])
        assert r.sink.errors == {}


async def test_a_gap_that_the_log_cannot_fill_ends_the_stream(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with reading(store_url) as r:
        await r.open("a")
        producer = Producer(store)
        producer.write("a", 0, [0])
        await until(lambda: r.sink.tokens("a") == [0])
        store.delete(log_key("a"))
        producer.write("a", 2, [2])
        await until(lambda: "a" in r.sink.errors)
        assert isinstance(r.sink.errors["a"], StreamGone)
        assert r.sink.tokens("a") == [0]


async def test_a_slow_consumer_costs_a_bounded_buffer_and_misses_nothing(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    frames = 10 * UNREAD_MAX
    async with reading(store_url) as r:
        taken: list[int] = []
        stream = Stream("a", lambda: len(r.sink.frames) - len(taken))
        r.reader.open(stream)
        await r.log.open(["a"], r.reader.channel)
        producer = Producer(store)
        await asyncio.to_thread(lambda: [producer.write("a", i, [i]) for i in range(frames)])
        producer.write("a", frames, [frames], finish="stop")
        await until(lambda: stream.is_behind)
        await asyncio.sleep(0.2)
        longest = 0
        while len(taken) <= frames:
            longest = max(longest, len(r.sink.frames) - len(taken))
            if len(r.sink.frames) > len(taken):
                taken += r.sink.frames[len(taken)].token_ids
                r.reader.note_room("a")
            else:
                await asyncio.sleep(0.001)
        assert taken == list(range(frames + 1))
        assert longest <= UNREAD_MAX + 1


async def test_another_process_takes_a_stream_over_whole(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with reading(store_url) as first, reading(store_url, name="web-2") as second:
        await first.open("a")
        producer = Producer(store)
        for i in range(300):
            producer.write("a", i, [i])
        await until(lambda: len(first.sink.tokens("a")) > 0)
        await second.reader.resume(Stream("a", lambda: 0))
        for i in range(300, 320):
            producer.write("a", i, [i])
        producer.write("a", 320, [320], finish="stop")
        await until(lambda: second.sink.tokens("a") == list(range(321)))
        await until(lambda: "a" in first.sink.errors)
        assert isinstance(first.sink.errors["a"], StreamSuperseded)


async def test_a_finished_stream_can_be_read_again(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with reading(store_url) as r:
        await r.open("a")
        Producer(store).write("a", 0, [7, 8], finish="stop")
        await until(lambda: r.sink.tokens("a") == [7, 8])
        await r.reader.resume(Stream("a", lambda: 0))
        await until(lambda: r.sink.tokens("a") == [7, 8, 7, 8])


async def test_what_the_store_does_not_have_cannot_be_resumed(store_url: str) -> None:
    async with reading(store_url) as r:
        with pytest.raises(StreamGone):
            await r.reader.resume(Stream("never", lambda: 0))
        assert r.reader.streams == ()


async def test_a_broken_connection_heals_without_a_gap(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with reading(store_url) as r:
        await r.open("a")
        producer = Producer(store)
        producer.write("a", 0, [0])
        await until(lambda: r.sink.tokens("a") == [0])
        store.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        producer.write("a", 1, [1])
        producer.write("a", 2, [2])
        await until(lambda: r.sink.tokens("a") == [0, 1, 2])
        producer.write("a", 3, [3], finish="stop")
        await until(lambda: r.sink.tokens("a") == [0, 1, 2, 3])
        assert r.sink.errors == {}


async def test_a_store_that_lost_its_memory_ends_the_streams(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with reading(store_url) as r:
        await r.open("a")
        store.flushall()
        assert store.get(view.INCARNATION) is None
        store.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        await until(lambda: "a" in r.sink.errors)
        assert isinstance(r.sink.errors["a"], StoreUnavailable)
        assert "cannot be resumed" in str(r.sink.errors["a"])
        await until(lambda: r.reader.is_connected)


async def test_a_store_that_stays_away_ends_the_streams_and_refuses_new_ones() -> None:
    server = started_store()
    url = f"redis://127.0.0.1:{server.port}/0"
    async with reading(url, store_timeout_s=0.3) as r:
        await r.open("a")
        server.stop()
        await until(lambda: "a" in r.sink.errors)
        assert isinstance(r.sink.errors["a"], StoreUnavailable)
        with pytest.raises(StoreUnavailable):
            r.reader.open(Stream("b", lambda: 0))


async def test_stopping_the_reader_tells_every_stream(store_url: str) -> None:
    made = Reading(store_url)
    task = asyncio.create_task(made.reader.run())
    await until(lambda: made.reader.is_connected)
    await made.open("a")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await made.store.aclose()
    assert isinstance(made.sink.errors["a"], ServerStopping)


async def test_a_reader_that_breaks_tells_every_stream(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Reading(store_url)

    def break_down(blob: bytes) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(made.reader, "_receive", break_down)
    task = asyncio.create_task(made.reader.run())
    await until(lambda: made.reader.is_connected)
    await made.open("a")
    Producer(connect(store_url)).write("a", 0, [0])
    await until(lambda: "a" in made.sink.errors)
    with pytest.raises(RuntimeError):
        await task
    await made.store.aclose()


async def test_a_fenced_producer_is_not_heard(store_url: str, store: "redis.Redis[bytes]") -> None:
    async with reading(store_url) as r:
        await r.open("a")
        producer = Producer(store)
        epoch, tokens = await r.log.fence("a")
        assert (epoch, tokens) == (1 + FENCE_EPOCHS, 0)
        # Neither the first producer nor one that the request has moved to meanwhile.
        assert not producer.write("a", 0, [1])
        assert not producer.write("a", 0, [1], epoch=3)
        assert producer.write("a", 0, [9], epoch=epoch)
        await until(lambda: r.sink.tokens("a") == [9])
