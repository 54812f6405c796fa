"""Admission at the doors: what clients are told, and what every kind of end leaves behind."""

import asyncio
import ipaddress
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from django.db import DatabaseError

from controlplane.admission import service
from controlplane.admission.sources import Sources
from controlplane.gateway.limits import admission_of
from controlplane.tenants.access import Scope
from controlplane.tenants.selectors import KeyPolicy, Limits
from controlplane.usage.prices import Price
from engine_pool.types import InstanceState
from tests.controlplane.asgi_client import Exchange
from tests.controlplane.fakes import Producer, status_of, until
from tests.controlplane.web_process import MESSAGES, Make, Web, bodies, speak, tokens_of

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

CHAT = "/v1/chat/completions"
BODY = {"messages": MESSAGES, "max_tokens": 20}
PRICE = Price(Decimal(10), Decimal(1), Decimal(1000))


class Books:
    """What the store says of alice."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._who = f"t{sum(map(ord, 'alice'))}"

    @property
    def live(self) -> int:
        return int(self._store.zcard(f"ferry:adm:{self._who}:live"))

    def window(self, kind: str) -> int:
        return int(self._store.hget(f"ferry:adm:{self._who}:{kind}", "n") or 0)

    @property
    def spent(self) -> int:
        (key,) = self._store.keys(f"ferry:adm:{self._who}:spent:*")
        return int(self._store.get(key))

    async def settled(self) -> None:
        """Returns once nothing is under way."""
        await until(lambda: self.live == 0 and not self._store.zcard("ferry:adm:leases"))


@pytest.fixture
def books(store: Any) -> Books:
    return Books(store)


@pytest.fixture
def allow(policies: dict[str, KeyPolicy], auth: str) -> Callable[..., None]:
    """Changes alice's policy."""

    def change(**fields: Any) -> None:
        ((public_id, policy),) = policies.items()
        policies[public_id] = replace(policy, **fields)

    return change


def ask(web: Web, auth: str, body: Any = None, **headers: str) -> Exchange:
    return web.ask("POST", CHAT, {**BODY, **(body or {})}, authorization=auth, **headers)


async def error_of(asked: Exchange) -> dict[str, Any]:
    found: dict[str, Any] = (await asked.json())["error"]
    return found


async def test_a_refusal_names_its_limit_and_when_to_come_back(
    web: Make, auth: str, allow: Callable[..., None], books: Books, store: Any
) -> None:
    allow(limits=Limits(requests_per_minute=1, tokens_per_minute=1000))
    async with web() as first, web() as second:
        taken = ask(first, auth)
        await until(lambda: bool(first.gate.requests))
        speak(store, first.engine_ids[0], tokens_of(first, "hi"))
        await taken.json()
        assert taken.headers["x-ratelimit-limit-requests"] == "1"
        assert taken.headers["x-ratelimit-remaining-requests"] == "0"
        assert taken.headers["x-ratelimit-limit-tokens"] == "1000"
        assert 950 < int(taken.headers["x-ratelimit-remaining-tokens"]) < 980
        assert taken.headers["x-ratelimit-reset-tokens"].endswith("s")
        await books.settled()
        refused = ask(second, auth)
        error = await error_of(refused)
        assert refused.status == 429
        assert (error["code"], error["param"]) == ("rate_limit_exceeded", "rpm")
        assert "rpm" in error["message"]
        wait_ms = int(refused.headers["retry-after-ms"])
        assert 58_000 < wait_ms <= 61_000
        assert int(refused.headers["retry-after"]) * 1000 >= wait_ms
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        listed = second.ask("GET", "/v1/models", authorization=auth)
        await listed.json()
        assert listed.headers["x-ratelimit-remaining-requests"] == "0"
        wrong = ask(second, auth, {"colour": "blue"})
        await wrong.json()
        assert (wrong.status, wrong.headers["x-ratelimit-limit-requests"]) == (400, "1")
        assert books.window("req") == 1


async def test_what_can_never_fit_is_no_429(
    web: Make, auth: str, allow: Callable[..., None], books: Books
) -> None:
    allow(limits=Limits(tokens_per_minute=100))
    async with web() as w:
        asked = ask(w, auth, {"max_tokens": 500})
        error = await error_of(asked)
        assert asked.status == 400
        assert (error["code"], error["param"]) == ("request_exceeds_limit", "max_tokens")
        assert "100 a minute" in error["message"]
        assert "retry-after" not in asked.headers
        assert (books.live, books.window("req"), w.gate.requests) == (0, 0, [])


async def test_a_spent_budget_is_not_worth_a_retry(
    web: Make,
    auth: str,
    allow: Callable[..., None],
    books: Books,
    store: Any,
    sources: Sources,
) -> None:
    sources.price = lambda model: PRICE
    sources.month_cost = lambda tenant_id, at: Decimal("0.97")
    allow(limits=Limits(monthly_budget=Decimal(1)))
    async with web() as w:
        taken = ask(w, auth)
        await until(lambda: bool(w.gate.requests))
        # 20 tokens and a short prompt are reserved: a second one would be above the budget.
        assert 98_990_000 < books.spent < 99_100_000
        refused = ask(w, auth)
        error = await error_of(refused)
        assert refused.status == 429
        assert (error["code"], error["type"]) == ("insufficient_quota", "insufficient_quota")
        assert refused.headers["x-should-retry"] == "false"
        tokens = tokens_of(w, "hi")
        speak(store, w.engine_ids[0], tokens)
        usage = (await taken.json())["usage"]
        await books.settled()
        real = PRICE.cost(usage["prompt_tokens"], 0, len(tokens))
        assert books.spent == 97_000_000 + int(real * 10**8)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("phase", ["queued", "prefill", "decode"])
async def test_a_client_that_leaves_frees_its_place_in_every_phase(
    web: Make, auth: str, books: Books, store: Any, stream: bool, phase: str
) -> None:
    async with web() as w:
        if phase == "queued":
            w.gate.hold.clear()
        asked = ask(w, auth, {"stream": stream})
        await until(lambda: bool(w.gate.calls))
        assert (books.live, books.window("req")) == (1, 1)
        produced = 3 if phase == "decode" else 0
        for i in range(produced):
            Producer(store).write(w.client.reader.streams[0].request_id, i, [500 + i])
        if produced:
            assert w.runtime.front is not None
            (call,) = w.runtime.front.llm._calls.values()
            await until(lambda: call.output_tokens == produced)
        await asked.leave()
        await books.settled()
        w.gate.hold.set()
        prompt = 0 if phase == "queued" else w.runtime.records._waiting[0].prompt_tokens
        assert books.window("tok") == prompt + produced
        assert admission_of(w.pools).leases == {}


async def test_what_no_engine_takes_costs_nothing(web: Make, auth: str, books: Books) -> None:
    async with web() as w:
        w.gate.refusing["actor-i-01"] = "full"
        asked = ask(w, auth)
        await asked.json()
        assert asked.status == 503
        await books.settled()
        assert (books.window("req"), books.window("tok")) == (0, 0)
        long = ask(w, auth, {"messages": [{"role": "user", "content": "word " * 4000}]})
        assert (await error_of(long))["code"] == "context_length_exceeded"
        await books.settled()
        assert (books.window("req"), books.window("tok")) == (0, 0)


async def test_without_an_instance_nothing_is_reserved_for_long(
    web: Make, auth: str, books: Books
) -> None:
    async with web() as w:
        w.client.view.apply(status_of("i-01", InstanceState.DRAINING))
        asked = ask(w, auth)
        await asked.json()
        assert asked.status == 503
        await books.settled()
        assert books.window("req") == 0


async def test_a_detached_request_keeps_its_place_until_its_engine_is_done(
    web: Make, auth: str, books: Books, store: Any
) -> None:
    async with web() as w:
        asked = ask(w, auth, {"stream": True}, x_ferry_detach_s="20")
        await asked.started()
        await asked.leave()
        assert books.live == 1
        speak(store, w.engine_ids[0], [500, 501, 502])
        await books.settled()
        assert books.window("tok") == w.runtime.records._waiting[0].prompt_tokens + 3


async def test_who_resumes_elsewhere_has_the_place_once(
    web: Make, auth: str, books: Books, store: Any, allow: Callable[..., None]
) -> None:
    allow(limits=Limits(concurrency=1))
    async with web() as first, web() as second:
        asked = ask(first, auth, {"stream": True})
        await until(lambda: bool(first.gate.requests))
        engine_id, producer = first.engine_ids[0], Producer(store)
        for i in range(3):
            producer.write(engine_id, i, [500 + i])
        had = [await asked.event() for _ in range(2)]
        mark = str(had[-1]).split("\n")[0].removeprefix("id: ")
        again = second.ask("POST", CHAT, authorization=auth, last_event_id=mark)
        await again.started()
        assert "stream_superseded" in (await asked.events())[-1]
        assert books.live == 1
        refused = ask(first, auth)
        assert (await error_of(refused))["param"] == "concurrency"
        for i in range(3, 6):
            producer.write(engine_id, i, [500 + i], finish="length" if i == 5 else None)
        await again.events()
        await books.settled()
        assert books.window("req") == 1
        assert books.window("tok") == second.runtime.records._waiting[0].prompt_tokens + 6


async def test_a_replay_of_an_ended_stream_costs_nothing(
    web: Make, auth: str, books: Books, store: Any
) -> None:
    async with web() as w:
        asked = ask(w, auth, {"stream": True})
        await until(lambda: bool(w.gate.requests))
        speak(store, w.engine_ids[0], [500, 501, 502])
        request_id = bodies(await asked.events())[0]["id"]
        await books.settled()
        held = (books.window("req"), books.window("tok"))
        await w.ask("GET", f"{CHAT}/{request_id}/events", authorization=auth).events()
        await books.settled()
        assert (books.window("req"), books.window("tok")) == held


@pytest.mark.parametrize(
    ("change", "word"),
    [
        pytest.param({"is_blocked": True}, "blocked", id="blocked tenant"),
        pytest.param({"scopes": frozenset({Scope.READ})}, "inference", id="no scope"),
        pytest.param(
            {"allowed_networks": (ipaddress.ip_network("10.0.0.0/8"),)}, "address", id="network"
        ),
    ],
)
async def test_who_may_not_come_in_is_told_why(
    web: Make, auth: str, allow: Callable[..., None], change: dict[str, Any], word: str
) -> None:
    allow(**change)
    async with web() as w:
        for asked in (ask(w, auth), w.ask("GET", "/v1/models", authorization=auth)):
            error = await error_of(asked)
            assert (asked.status, error["code"]) == (403, "permission_denied")
            assert word in error["message"]
        assert w.gate.requests == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        pytest.param({"is_active": False}, "revoked", id="revoked key"),
        pytest.param({"is_blocked": True}, "blocked", id="blocked tenant"),
    ],
)
async def test_running_requests_end_when_their_key_is_taken_away(
    web: Make,
    auth: str,
    allow: Callable[..., None],
    books: Books,
    store: Any,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    word: str,
) -> None:
    monkeypatch.setattr(service, "LOOK_EVERY_S", 0.1)
    monkeypatch.setattr("controlplane.tenants.key_cache.FRESH_S", 0.05)
    async with web() as w:
        streamed, whole = ask(w, auth, {"stream": True}), ask(w, auth)
        await until(lambda: len(w.gate.requests) == 2)
        await streamed.started()
        allow(**change)
        assert (await error_of(whole))["code"] == "permission_denied"
        assert whole.status == 403
        (error,) = [b["error"] for b in bodies(await streamed.events()) if "error" in b]
        assert (error["code"], error["type"]) == ("permission_denied", "permission_error")
        assert word in error["message"]
        await until(lambda: len([c for c in w.gate.calls if c[0] == "abort"]) == 2)
        await books.settled()


async def test_many_requests_at_two_processes_get_exactly_the_limit(
    web: Make, auth: str, allow: Callable[..., None], books: Books
) -> None:
    allow(limits=Limits(concurrency=5))
    async with web() as first, web() as second:
        asked = [ask((first, second)[i % 2], auth, {"stream": True}) for i in range(40)]
        await asyncio.gather(*(a.started() for a in asked))
        assert sorted(a.status for a in asked) == [200] * 5 + [429] * 35
        assert len(first.gate.requests) + len(second.gate.requests) == 5
        await asyncio.gather(*(a.leave() for a in asked))
        await books.settled()


async def test_without_a_database_known_keys_go_on_with_their_limits(
    web: Make,
    auth: str,
    make_key_of: Callable[[str], str],
    allow: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr("controlplane.tenants.key_cache.FRESH_S", 0.0)
    allow(limits=Limits(requests_per_minute=1))
    asks = 0

    def away(*, public_id: str) -> KeyPolicy | None:
        nonlocal asks
        asks += 1
        raise DatabaseError("away")

    async with web() as w:
        running = ask(w, auth, {"stream": True})
        await running.started()
        monkeypatch.setattr(w.keys, "_query", away)
        refused = ask(w, auth)
        assert (await error_of(refused))["param"] == "rpm"
        unknown = ask(w, make_key_of("bob"))
        assert (await error_of(unknown))["code"] == "database_unavailable"
        # Nobody has said that the one under way is to end.
        seen = asks
        await until(lambda: asks > seen + 2)
        assert not running.task.done()
        await running.leave()


async def test_a_trace_of_the_client_stands_in_the_log(
    web: Make, auth: str, caplog: pytest.LogCaptureFixture
) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    async with web() as w:
        with caplog.at_level("DEBUG", logger="ferry.access"):
            for header in (f"00-{trace}-b7ad6b7169203331-01", f"00-{trace}-nonsense-01"):
                await w.ask("GET", "/v1/models", authorization=auth, traceparent=header).json()
    lines = [r.getMessage() for r in caplog.records if r.name == "ferry.access"]
    assert [line.endswith(f"trace={trace}") for line in lines] == [True, False]
