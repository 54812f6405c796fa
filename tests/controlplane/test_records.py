"""Each request has one row, with its final usage, times and cost, however it ends."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
import redis
from django.core.exceptions import ValidationError
from django.db import DatabaseError
from hypothesis import given
from hypothesis import strategies as st

from controlplane.audit.models import AuditEntry
from controlplane.errors import NotAllowed
from controlplane.gateway import metrics
from controlplane.gateway.call import Call, Migration
from controlplane.gateway.models import RequestRecord
from controlplane.gateway.records import records_write, to_row
from controlplane.gateway.resume import call_of, places_of, record_fields
from controlplane.gateway.times import times_of
from controlplane.tenants.access import Access, Role
from controlplane.tenants.selectors import Target
from controlplane.usage.models import ModelPrice
from controlplane.usage.prices import FREE, Price, PriceBook, price_at, price_set
from controlplane.usage.unbilled import GRACE_S, unbilled_write
from engine_pool.log_marks import Lost, encode_mark
from engine_pool.token_log import (
    UNBILLED,
    LogTimes,
    StreamError,
    TokenFrame,
    TokenLogWriter,
    log_key,
    request_key,
    route_key,
)
from engine_pool.types import PriorityClass
from tests.controlplane.fakes import Producer, until
from tests.controlplane.ledger import NOW, row, tenant
from tests.controlplane.web_process import MESSAGES, TEXT, Make, Web, tokens_of

OWNER = Access("root", platform=Role.OWNER)
PRICE = Price(Decimal(2), Decimal("0.5"), Decimal(8))
AWHILE = timedelta(hours=1)
real_front_end = [
    pytest.mark.asyncio,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def call(**fields: Any) -> Call:
    values: dict[str, Any] = {
        "request_id": "chatcmpl-1", "endpoint": "chat", "tenant_id": 1, "tenant": "alice",
        "priority_class": PriorityClass.NORMAL, "model": "m", "key_id": 7,
        "target": Target(ttft_ms=500, tpot_ms=50),
    }  # fmt: skip
    return Call(**(values | fields))


def spoken(made: Call, first_s: float, last_s: float, tokens: int) -> Call:
    """Has the call's tokens arrive so many seconds after it."""
    made.note_tokens("e-0", 1, made.arrived_s + first_s)
    made.note_tokens("e-0", tokens - 1, made.arrived_s + last_s)
    return made


# Times


def test_the_parts_of_a_request_s_time_make_its_whole() -> None:
    made = spoken(call(), 0.4, 2.4, 21)
    made.note_times(queue_ms=300, prefill_ms=80)
    made.note_migration(Migration(0, "a", "b", 5, 60.0))
    made.note_migration(Migration(0, "b", "c", 9, 40.0))
    made.note_migration(Migration(0, "c", "d", 12, None))
    found = times_of(made)
    assert found.ttft_ms == pytest.approx(400)
    assert (found.queue_ms, found.prefill_ms) == (300, pytest.approx(100))
    assert found.migration_ms == 100
    assert found.decode_ms == pytest.approx(1900)
    assert found.tpot_ms == pytest.approx(100)


@given(st.floats(-1e4, 1e6), st.floats(0.001, 100), st.floats(0, 100))
def test_no_clock_makes_a_part_negative_or_larger_than_the_whole(
    queue_ms: float, first_s: float, more_s: float
) -> None:
    made = spoken(call(), first_s, first_s + more_s, 3)
    made.note_times(queue_ms, 10.0)
    found = times_of(made)
    assert found.queue_ms is not None
    assert found.prefill_ms is not None
    assert found.decode_ms is not None
    assert min(found.queue_ms, found.prefill_ms, found.decode_ms) >= 0
    assert found.queue_ms + found.prefill_ms == pytest.approx(found.ttft_ms)


def test_several_choices_wait_at_once() -> None:
    made = spoken(call(), 1, 2, 2)
    made.note_migration(Migration(0, "a", "b", 5, 60.0))
    made.note_migration(Migration(1, "a", "b", 5, 90.0))
    assert made.migration_ms == 90


def test_of_a_replay_only_what_the_engine_said_is_known() -> None:
    made = spoken(call(places={"e-0": ("a", "x")}), 9, 9.1, 10)
    made.note_times(queue_ms=120, prefill_ms=30)
    found = times_of(made)
    assert (found.ttft_ms, found.tpot_ms, found.decode_ms) == (150, None, None)


def test_a_row_has_all_that_its_call_was() -> None:
    made = spoken(call(client_request_id="x" * 200, pool="big"), 0.4, 2.4, 21)
    made.prompt_tokens = 30
    found = to_row(made, "cancelled", is_partial=True, now_s=made.arrived_s + 3)
    assert (found.pool, found.model, found.key_id, len(found.client_request_id)) == (
        "big", "m", 7, 128,
    )  # fmt: skip
    assert (found.is_ttft_met, found.is_tpot_met, found.is_partial) == (True, False, True)
    assert found.ended_at is not None
    assert found.ended_at - found.arrived_at == timedelta(seconds=3)
    assert (found.ttft_target_ms, found.output_tokens) == (500, 21)


def test_violations_are_counted_by_type_and_class_and_tenants_when_asked(settings: Any) -> None:
    alice = "alice-of-the-metrics"

    def value(counter: Any, *labels: str) -> float:
        return float(counter.labels(*labels)._value.get())

    settings.TENANT_METRICS = False
    before = value(metrics.SLO_VIOLATIONS, "ttft", "low")
    missed = RequestRecord(
        status="completed", priority_class="low", is_ttft_met=False, prompt_tokens=3,
        output_tokens=4,
    )  # fmt: skip
    metrics.count_record(missed, alice)
    assert value(metrics.SLO_VIOLATIONS, "ttft", "low") == before + 1
    assert value(metrics.TENANT_TOKENS, alice, "output") == 0
    settings.TENANT_METRICS = True
    metrics.count_record(missed, alice)
    assert value(metrics.TENANT_TOKENS, alice, "output") == 4
    assert value(metrics.TENANT_SLO_VIOLATIONS, alice, "ttft") == 1


def test_tenants_beyond_the_bound_share_a_label(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_labelled", {"a"})
    monkeypatch.setattr(metrics, "TENANTS_MAX", 2)
    assert [metrics._tenant_label(name) for name in "abcab"] == ["a", "b", "(other)", "a", "b"]


# Prices


@pytest.mark.parametrize(
    ("tokens", "cost"),
    [
        pytest.param((1_000_000, 0, 0), "2", id="prompt"),
        pytest.param((1_000_000, 1_000_000, 0), "0.5", id="all cached"),
        pytest.param((100, 40, 10), "0.00022", id="cached ones at their own price"),
        pytest.param((10, 40, 0), "0.000005", id="never more cached ones than there are"),
        pytest.param((0, 0, 0), "0", id="nothing"),
    ],
)
def test_what_tokens_cost(tokens: tuple[int, int, int], cost: str) -> None:
    assert PRICE.cost(*tokens) == Decimal(cost)


def set_price(prompt: int, at: datetime, access: Access = OWNER, **more: Any) -> ModelPrice:
    values = {"cached_per_million": Decimal(0), "output_per_million": Decimal(0)} | more
    return price_set(
        access=access, model="m", valid_from=at, prompt_per_million=Decimal(prompt), **values
    )


@pytest.mark.django_db
def test_a_request_costs_by_the_price_at_its_end() -> None:
    set_price(1, NOW - 2 * AWHILE)
    set_price(5, NOW)
    alice = tenant()
    made = [
        row(alice, at, prompt_tokens=1_000_000, cached_tokens=0, request_id=name)
        for name, at in [
            ("free", NOW - 3 * AWHILE), ("old", NOW - timedelta(microseconds=1)), ("new", NOW),
        ]
    ]  # fmt: skip
    records_write(made)
    costs = dict(RequestRecord.objects.values_list("request_id", "cost"))
    assert costs == {"free": 0, "old": 1, "new": 5}
    assert price_at(model="m", at=NOW).prompt_per_million == 5
    assert price_at(model="m", at=NOW - 3 * AWHILE) == FREE


@pytest.mark.django_db
def test_a_request_that_two_readers_saw_to_its_end_is_billed_once() -> None:
    alice = tenant()
    records_write([row(alice, request_id="twice", output_tokens=7)])
    records_write([row(alice, request_id="twice", output_tokens=9), row(alice, request_id="b")])
    found = dict(RequestRecord.objects.values_list("request_id", "output_tokens"))
    assert found == {"twice": 7, "b": 5}


@pytest.mark.django_db
def test_a_price_is_set_by_the_owner_with_a_trace() -> None:
    with pytest.raises(NotAllowed):
        set_price(1, NOW, Access("op", platform=Role.OPERATOR))
    with pytest.raises(ValidationError) as wrong:
        set_price(1, NOW, output_per_million=Decimal(-1))
    assert set(wrong.value.message_dict) == {"output_per_million"}
    set_price(1, NOW)
    set_price(3, NOW)
    (price,) = ModelPrice.objects.all()
    assert (price.prompt_per_million, price.created_by) == (3, "root")
    newest = AuditEntry.objects.first()
    assert newest is not None
    assert (newest.action, newest.who) == ("price_set", "root")
    assert newest.before is not None
    assert newest.before["prompt_per_million"].startswith("1")


@pytest.mark.django_db
def test_the_book_knows_prices_without_a_query_and_keeps_them_without_a_database(
    monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: Any
) -> None:
    # It would close the connection that the test's own transaction is on.
    monkeypatch.setattr("controlplane.following.close_old_connections", lambda: None)
    book = PriceBook()
    set_price(4, NOW - AWHILE)
    set_price(6, NOW + AWHILE)
    book.refresh()
    with django_assert_num_queries(0):
        assert book.price("m", NOW).prompt_per_million == 4
        assert book.price("other", NOW) == FREE

    def fail(*fields: str) -> None:
        raise DatabaseError

    monkeypatch.setattr(ModelPrice.objects, "order_by", fail)
    book.refresh()
    # One that was known beforehand begins all the same.
    assert book.price("m", NOW + 2 * AWHILE).prompt_per_million == 6


# A request whose client left, with a real front end


def rows_of(*webs: Web) -> list[RequestRecord]:
    return [one for web in webs for one in web.runtime.records._waiting]


class TestWhoeverReadsOn:
    pytestmark = real_front_end

    async def test_a_detached_request_is_recorded_at_its_end_with_all_that_it_used(
        self, web: Make, auth: str, store: Any
    ) -> None:
        async with web() as w:
            asked = w.ask(
                "POST", "/v1/chat/completions", {"messages": MESSAGES, "stream": True},
                authorization=auth, x_ferry_detach_s="30",
            )  # fmt: skip
            await asked.started()
            producer = Producer(store)
            producer.write(w.engine_ids[0], 0, [500])
            await asked.event()
            await asked.leave()
            await asyncio.sleep(0)
            assert rows_of(w) == []
            producer.write(w.engine_ids[0], 1, [501, 502])
            producer.write(w.engine_ids[0], 3, [503], finish="length")
            await until(lambda: bool(rows_of(w)))
            (found,) = rows_of(w)
            assert (found.status, found.is_partial, found.output_tokens) == ("detached", False, 4)
            assert w.runtime.front is not None
            assert len(w.runtime.front.llm.left) == 0

    async def test_one_that_nobody_resumes_in_time_is_partial(
        self, web: Make, auth: str, store: Any
    ) -> None:
        async with web() as w:
            asked = w.ask(
                "POST", "/v1/chat/completions", {"messages": MESSAGES, "stream": True},
                authorization=auth, x_ferry_detach_s="0.2",
            )  # fmt: skip
            await asked.started()
            await asked.leave()
            Producer(store).write(w.engine_ids[0], 0, [500, 501])
            await until(lambda: bool(rows_of(w)))
            (found,) = rows_of(w)
            assert (found.status, found.is_partial, found.output_tokens) == ("cancelled", True, 2)

    async def test_a_resumed_request_is_recorded_by_its_last_reader_alone(
        self, web: Make, auth: str, store: Any
    ) -> None:
        async with web() as first, web() as second:
            body = {"messages": MESSAGES, "stream": True}
            asked = first.ask(
                "POST", "/v1/chat/completions", body, authorization=auth,
                x_ferry_detach_s="30", x_slo_ttft_ms="700", x_request_id="theirs",
            )  # fmt: skip
            await asked.started()
            engine_id, tokens = first.engine_ids[0], tokens_of(first, TEXT)
            frame = TokenFrame(
                engine_id, 1, 0, (tokens[0],), "i-01", queue_ms=40.0, prefill_ms=20.0
            )
            TokenLogWriter(store, LogTimes()).append([frame], frozenset([engine_id]))
            had = [await asked.event() for _ in range(2)]
            await asked.leave()
            mark = str(had[-1]).split("\n")[0].removeprefix("id: ")
            again = second.ask(
                "POST", "/v1/chat/completions", authorization=auth, last_event_id=mark
            )
            await again.started()
            for i, token in enumerate(tokens[1:], start=1):
                last = i == len(tokens) - 1
                Producer(store).write(engine_id, i, [token], finish="length" if last else None)
            await again.events()
            await until(lambda: bool(rows_of(second)))
            (found,) = rows_of(first, second)
            assert (found.status, found.output_tokens) == ("completed", len(tokens))
            assert (found.client_request_id, found.ttft_target_ms) == ("theirs", 700)
            assert (found.queue_ms, found.ttft_ms, found.is_ttft_met) == (40, 60, True)
            assert found.prompt_tokens > 0
            assert first.runtime.front is not None
            assert len(first.runtime.front.llm.left) == 0


# A request whose web process died


@dataclass
class Left:
    """What a web process has left in the store."""

    store: "redis.Redis[bytes]"
    times: LogTimes = field(default_factory=LogTimes)

    def sent(self, made: Call, *engine_ids: str, prompt_tokens: int = 30) -> None:
        fields = record_fields(made, b"{}", 1) | {"prompt_tokens": str(prompt_tokens).encode()}
        places = {f"at:{i}": b"i-01 a" for i in engine_ids}
        self.store.hset(request_key(made.request_id), mapping=fields | places)
        self.store.zadd(UNBILLED, {made.request_id: made.arrived_unix_s})
        for engine_id in engine_ids:
            self.store.set(route_key(engine_id), "ferry:tokens:dead", ex=self.times.live_s)

    def append(self, *frames: TokenFrame) -> None:
        firsts = frozenset(f.request_id for f in frames if f.start == 0)
        for frame in frames:
            TokenLogWriter(self.store, self.times).append([frame], firsts)

    def ended_ago(self, engine_id: str, ago_s: float) -> None:
        self.store.pexpire(log_key(engine_id), int((self.times.ended_s - ago_s) * 1000))

    def write(self) -> int:
        return unbilled_write(store=self.store, times=self.times, now_unix_s=time.time())


def old_call(ago_s: float = 100, **fields: Any) -> Call:
    made = call(arrived_unix_s=time.time() - ago_s, tenant_id=tenant().pk, **fields)
    made.arrived_s = time.monotonic() - ago_s
    return made


def frames(engine_id: str, instances: Sequence[str] = ("i-01",)) -> list[TokenFrame]:
    found = [
        TokenFrame(engine_id, 1 + n, 2 * n, (7, 8), instance)
        for n, instance in enumerate(instances)
    ]
    found[0] = replace_frame(found[0], cached_tokens=16, queue_ms=40.0, prefill_ms=20.0)
    found[-1] = replace_frame(found[-1], finish_reason="stop")
    return found


def replace_frame(frame: TokenFrame, **changes: Any) -> TokenFrame:
    values = {name: getattr(frame, name) for name in frame.__struct_fields__}
    return TokenFrame(**(values | changes))


@pytest.mark.django_db
def test_a_request_whose_web_process_died_is_billed_from_its_log(store: Any) -> None:
    ModelPrice.objects.create(
        model="m", valid_from=NOW, prompt_per_million=1, cached_per_million=0,
        output_per_million=10,
    )  # fmt: skip
    left, made = Left(store), old_call()
    left.sent(made, "e-0", "e-1")
    left.append(*frames("e-0", ["i-01", "i-02"]), *frames("e-1"))
    assert left.write() == 0, "its web process may still write it"
    left.ended_ago("e-0", GRACE_S + 20)
    left.ended_ago("e-1", GRACE_S + 10)
    assert left.write() == 1
    found = RequestRecord.objects.get()
    assert (found.status, found.error_code) == ("failed", "web_process_lost")
    assert (found.prompt_tokens, found.cached_tokens, found.output_tokens) == (30, 16, 6)
    assert found.cost == Decimal("0.000074")
    assert (found.instances, found.migrations) == (["i-01", "i-02"], 1)
    assert (found.is_partial, found.is_ttft_met, found.ttft_ms) == (False, False, 60)
    assert found.duration_ms == pytest.approx(60_000, abs=3000)
    assert store.zcard(UNBILLED) == 0
    assert left.write() == 0


@pytest.mark.django_db
def test_the_replays_of_one_that_nobody_has_read_to_its_end_are_in_its_log(store: Any) -> None:
    left, made = Left(store), old_call()
    left.sent(made, "e-0")
    left.append(TokenFrame("e-0", 1, 0, (7,), "i-01"))
    why = "The instance i-01 died (exit code -9)."
    for instance in ("i-01", "i-01", "i-02"):
        mark = encode_mark(Lost("e-0", instance, "a", why))
        epoch = 1000 * (1 + store.xlen(log_key("e-0")))
        store.xadd(log_key("e-0"), {"x": mark}, id=f"{epoch}-0")
    left.append(
        TokenFrame("e-0", 9000, 1, (8,), "i-03"),
        TokenFrame("e-0", 9001, 2, (9,), "i-01"),
        TokenFrame("e-0", 9001, 3, (), "i-01", finish_reason="stop"),
    )
    left.ended_ago("e-0", GRACE_S + 1)
    assert left.write() == 1
    found = RequestRecord.objects.get()
    assert (found.output_tokens, found.instances) == (3, ["i-01", "i-03", "i-01"])
    assert (found.replays, found.migrations) == (2, 1)
    (note,) = found.replay_notes
    assert (note["from"], note["to"], note["at_token"], note["replays"]) == ("i-02", "i-03", 1, 2)


@pytest.mark.django_db
@pytest.mark.parametrize("has_tokens", [True, False], ids=["in decode", "in the queue"])
def test_a_request_that_runs_is_left_alone(store: Any, *, has_tokens: bool) -> None:
    left, made = Left(store), old_call(1000)
    left.sent(made, "e-0")
    if has_tokens:
        left.append(TokenFrame("e-0", 1, 0, (7,), "i-01"))
    assert left.write() == 0
    assert store.zcard(UNBILLED) == 1


@pytest.mark.django_db
def test_one_that_lost_its_engine_too_is_billed_before_it_is_forgotten(store: Any) -> None:
    left, made = Left(store), old_call(3590)
    left.sent(made, "e-0")
    left.append(TokenFrame("e-0", 1, 0, (7,), "i-01"))
    ears = store.pubsub()
    ears.subscribe("ferry:tokens:dead")
    assert ears.get_message(timeout=5)
    assert left.write() == 0, "somebody reads it"
    ears.close()
    assert left.write() == 1
    found = RequestRecord.objects.get()
    assert (found.output_tokens, found.is_partial) == (1, True)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("last", "code", "is_met"),
    [
        pytest.param({"finish_reason": "abort"}, "web_process_lost", False, id="aborted"),
        pytest.param(
            {"error": StreamError("stream_abandoned", "x")}, "stream_abandoned", False,
            id="nobody read it",
        ),
        pytest.param(
            {"error": StreamError("request_expired", "x")}, "request_expired", None,
            id="the client's own fault",
        ),
    ],
)  # fmt: skip
def test_a_log_s_end_says_what_happened(
    store: Any, last: dict[str, Any], code: str, is_met: bool | None
) -> None:
    left, made = Left(store), old_call()
    left.sent(made, "e-0")
    left.append(
        TokenFrame("e-0", 1, 0, (7, 8), "i-01"), TokenFrame("e-0", 1, 2, (), "i-01", **last)
    )
    left.ended_ago("e-0", GRACE_S + 1)
    assert left.write() == 1
    found = RequestRecord.objects.get()
    assert (found.error_code, found.is_partial, found.output_tokens) == (code, True, 2)
    assert found.is_ttft_met is is_met


@pytest.mark.django_db
def test_what_the_store_has_forgotten_is_flagged_or_dropped(store: Any) -> None:
    left, made = Left(store), old_call()
    left.sent(made, "e-0")
    store.delete(route_key("e-0"))
    store.zadd(UNBILLED, {"chatcmpl-gone": 1})
    assert left.write() == 1
    found = RequestRecord.objects.get()
    assert (found.error_code, found.output_tokens, found.prompt_tokens) == ("tokens_unknown", 0, 30)
    assert store.zcard(UNBILLED) == 0


@pytest.mark.django_db
def test_a_request_that_has_its_row_is_looked_at_once(store: Any) -> None:
    left, made = Left(store), old_call()
    left.sent(made, "e-0")
    records_write([to_row(made, "completed", now_s=made.arrived_s + 1)])
    assert left.write() == 0
    assert store.zcard(UNBILLED) == 0
    assert RequestRecord.objects.get().status == "completed"


def test_what_a_record_tells_is_what_the_call_was() -> None:
    made = replace(call(target=Target(tpot_ms=12.5), client_request_id="id"), key_id=9)
    fields = {k.encode(): v for k, v in record_fields(made, b"{}", 1).items()}
    found = call_of(made.request_id, fields | {b"at:e-0": b"i-01 inc"}, places_of(fields))
    assert (found.target, found.client_request_id, found.key_id) == (made.target, "id", 9)
    assert found.arrived_unix_s == made.arrived_unix_s
    assert found.arrived_s == pytest.approx(made.arrived_s, abs=1)


def test_an_engine_s_clock_is_utc() -> None:
    made = call(arrived_unix_s=0.0)
    found = to_row(made, "cancelled", now_s=made.arrived_s)
    assert found.arrived_at == datetime(1970, 1, 1, tzinfo=UTC)
