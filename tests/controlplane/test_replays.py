"""A lost engine's requests go on at others, from their logs; against a real store, with engines
that do as they are told."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
import redis

from engine_pool.client import PoolClient
from engine_pool.errors import InstanceLeaving, InstanceLost, ReplayRefused, RequestFatal
from engine_pool.log_marks import FENCE_EPOCHS, Lost
from engine_pool.ports import EngineRequest
from engine_pool.replay_rules import REPLAYS_MAX
from engine_pool.replay_tally import Cause
from engine_pool.stream import Stream
from engine_pool.submission import Submission
from engine_pool.token_log import LogTimes, StreamError, TokenFrame, TokenLogWriter
from engine_pool.types import InstanceState, PriorityClass
from tests.controlplane.fakes import (
    FakeGate,
    FakeSink,
    Producer,
    load_of,
    request_of,
    status_of,
    until,
)
from tests.controlplane.test_dispatcher import pool, submission

pytestmark = pytest.mark.asyncio

EPOCH = 1 + FENCE_EPOCHS
"""Of the producer after the first replay."""
WHILE_S = 0.2
"""In which more would be offered, were it allowed."""
USED = {"i-02": 2000, "i-03": 4000}
"""So i-01 takes a new request, and i-02 what that one loses."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine_pool.loss_watch.TICK_S", 0.02)
    monkeypatch.setattr("engine_pool.replays.RETRY_AFTER_S", 0.01)


def sink_of(client: PoolClient) -> FakeSink:
    sink = client.sink.sink
    assert isinstance(sink, FakeSink)
    return sink


def error_of(client: PoolClient) -> str:
    codes = [f.error.code for f in sink_of(client).frames if f.error]
    return codes[0] if codes else ""


def sent(gate: FakeGate) -> list[tuple[str, str]]:
    """Returns (request, instance) of all that was submitted, in order."""
    return [
        (i, actor.removeprefix("actor-"))
        for kind, actor, ids in gate.calls
        if kind == "submit"
        for i in ids
    ]


def lose(client: PoolClient, name: str, incarnation: str = "a") -> None:
    client.view.apply(status_of(name, InstanceState.LOST, incarnation))


def serve(client: PoolClient, name: str, incarnation: str, used: int = 0) -> None:
    client.view.apply(status_of(name, incarnation=incarnation))
    client.view.apply(load_of(name, incarnation=incarnation, used=used))


async def test_a_lost_request_goes_on_at_another_instance_after_its_last_token(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with pool(store_url, "i-01", "i-02", used=USED) as (client, gate):
        await client.dispatcher.submit(submission("a"))
        producer, sink = Producer(store), sink_of(client)
        producer.write("a", 0, [1])
        producer.write("a", 1, [2, 3])
        lose(client, "i-01")
        await until(lambda: len(gate.requests) == 2)
        again = gate.requests[1]
        assert sent(gate)[1] == ("a", "i-02")
        assert again.output_token_ids == (1, 2, 3)
        assert again == replace(
            gate.requests[0], epoch=EPOCH, output_token_ids=again.output_token_ids
        )
        # What was only believed to be dead finds its door closed.
        assert not producer.write("a", 3, [99])
        assert producer.write("a", 3, [4], epoch=EPOCH, instance="i-02")
        assert producer.write("a", 4, [5], epoch=EPOCH, instance="i-02", finish="stop")
        await until(lambda: sink.tokens("a") == [1, 2, 3, 4, 5])
        ((before, _, visit),) = sink.visits
        assert (visit.origin, visit.instance, visit.at_token) == ("i-01", "i-02", 3)
        assert [one.instance for one in visit.lost] == ["i-01"]
        assert "died (a test)" in visit.lost[0].why
        assert [f.instance for f in sink.frames[before:]] == ["i-02", "i-02"]
        assert client.replays.tally.replayed == {Cause.DIED: 1}
        assert client.reader.streams == ()


async def test_a_request_without_a_token_begins_anew(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with pool(store_url, "i-01", "i-02", used=USED) as (client, gate):
        await client.dispatcher.submit(submission("a"))
        lose(client, "i-01")
        await until(lambda: len(gate.requests) == 2)
        assert gate.requests[1].output_token_ids == ()
        Producer(store).write("a", 0, [7], epoch=EPOCH, instance="i-02", finish="stop")
        await until(lambda: sink_of(client).tokens("a") == [7])
        assert [v.is_replay for _, _, v in sink_of(client).visits] == [True]


def of_class(request_id: str, priority: PriorityClass, arrived: float) -> Submission:
    request = replace(request_of(request_id), priority_class=priority, arrival_unix_s=arrived)
    return Submission([request], lambda: 0, f"record-{request_id}", {})


CROWD = [
    ("low", PriorityClass.LOW, 1.0),
    ("late", PriorityClass.NORMAL, 3.0),
    ("early", PriorityClass.NORMAL, 2.0),
    ("high", PriorityClass.HIGH, 4.0),
]


async def test_higher_classes_go_first_a_few_at_a_time(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with pool(store_url, "i-01", used=USED, replays_at_once=1) as (client, gate):
        for request_id, priority, arrived in CROWD:
            await client.dispatcher.submit(of_class(request_id, priority, arrived))
            Producer(store).write(request_id, 0, [1])
        serve(client, "i-02", "a")
        gate.calls.clear()
        gate.hold.clear()
        lose(client, "i-01")
        await until(lambda: len(gate.calls) == 1)
        gate.hold.set()
        await until(lambda: len(gate.calls) == len(CROWD))
        assert [request_id for request_id, _ in sent(gate)] == ["high", "early", "late", "low"]


async def test_no_more_than_the_setting_says_are_offered_at_once(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with pool(store_url, "i-01", replays_at_once=2) as (client, gate):
        for request_id, priority, arrived in CROWD:
            await client.dispatcher.submit(of_class(request_id, priority, arrived))
            Producer(store).write(request_id, 0, [1])
        serve(client, "i-02", "a")
        gate.calls.clear()
        gate.hold.clear()
        lose(client, "i-01")
        await until(lambda: bool(sent(gate)))
        # One call at a time goes to an engine, with what has come until then: one or both.
        await asyncio.sleep(WHILE_S)
        assert client.replays.waiting == len(CROWD)
        assert {request_id for request_id, _ in sent(gate)} <= {"high", "early"}
        gate.hold.set()
        await until(lambda: client.replays.waiting == 0)
        assert all(len(ids) <= 2 for _, _, ids in gate.calls)
        assert {request_id for request_id, _ in sent(gate)[:2]} == {"high", "early"}
        assert {request_id for request_id, _ in sent(gate)} == {name for name, *_ in CROWD}


def leave(store: "redis.Redis[bytes]", request_id: str, start: int, epoch: int = 1) -> bool:
    """A living engine sends a request elsewhere."""
    error = StreamError(InstanceLeaving.code, "its drain's deadline passed")
    frame = TokenFrame(request_id, epoch, start, (), "i-01", error=error)
    return not TokenLogWriter(store, LogTimes()).append([frame]).refused


async def test_a_living_engine_can_send_a_request_elsewhere(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with pool(store_url, "i-01", "i-02", used=USED) as (client, gate):
        await client.dispatcher.submit(submission("a"))
        producer, sink = Producer(store), sink_of(client)
        producer.write("a", 0, [1, 2])
        client.view.apply(status_of("i-01", InstanceState.DRAINING))
        assert leave(store, "a", 2)
        await until(lambda: len(gate.requests) == 2)
        again = gate.requests[1]
        assert again.output_token_ids == (1, 2)
        assert not producer.write("a", 2, [9]), "it has shut itself out"
        producer.write("a", 2, [3], epoch=again.epoch, instance="i-02", finish="stop")
        await until(lambda: sink.tokens("a") == [1, 2, 3])
        ((_, _, visit),) = sink.visits
        assert [one.why for one in visit.lost] == ["its drain's deadline passed"]
        assert client.replays.tally.replayed == {Cause.LEFT: 1}


async def test_a_message_of_a_leaving_engine_that_was_lost_costs_a_while_only(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with pool(store_url, "i-01", "i-02", used=USED) as (client, gate):
        await client.dispatcher.submit(submission("a"))
        Producer(store).write("a", 0, [1])
        client.reader.on_leaving = lambda stream, lost: None
        client.view.apply(status_of("i-01", InstanceState.DRAINING))
        leave(store, "a", 1)
        seq = 2

        def reported() -> bool:
            nonlocal seq
            seq += 1
            client.view.apply(load_of("i-01", seq=seq))
            return len(gate.requests) == 2

        await until(reported)
        assert gate.requests[1].output_token_ids == (1,)
        Producer(store).write(
            "a", 1, [2], epoch=gate.requests[1].epoch, instance="i-02", finish="stop"
        )
        await until(lambda: sink_of(client).tokens("a") == [1, 2])
        ((_, _, visit),) = sink_of(client).visits
        assert len(visit.lost) == 1, "one life, whoever names it"


async def test_it_waits_for_an_instance_and_may_go_back_to_the_same_one(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with pool(store_url, "i-01") as (client, gate):
        await client.dispatcher.submit(submission("a"))
        Producer(store).write("a", 0, [1])
        lose(client, "i-01")
        client.view.apply(status_of("i-01", InstanceState.STARTING, "b"))
        await until(lambda: client.replays.waiting == 1)
        serve(client, "i-01", "b")
        await until(lambda: len(gate.requests) == 2)
        Producer(store).write("a", 1, [2], epoch=EPOCH, finish="stop")
        await until(lambda: sink_of(client).tokens("a") == [1, 2])
        ((_, _, visit),) = sink_of(client).visits
        assert (visit.origin, visit.instance) == ("i-01", "i-01")
        assert visit.is_replay


async def test_who_finds_nobody_in_time_ends(store_url: str) -> None:
    async with pool(store_url, "i-01", replay_wait_s=0.05) as (client, _):
        await client.dispatcher.submit(submission("a"))
        lose(client, "i-01")
        await until(lambda: error_of(client) == InstanceLost.code)
        assert client.replays.tally.ended == {InstanceLost.code: 1}


async def test_when_the_whole_pool_is_stopped_nobody_waits(store_url: str) -> None:
    async with pool(store_url, "i-01", "i-02", used=USED, replay_wait_s=3600.0) as (client, gate):
        await client.dispatcher.submit(submission("a"))
        client.view.apply(status_of("i-02", InstanceState.STOPPED))
        client.view.apply(status_of("i-01", InstanceState.STOPPED))
        await until(lambda: error_of(client) == InstanceLost.code)
        assert len(gate.requests) == 1


async def test_without_replay_it_ends(store_url: str) -> None:
    async with pool(store_url, "i-01", "i-02", used=USED, replay=False) as (client, gate):
        await client.dispatcher.submit(submission("a"))
        lose(client, "i-01")
        await until(lambda: error_of(client) == InstanceLost.code)
        assert len(gate.requests) == 1


async def test_a_request_that_engines_die_with_is_not_tried_on_a_third(store_url: str) -> None:
    async with pool(store_url, "i-01", "i-02", "i-03", used=USED) as (client, gate):
        await client.dispatcher.submit(submission("a"))
        lose(client, "i-01")
        await until(lambda: len(gate.requests) == 2 and client.replays.waiting == 0)
        lose(client, "i-02")
        await until(lambda: error_of(client) == RequestFatal.code)
        assert len(gate.requests) == 2
        assert client.replays.tally.ended == {RequestFatal.code: 1}


async def test_suspects_are_tried_one_after_another_so_that_the_innocent_go_on(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with pool(store_url, "i-01") as (client, gate):
        for request_id in ("poison", "other"):
            await client.dispatcher.submit(of_class(request_id, PriorityClass.NORMAL, 1.0))
        lose(client, "i-01")
        serve(client, "i-02", "a")
        await until(lambda: len(gate.requests) == 3)
        first = gate.requests[2].request_id
        second = "other" if first == "poison" else "poison"
        await until(lambda: client.replays.waiting == 1)
        # The first has not spoken yet, so the second waits; now it does.
        Producer(store).write(first, 0, [1], epoch=EPOCH, instance="i-02")
        await until(lambda: len(gate.requests) == 4)
        assert gate.requests[3].request_id == second
        await until(lambda: client.replays.waiting == 0)
        lose(client, "i-02")
        serve(client, "i-03", "a")
        await until(lambda: len(gate.requests) == 5)
        assert gate.requests[4].request_id == first
        assert gate.requests[4].output_token_ids == (1,)
        await until(lambda: bool(error_of(client)))
        ended = [f for f in sink_of(client).frames if f.error]
        assert [(f.request_id, f.error and f.error.code) for f in ended] == [
            (second, RequestFatal.code)
        ]


async def test_what_waited_in_a_dead_engines_queue_is_no_suspect(store_url: str) -> None:
    async with pool(store_url, "i-01") as (client, gate):
        for request_id in ("a", "b"):
            await client.dispatcher.submit(of_class(request_id, PriorityClass.NORMAL, 1.0))
        client.view.apply(load_of("i-01", seq=2, waiting=("a", "b")))
        lose(client, "i-01")
        serve(client, "i-02", "a")
        await until(lambda: len(gate.requests) == 4)


async def test_a_request_is_not_sent_again_for_ever(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with pool(store_url, "i-01") as (client, gate):
        await client.dispatcher.submit(submission("a"))
        Producer(store).write("a", 0, [0])
        for number in range(REPLAYS_MAX + 1):
            lose(client, "i-01", "abcde"[number])
            if number == REPLAYS_MAX:
                break
            serve(client, "i-01", "abcde"[number + 1])
            await until(lambda: len(gate.requests) == number + 2)  # noqa: B023
            await until(lambda: client.replays.waiting == 0)
            epoch = gate.requests[-1].epoch
            assert Producer(store).write("a", number + 1, [number + 1], epoch=epoch)
        await until(lambda: error_of(client) == InstanceLost.code)
        assert sink_of(client).tokens("a") == list(range(REPLAYS_MAX + 1))
        assert len(gate.requests) == 1 + REPLAYS_MAX


async def test_an_instance_that_may_have_taken_it_is_shut_out_too(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with pool(store_url, "i-01", "i-02", "i-03", used=USED) as (client, gate):
        await client.dispatcher.submit(submission("a"))
        Producer(store).write("a", 0, [1])

        def begin(actor: str, requests: list[EngineRequest]) -> None:
            if actor == "actor-i-02":
                epoch = requests[0].epoch
                Producer(store).write("a", 1, [2], epoch=epoch, instance="i-02")

        gate.dead = {"actor-i-02"}
        gate.on_submit = begin
        lose(client, "i-01")
        await until(lambda: len(gate.requests) == 2)
        assert sent(gate)[1:] == [("a", "i-02"), ("a", "i-03")]
        assert gate.requests[1].epoch == 1 + 2 * FENCE_EPOCHS
        assert gate.requests[1].output_token_ids == (1, 2)
        assert not Producer(store).write("a", 2, [9], epoch=EPOCH, instance="i-02")


async def test_what_one_refuses_another_gets(store_url: str) -> None:
    async with pool(store_url, "i-01", "i-02", "i-03", used=USED) as (client, gate):
        await client.dispatcher.submit(submission("a"))
        gate.refusing["actor-i-02"] = "it is stopping"
        lose(client, "i-01")
        await until(lambda: len(gate.requests) == 2)
        assert sent(gate)[-1] == ("a", "i-03")


async def test_a_client_that_leaves_meanwhile_is_not_served(store_url: str) -> None:
    async with pool(store_url, "i-01") as (client, gate):
        await client.dispatcher.submit(submission("a"))
        lose(client, "i-01")
        client.view.apply(status_of("i-01", InstanceState.STARTING, "b"))
        await until(lambda: client.replays.waiting == 1)
        client.dispatcher.abort(["a"])
        await until(lambda: client.replays.waiting == 0)
        serve(client, "i-01", "b")
        assert len(gate.requests) == 1


@pytest.mark.parametrize(
    ("order", "why_not", "told"),
    [
        pytest.param(True, "its prompt cannot be made again exactly", "prompt", id="other prompt"),
        pytest.param(False, "", "no longer known", id="unknown"),
    ],
)
async def test_what_cannot_be_sent_again_is_refused_in_the_log(
    store_url: str, order: bool, why_not: str, told: str
) -> None:
    async with pool(store_url, "i-01", "i-02", used=USED) as (client, gate):
        await client.dispatcher.submit(submission("a"))
        (stream,) = client.reader.streams
        stream.order = stream.order if order else None
        stream.why_no_replay = why_not
        lose(client, "i-01")
        await until(lambda: error_of(client) == ReplayRefused.code)
        error = sink_of(client).frames[-1].error
        assert error is not None
        assert told in error.message
        assert len(gate.requests) == 1


async def test_whoever_resumes_a_stream_replays_it_when_its_reader_died_with_the_engine(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with pool(store_url, "i-01", "i-02", used=USED) as (first, _):
        await first.dispatcher.submit(submission("a"))
        Producer(store).write("a", 0, [1, 2])
    # The first process is gone. It had shut the engine out, and no more.
    async with pool(store_url, "i-02", used=USED) as (second, gate):
        mark = Lost("a", "i-01", "a", "The instance i-01 died (a test).")
        assert await second.log.fence_lost(mark) == EPOCH
        lose(second, "i-01")
        stream = Stream("a", lambda: 0, order=submission("a"))
        await second.dispatcher.resume(stream, ("i-01", "a"))
        await until(lambda: len(gate.requests) == 1)
        assert gate.requests[0].output_token_ids == (1, 2)
        epoch = gate.requests[0].epoch
        Producer(store).write("a", 2, [3], epoch=epoch, instance="i-02", finish="stop")
        await until(lambda: sink_of(second).tokens("a") == [1, 2, 3])
        ((_, _, visit),) = sink_of(second).visits
        assert len(visit.lost) == 1, "one life was lost, though two named it"


async def test_a_stream_that_is_read_anew_tells_the_same_replays(
    store_url: str, store: "redis.Redis[bytes]"
) -> None:
    async with pool(store_url, "i-01", "i-02", used=USED) as (client, gate):
        await client.dispatcher.submit(submission("a"))
        producer, sink = Producer(store), sink_of(client)
        producer.write("a", 0, [1])
        lose(client, "i-01")
        await until(lambda: len(gate.requests) == 2)
        producer.write("a", 1, [2], epoch=EPOCH, instance="i-02")
        await until(lambda: sink.tokens("a") == [1, 2])
        told = [(v.origin, v.instance, v.at_token, v.lost) for _, _, v in sink.visits]
        sink.visits.clear()
        await client.dispatcher.resume(Stream("a", lambda: 0), ("i-01", "a"))
        await until(lambda: sink.tokens("a") == [1, 2, 1, 2])
        assert [(v.origin, v.instance, v.at_token, v.lost) for _, _, v in sink.visits] == told
        (stream,) = client.reader.streams
        assert stream.instance == "i-02"


async def test_a_store_that_is_away_for_a_moment_delays_a_replay_only(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pool(store_url, "i-01", "i-02", used=USED) as (client, gate):
        await client.dispatcher.submit(submission("a"))
        newest, times = client.log.newest, 0

        async def away_twice(request_id: str) -> tuple[str, TokenFrame | None]:
            nonlocal times
            times += 1
            if times <= 2:
                raise redis.ConnectionError("it is away")
            return await newest(request_id)

        monkeypatch.setattr(client.log, "newest", away_twice)
        lose(client, "i-01")
        await until(lambda: len(gate.requests) == 2)


async def test_one_replay_that_fails_does_not_end_the_others(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pool(store_url, "i-01") as (client, gate):
        for request_id in ("a", "b"):
            await client.dispatcher.submit(of_class(request_id, PriorityClass.NORMAL, 1.0))
        serve(client, "i-02", "a")
        newest: Callable[[str], object] = client.log.newest

        async def broken_for_a(request_id: str) -> object:
            if request_id == "a":
                raise AssertionError("a bug")
            return await newest(request_id)  # type: ignore[misc]

        monkeypatch.setattr(client.log, "newest", broken_for_a)
        lose(client, "i-01")
        await until(lambda: "a" in sink_of(client).errors)
        await until(lambda: len(gate.requests) == 3)
        assert gate.requests[2].request_id == "b"
