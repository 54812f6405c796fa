"""A stream goes on when its request moves to another instance, against a real store."""

import pytest
import redis

from engine_pool.stream import Stream, Visit
from engine_pool.token_log import StreamError, route_key
from engine_pool.types import InstanceName
from tests.controlplane.fakes import Producer, status_of, until
from tests.controlplane.test_token_reader import Reading, reading

pytestmark = pytest.mark.asyncio


FROM_1_TO_2 = (InstanceName("i-01"), InstanceName("i-02"))


async def sent(r: Reading, request_id: str = "a") -> Stream:
    """Opens a stream of a request that was sent to i-01."""
    stream = await r.open(request_id)
    stream.send_to(status_of("i-01"))
    return stream


async def test_tokens_of_two_instances_are_one_stream_and_the_visit_is_told_between_them(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with reading(store_url) as r:
        stream = await sent(r)
        producer = Producer(store)
        producer.write("a", 0, [0])
        producer.write("a", 1, [1, 2])
        producer.write("a", 3, [3], epoch=2, instance="i-02")
        producer.write("a", 4, [4], epoch=2, instance="i-02")
        await until(lambda: r.sink.tokens("a") == [0, 1, 2, 3, 4])
        ((before, request_id, visit),) = r.sink.visits
        assert (before, request_id) == (2, "a")
        assert (visit.origin, visit.instance, visit.at_token) == ("i-01", "i-02", 3)
        assert visit.gap_ms is not None
        assert visit.gap_ms >= 0
        assert stream.visits == [visit]
        assert (stream.instance, stream.incarnation, stream.actor) == ("i-02", "a", "actor-i-02")


async def test_an_unknown_destination_is_a_place_too(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with reading(store_url) as r:
        stream = await sent(r)
        producer = Producer(store)
        producer.write("a", 0, [0])
        producer.write("a", 1, [1], epoch=2, instance="i-09")
        await until(lambda: r.sink.tokens("a") == [0, 1])
        assert (stream.instance, stream.incarnation, stream.actor) == ("i-09", "", "")


async def test_a_move_whose_messages_were_lost_is_found_in_the_log(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with reading(store_url) as r:
        stream = await sent(r)
        producer = Producer(store)
        producer.write("a", 0, [0])
        await until(lambda: r.sink.tokens("a") == [0])
        store.set(route_key("a"), "ferry:tokens:nobody")
        producer.write("a", 1, [1])
        producer.write("a", 2, [2], epoch=2, instance="i-02")
        store.set(route_key("a"), r.reader.channel)
        producer.write("a", 3, [3], epoch=2, instance="i-02")
        await until(lambda: r.sink.tokens("a") == [0, 1, 2, 3])
        # Nobody here saw the gap.
        assert r.sink.visits == [(2, "a", Visit(*FROM_1_TO_2, 2, None))]
        assert stream.actor == "actor-i-02"


async def test_a_resumed_stream_takes_the_place_of_its_newest_frame(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with reading(store_url) as first, reading(store_url, name="web-2") as second:
        await sent(first)
        producer = Producer(store)
        producer.write("a", 0, [0])
        producer.write("a", 1, [1], epoch=2, instance="i-02")
        producer.write("a", 2, [2], epoch=3, instance="i-03")
        await until(lambda: first.sink.tokens("a") == [0, 1, 2])
        again = Stream("a", lambda: 0)
        again.send_to(status_of("i-01"))
        await second.reader.resume(again)
        producer.write("a", 3, [3], epoch=3, instance="i-03")
        await until(lambda: second.sink.tokens("a") == [0, 1, 2, 3])
        assert [v.instance for v in again.visits] == ["i-02", "i-03"]
        assert [v.at_token for v in again.visits] == [1, 2]
        assert again.actor == "actor-i-03"


async def test_a_request_may_come_back_to_an_instance(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with reading(store_url) as r:
        stream = await sent(r)
        producer = Producer(store)
        producer.write("a", 0, [0])
        producer.write("a", 1, [1], epoch=2, instance="i-02")
        producer.write("a", 2, [2], epoch=3)
        await until(lambda: r.sink.tokens("a") == [0, 1, 2])
        assert [v.instance for v in stream.visits] == ["i-02", "i-01"]
        assert stream.actor == "actor-i-01"


async def test_a_move_that_was_given_up_is_no_visit(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with reading(store_url) as r:
        stream = await sent(r)
        producer = Producer(store)
        producer.write("a", 0, [0])
        producer.write("a", 1, [1])
        # The source was in doubt, shut the destination out and goes on.
        assert producer.reclaim("a", 1) == 3
        assert not producer.write("a", 2, [9], epoch=2, instance="i-02")
        producer.write("a", 2, [2], epoch=3)
        await until(lambda: r.sink.tokens("a") == [0, 1, 2])
        assert stream.visits == []
        # Who reads it later passes the fence.
        await r.reader.resume(Stream("a", lambda: 0))
        await until(lambda: r.sink.tokens("a") == [0, 1, 2, 0, 1, 2])


async def test_a_queued_request_moves_before_its_first_token(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with reading(store_url) as r:
        await sent(r)
        Producer(store).write("a", 0, [0], epoch=2, instance="i-02")
        await until(lambda: r.sink.tokens("a") == [0])
        assert r.sink.visits == [(0, "a", Visit(*FROM_1_TO_2, 0, None))]


async def test_an_error_in_the_name_of_another_instance_is_no_visit(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with reading(store_url) as r:
        await sent(r)
        Producer(store).write("a", 0, [0])
        await r.log.end_with_error("a", instance="i-02", error=StreamError("c", "m"))
        await until(lambda: r.reader.streams == ())
        assert r.sink.frames[-1].error is not None
        assert r.sink.visits == []


async def test_the_last_token_of_a_request_may_be_its_first_at_the_destination(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with reading(store_url) as r:
        await sent(r)
        producer = Producer(store)
        producer.write("a", 0, [0])
        producer.write("a", 1, [1], epoch=2, instance="i-02", finish="stop")
        await until(lambda: r.sink.tokens("a") == [0, 1])
        assert [v.instance for _, _, v in r.sink.visits] == ["i-02"]
        assert r.reader.streams == ()


async def test_a_log_that_has_grown_meanwhile_is_not_closed(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with reading(store_url) as r:
        await sent(r)
        producer = Producer(store)
        producer.write("a", 0, [0])
        last_entry, frame = await r.log.newest("a")
        assert (last_entry, frame and frame.end) == ("1-1", 1)
        producer.write("a", 1, [1], epoch=2, instance="i-02")
        error = StreamError("instance_lost", "gone")
        assert not await r.log.end_with_error("a", instance="i-01", error=error, if_last=last_entry)
        # The destination was not shut out.
        assert producer.write("a", 2, [2], epoch=2, instance="i-02")
        last_entry, _ = await r.log.newest("a")
        assert await r.log.end_with_error("a", instance="i-02", error=error, if_last=last_entry)
        assert not producer.write("a", 3, [3], epoch=2, instance="i-02")
        assert not producer.write("a", 3, [3], epoch=3, instance="i-03")
        await until(lambda: r.reader.streams == ())
        assert r.sink.tokens("a") == [0, 1, 2]


async def test_an_empty_log_is_closed_only_while_it_is_empty(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with reading(store_url) as r:
        await sent(r)
        assert await r.log.newest("a") == ("", None)
        Producer(store).write("a", 0, [0], epoch=2, instance="i-02")
        error = StreamError("instance_lost", "gone")
        assert not await r.log.end_with_error("a", instance="i-01", error=error, if_last="")
        assert Producer(store).write("a", 1, [1], epoch=2, instance="i-02")
