"""`/api/v1/requests`: running and ended ones in one list, one of them, and its cancel."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pytest_django.fixtures import Settings as DjangoSettings

from controlplane.audit.models import AuditEntry
from controlplane.gateway.models import RequestRecord
from controlplane.tenants.access import Role
from engine_pool.stream import Stream
from engine_pool.types import InstanceName
from tests.controlplane.api_pool import ApiPool, serving
from tests.controlplane.api_world import (
    Caller,
    TenantWorld,
    by_key,
    by_session,
    forget_attempts,
    platform_user,
    request_record,
    tenant_world,
)
from tests.controlplane.fakes import Producer, load_of, status_of, until
from tests.controlplane.test_dispatcher import pool as client_of
from tests.controlplane.web_process import MESSAGES, Make, tokens_of

RUNNING = f"chatcmpl-{'a' * 32}"


@pytest.fixture
def alpha(db: None) -> Iterator[TenantWorld]:
    forget_attempts()
    yield tenant_world("alpha")
    forget_attempts()


@pytest.fixture
def live(store_url: str, settings: DjangoSettings) -> Iterator[ApiPool]:
    with serving(store_url, settings) as made:
        yield made


@pytest.fixture
def reader(alpha: TenantWorld) -> Caller:
    return by_key("read", alpha.texts["read"])


def ids_of(caller: Caller, **query: Any) -> list[str]:
    answer = caller.call("GET", "requests", query)
    assert answer.status_code == 200, answer.content
    return [r["public_id"] for r in answer.json()["requests"]]


def test_a_tenant_sees_its_own_running_requests_and_operators_all(
    live: ApiPool, alpha: TenantWorld, reader: Caller
) -> None:
    others = len(live.running)
    live.run(RUNNING, alpha.tenant, choices=2)
    assert ids_of(reader) == [RUNNING, RUNNING]
    assert ids_of(reader, state="running", priority_class="normal", model="tiny") == [RUNNING] * 2
    assert ids_of(reader, state="waiting") == []
    assert ids_of(reader, q=RUNNING[:12]) == [RUNNING, RUNNING]
    operator = by_session("operator", platform_user(Role.OPERATOR))
    assert len(ids_of(operator, state="running")) == others + 2
    assert ids_of(operator, tenant="alpha") == [RUNNING, RUNNING]
    one = reader.call("GET", f"requests/1_{RUNNING}").json()
    assert (one["state"], one["tenant"], one["request_id"]) == ("running", "alpha", f"1_{RUNNING}")


def test_ended_requests_are_found_by_what_became_of_them(
    alpha: TenantWorld, reader: Caller
) -> None:
    failed = request_record(alpha.tenant, alpha.keys["read"], status="failed", is_ttft_met=None)
    public_id = alpha.keys["read"].public_id
    assert set(ids_of(reader, state="ended")) == {failed.request_id, alpha.request_id}
    assert ids_of(reader, state="failed") == [failed.request_id]
    assert ids_of(reader, state="ended", key=public_id) == [failed.request_id]
    assert ids_of(reader, state="ended", missed=True) == [alpha.request_id]
    assert ids_of(reader, state="ended", replayed=True) == []
    RequestRecord.objects.filter(request_id=failed.request_id).update(replays=2)
    assert ids_of(reader, state="ended", replayed=True) == [failed.request_id]
    assert ids_of(reader, state="ended", q=alpha.request_id) == [alpha.request_id]
    assert ids_of(reader, state="ended", since="2150-01-01T00:00:00Z") == []
    one = reader.call("GET", f"requests/{alpha.request_id}").json()
    assert (one["state"], one["cost"], one["kv_tokens"]) == ("completed", "0.25000000", None)
    assert reader.call("GET", "requests/chatcmpl-00").status_code == 404


@pytest.mark.parametrize(
    ("who", "status"),
    [("viewer", 403), ("operator", 202), ("owner", 202), ("read", 403), ("manage", 202)],
)
def test_a_cancel_ends_all_choices_and_leaves_an_audit_row(
    who: str, status: int, live: ApiPool, alpha: TenantWorld
) -> None:
    choices = live.run(RUNNING, alpha.tenant, choices=2)
    is_key = who in alpha.texts
    caller = by_key(who, alpha.texts[who]) if is_key else by_session(who, alpha.members[Role(who)])
    answer = caller.call("POST", f"requests/{RUNNING}/cancel", {"reason": "runs wild"})
    assert answer.status_code == status
    told = [engine_id for engine_id, _ in live.dispatcher.ended]
    assert told == (choices if status == 202 else [])
    if status == 202:
        entry = AuditEntry.objects.get(action="cancel_request")
        assert (entry.request_id, entry.tenant, entry.reason) == (RUNNING, "alpha", "runs wild")
        assert (entry.who, entry.result) == (caller.call("GET", "me").json()["who"], "done")


def test_what_has_ended_or_never_was_cannot_be_cancelled(live: ApiPool, alpha: TenantWorld) -> None:
    manager = by_key("manage", alpha.texts["manage"])
    ended = manager.call("POST", f"requests/{alpha.request_id}/cancel", {})
    assert (ended.status_code, ended.json()["error"]["code"]) == (409, "request_ended")
    assert AuditEntry.objects.get(action="cancel_request").result == "refused"
    live.run(RUNNING, tenant_world("bravo").tenant)
    foreign = manager.call("POST", f"requests/{RUNNING}/cancel", {})
    missing = manager.call("POST", f"requests/chatcmpl-{'0' * 32}/cancel", {})
    assert foreign.status_code == missing.status_code == 404
    assert live.dispatcher.ended == []


def test_without_the_store_a_tenant_gets_a_503(
    alpha: TenantWorld, settings: DjangoSettings, reader: Caller
) -> None:
    with serving("redis://127.0.0.1:1/0", settings):
        answer = reader.call("GET", "requests")
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "store_unavailable"
        assert int(answer["Retry-After"]) > 0
        operator = by_session("operator", platform_user(Role.OPERATOR))
        assert len(ids_of(operator)) > 0


async def test_a_stream_ends_when_another_web_process_cancels_it(
    web: Make, auth: str, store: Any, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"messages": MESSAGES, "stream": True}
    ends: list[tuple[str, bool]] = []
    async with web() as first, client_of(store_url, "i-01") as (other, gate):
        asked = first.ask("POST", "/v1/chat/completions", body, authorization=auth)
        await until(lambda: bool(first.gate.requests))
        engine_id = first.engine_ids[0]
        monkeypatch.setattr(
            first.runtime.records,
            "add",
            lambda call, outcome, code, **more: ends.append((outcome, more["is_partial"])),
        )
        producer = Producer(store)
        producer.write(engine_id, 0, tokens_of(first, "Hi there")[:1])
        assert await asked.event()
        other.dispatcher.abort_anywhere(engine_id, "i-01")
        await until(lambda: ("abort", "actor-i-01", (engine_id,)) in gate.calls)
        producer.write(engine_id, 1, [], finish="abort")
        events = await asked.events()
    assert events[-1] == "data: [DONE]\n\n"
    last = json.loads(events[-2].split("data: ")[1])
    assert last["choices"][0]["finish_reason"] == "abort"
    assert ends == [("cancelled", True)]


async def test_a_cancel_follows_a_request_to_where_it_is_shown_next(store_url: str) -> None:
    async with client_of(store_url, "i-01", "i-02") as (client, gate):
        client.dispatcher.abort_anywhere("r1", "i-01")
        await until(lambda: len(gate.calls) == 1)
        client.view.apply(load_of("i-02", 2, running=["r1"]))
        await until(lambda: len(gate.calls) == 2)
        client.view.apply(load_of("i-02", 3, running=["r1"]))
        await client.dispatcher.close()
        assert gate.calls == [
            ("abort", "actor-i-01", ("r1",)),
            ("abort", "actor-i-02", ("r1",)),
        ]


async def test_a_cancel_of_a_request_on_its_way_from_here_waits_for_its_engine(
    store_url: str,
) -> None:
    async with client_of(store_url) as (client, gate):
        client.view.apply(status_of("i-01"))
        client.reader.open(stream := Stream("r1", lambda: 0))
        stream.send_to(status_of("i-01"))
        client.dispatcher.abort_anywhere("r1", InstanceName("i-01"))
        await client.dispatcher.close()
        assert gate.calls == []
        client.view.apply(load_of("i-01", 2, running=["r1"]))
        await until(lambda: gate.calls == [("abort", "actor-i-01", ("r1",))])
