"""Step loop and publisher together, on a fake engine and a real store."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import redis

from engine_pool import view
from engine_pool.config import PoolConfig
from engine_pool.engine_actor import EngineHost
from engine_pool.engine_spec import EngineSpec
from engine_pool.errors import (
    EngineFailed,
    InstanceLeaving,
    InstanceLost,
    RequestExpired,
    StoreUnavailable,
    StreamAbandoned,
)
from engine_pool.log_marks import FENCE_EPOCHS, Marked, decode_mark, epoch_of
from engine_pool.token_log import (
    StreamError,
    TokenFrame,
    decode_all,
    log_key,
    route_key,
    token_channel,
)
from engine_pool.types import EngineKind, InstanceName
from tests.engine_pool.conftest import StoreServer
from tests.engine_pool.fake_engine import FakeEngine
from tests.engine_pool.make import request

PATIENCE_S = 60.0
CHANNEL = token_channel("web")
CONFIG = PoolConfig(
    engine=EngineKind.SIMULATED, store_timeout_s=0.3, orphan_grace_s=0.3, report_interval_ms=50
)


class Host:
    """A host under test, with the eyes of a web process on its store."""

    def __init__(self, store: StoreServer, config: PoolConfig = CONFIG) -> None:
        self.engine = FakeEngine()
        self.deaths: list[BaseException] = []
        config = replace(config, redis_url=store.url)
        spec = EngineSpec(InstanceName("i-01"), "inc", config, "m", 1, 1000)
        self.host = EngineHost(spec, lambda: self.engine, self.deaths.append)
        self.redis = redis.Redis.from_url(store.url)
        self.ears = self.redis.pubsub()
        self.ears.subscribe(CHANNEL)

    def start(self) -> None:
        self.host.start()
        self.host.loop.ready.result(PATIENCE_S)

    def submit(self, *requests, route: bool = True) -> list[tuple[str, str]]:
        if route:
            for r in requests:
                self.redis.set(route_key(r.request_id), CHANNEL)
        return self.host.loop.submit(list(requests)).result(PATIENCE_S)

    def log(self, request_id: str) -> list[TokenFrame]:
        entries = self.redis.xrange(log_key(request_id))
        blobs = [blob for _, e in entries for name, blob in e.items() if name != b"x"]
        return [f for blob in blobs for f in decode_all(blob)]

    def last(self, request_id: str) -> TokenFrame:
        """Waits for the last frame of a log."""
        until(lambda: self.log(request_id) and self.log(request_id)[-1].is_last)
        return self.log(request_id)[-1]

    def load(self) -> view.InstanceLoad | None:
        blob = self.redis.hget(view.LOADS, "i-01")
        return view.decode_load(blob) if blob else None


def until(claim: Callable[[], object]) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while not claim():
        assert time.monotonic() < give_up_s, "it does not happen"
        time.sleep(0.01)


@pytest.fixture
def host(store: StoreServer) -> Iterator[Host]:
    one = Host(store)
    one.start()
    yield one
    one.engine.is_open.set()
    one.host.stop()


def texts(frames: list[TokenFrame]) -> list[int]:
    """Returns the tokens of a log, having checked that each frame begins where the last one
    ended."""
    said: list[int] = []
    for frame in frames:
        assert frame.start == len(said)
        said += frame.token_ids
    return said


def test_tokens_reach_log_and_channel(host):
    host.engine.is_open.set()
    assert host.submit(request("a", max_tokens=5)) == []
    assert host.last("a").finish_reason == "length"
    assert texts(host.log("a")) == [1, 2, 3, 4, 5]
    heard: list[TokenFrame] = []
    while not (heard and heard[-1].is_last):
        message = host.ears.get_message(ignore_subscribe_messages=True, timeout=PATIENCE_S)
        if message:
            heard += decode_all(message["data"])
    assert texts(heard) == [1, 2, 3, 4, 5]
    assert host.redis.ttl(log_key("a")) > 0


def test_a_request_that_is_sent_elsewhere_does_not_end_and_leaves_a_mark(host):
    host.engine.is_open.set()
    host.submit(request("a", max_tokens=100_000))
    until(lambda: len(texts(host.log("a"))) > 3)
    host.host.loop.fail(["a"], StreamError(InstanceLeaving.code, "it drains"))
    mark = until_marked(host, "a")
    assert (mark.lost.instance, mark.lost.why) == ("i-01", "it drains")
    assert not mark.lost.is_death
    assert mark.epoch == 1 + FENCE_EPOCHS, "it has shut itself out"
    assert not any(frame.is_last for frame in host.log("a"))
    assert host.redis.ttl(route_key("a")) == -1, "whoever goes on with it may write"
    heard: list[object] = []
    while mark.lost not in heard:
        message = host.ears.get_message(ignore_subscribe_messages=True, timeout=PATIENCE_S)
        if message:
            heard += decode_all(message["data"])
    until(lambda: host.load() is not None and not host.load().running)


def until_marked(host: Host, request_id: str) -> Marked:
    found: list[Marked] = []

    def look() -> bool:
        for entry_id, fields in host.redis.xrange(log_key(request_id)):
            if b"x" in fields and (lost := decode_mark(fields[b"x"])):
                found.append(Marked(epoch_of(entry_id), lost))
        return bool(found)

    until(look)
    return found[0]


def test_requests_that_come_during_a_step_are_added_together_before_the_next(host):
    host.submit(request("a", max_tokens=3))
    burst = [host.host.loop.submit([request(f"b{n}", max_tokens=1)]) for n in range(5)]
    for n in range(5):
        host.redis.set(route_key(f"b{n}"), CHANNEL)
    host.engine.gate.release()
    for answer in burst:
        assert answer.result(PATIENCE_S) == []
    host.engine.is_open.set()
    host.engine.gate.release()
    host.last("a")
    assert host.engine.batches[1] == ["a", "b0", "b1", "b2", "b3", "b4"]


def test_a_refused_request_is_named_with_its_reason(host):
    host.engine.is_open.set()
    answer = host.submit(request("long", prompt_tokens=2000), request("ok", max_tokens=10**6))
    assert answer == [("long", "too long")]
    assert host.submit(request("ok")) == [("ok", "a request of this id already runs here")]


def test_an_abort_frees_the_engine_and_ends_the_log(host):
    host.submit(request("a", max_tokens=100))
    host.engine.gate.release()
    until(lambda: host.log("a"))
    host.host.loop.abort(["a", "unknown"])
    host.engine.gate.release()
    assert host.last("a").finish_reason == "abort"
    assert host.engine.aborted == ["a"]


def test_a_stream_that_another_producer_has_taken_is_dropped(host):
    host.submit(request("a", max_tokens=10**6))
    host.engine.gate.release()
    until(lambda: host.log("a"))
    host.redis.xadd(log_key("a"), {"x": ""}, id="2-0")
    host.engine.is_open.set()
    host.engine.gate.release()
    until(lambda: "a" in host.engine.aborted)
    assert host.redis.xrevrange(log_key("a"), count=1)[0][0] == b"2-0"


def test_a_request_without_a_route_is_dropped(host):
    host.engine.is_open.set()
    host.submit(request("a", max_tokens=100_000), route=False)
    until(lambda: host.engine.aborted == ["a"])
    assert host.log("a") == []


def test_a_stream_that_nobody_hears_is_abandoned_after_a_while(host):
    host.ears.unsubscribe(CHANNEL)
    host.ears.get_message(timeout=1)
    host.submit(request("a", max_tokens=100_000))
    until(lambda: host.engine.gate.release() or "a" in host.engine.aborted)
    last = host.last("a")
    assert last.error is not None
    assert last.error.code == StreamAbandoned.code


def test_a_stream_that_is_heard_again_goes_on(host):
    host.ears.unsubscribe(CHANNEL)
    host.ears.get_message(timeout=1)
    host.submit(request("a", max_tokens=3))
    host.engine.gate.release()
    until(lambda: host.log("a"))
    host.ears.subscribe(CHANNEL)
    host.ears.get_message(timeout=1)
    host.engine.gate.release()
    until(lambda: len(host.log("a")) == 2)
    time.sleep(2 * CONFIG.orphan_grace_s)
    host.engine.gate.release()
    assert host.last("a").finish_reason == "length"


def test_a_request_that_is_too_old_is_ended(store):
    old = Host(store, replace(CONFIG, log_live_s=1))
    old.start()
    old.submit(request("a", max_tokens=100_000))
    until(lambda: old.engine.gate.release() or "a" in old.engine.aborted)
    assert old.last("a").error.code == RequestExpired.code
    old.host.stop()


def test_reports_follow_every_change_and_come_without_one(host):
    until(lambda: host.load() is not None)
    first = host.load()
    until(lambda: host.load().seq > first.seq + 2)
    host.submit(request("a", max_tokens=2), request("b", max_tokens=50))
    until(lambda: len(host.load().running) == 2)
    answer = host.host.loop.submit([request("queued", prompt_tokens=20)])
    until(lambda: [r.demand_tokens for r in host.load().waiting] == [32])
    host.engine.is_open.set()
    host.engine.gate.release()
    assert answer.result(PATIENCE_S) == []
    until(lambda: host.load().requests_ended_total == 3)
    now = host.load()
    assert now.running == now.waiting == ()
    assert now.output_tokens_total == 2 + 50 or now.steps_total >= 50
    assert now.prompt_tokens_total >= 40
    assert now.step_ms is not None
    assert now.last_token_unix_s is not None


def test_a_short_absence_of_the_store_costs_nothing_but_time(store):
    patient = Host(store, replace(CONFIG, store_timeout_s=30.0))
    patient.start()
    patient.submit(request("a", max_tokens=6))
    patient.engine.gate.release()
    until(lambda: patient.log("a"))
    # Paused is not killed: the logs stay, and an answer may be lost on its way.
    patient.redis.client_pause(1500, all=True)
    for _ in range(5):
        patient.engine.gate.release()
    assert patient.last("a").finish_reason == "length"
    assert texts(patient.log("a")) == [1, 2, 3, 4, 5, 6]
    assert patient.engine.aborted == []
    patient.host.stop()


def test_a_long_absence_gives_all_streams_up_and_then_recovers(host, store):
    host.submit(request("a", max_tokens=100_000), request("b", max_tokens=2))
    host.engine.gate.release()
    until(lambda: host.log("a") and host.log("b"))
    store.kill()
    until(lambda: host.engine.gate.release() or "a" in host.engine.aborted)
    assert "b" not in host.engine.requests
    store.start()
    host.redis.set(route_key("c"), CHANNEL)
    host.engine.is_open.set()
    assert host.submit(request("c", max_tokens=2)) == []
    assert host.last("c").finish_reason == "length"
    until(lambda: host.load() is not None)


def test_given_up_streams_end_with_an_error_right_after_what_was_logged(host):
    """The store hangs, but keeps its memory: readers must find an end, and no gap before it."""
    host.submit(request("a", max_tokens=100_000))
    host.engine.gate.release()
    until(lambda: host.log("a"))
    host.redis.client_pause(2600, all=True)
    until(lambda: host.engine.gate.release() or "a" in host.engine.aborted)
    last = host.last("a")
    assert last.error.code == StoreUnavailable.code
    texts(host.log("a"))


def test_a_stop_tells_every_reader(host):
    host.submit(request("a", max_tokens=100))
    host.engine.gate.release()
    until(lambda: host.log("a"))
    host.engine.gate.release()
    host.host.stop()
    assert host.last("a").error.code == InstanceLost.code
    assert host.engine.is_closed
    assert host.host.loop.submit([request("b")]).result(PATIENCE_S) == [
        ("b", "the engine is stopping")
    ]


def test_a_broken_engine_is_reported_as_a_death(host):
    host.engine.breaks_with = RuntimeError("no more")
    host.submit(request("a"))
    host.engine.gate.release()
    until(lambda: host.deaths)
    assert str(host.deaths[0]) == "no more"
    assert not host.host.loop.is_ready


def test_an_engine_that_cannot_start_says_why(store):
    spec = EngineSpec(InstanceName("i-01"), "x", replace(CONFIG, redis_url=store.url), "m", 1, 0)

    def broken():
        raise ValueError("no such model")

    host = EngineHost(spec, broken, lambda error: None)
    host.start()
    with pytest.raises(EngineFailed, match="no such model"):
        host.loop.ready.result(PATIENCE_S)
    host.stop()
