"""Requests that wait at the gateway (late binding), as their clients see it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis

from controlplane.tenants.selectors import KeyPolicy
from engine_pool import gateway_queue
from engine_pool.client import PoolClient
from engine_pool.policy.settings import DispatchRule, PolicySettings
from tests.controlplane.asgi_client import Exchange
from tests.controlplane.fakes import load_of, until
from tests.controlplane.web_process import (
    MESSAGES,
    TEXT,
    Make,
    Web,
    running,
    speak,
    text_of,
    tokens_of,
)

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.slow,
    # vLLM reads a field of its own requests that it calls deprecated.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

RULES = PolicySettings(dispatch=DispatchRule(is_late_binding=True))
PROMPTS: dict[str, Any] = {"prompt": ["one", "two"]}

Full = Callable[[], "contextlib.AbstractAsyncContextManager[Web]"]


@pytest.fixture
def full(
    web: Make, store_url: str, load: Callable[[PoolClient], Any], policies: dict[str, KeyPolicy]
) -> Full:
    """Makes a web process whose one instance has no room. `web` keeps it from the database."""

    @contextlib.asynccontextmanager
    async def make() -> AsyncIterator[Web]:
        async with running(store_url, load, policies, RULES) as web:
            web.client.view.apply(load_of("i-01", 2, used=10_000, running=["r"]))
            yield web

    return make


def make_room(web: Web) -> None:
    web.client.view.apply(load_of("i-01", 3, used=0, running=["r"]))


async def queued(web: Web, count: int) -> None:
    await until(lambda: len(web.client.dispatcher.queue) == count)


async def metric(web: Web, name: str) -> float:
    """Returns a metric's value as Prometheus gets it; that of earlier tests' processes is 0."""
    asked = web.ask("GET", "/metrics")
    lines = "".join(await asked.events()).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


async def test_a_stream_begins_when_there_is_room(
    full: Full, auth: str, store: "redis.Redis[bytes]"
) -> None:
    async with full() as w:
        body = {"messages": MESSAGES, "stream": True}
        asked = w.ask("POST", "/v1/chat/completions", body, authorization=auth)
        await queued(w, 1)
        assert await metric(w, 'ferry:gateway_waiting{pool="default",priority_class="normal"}') == 1
        assert asked.status == 0
        assert w.gate.requests == []
        make_room(w)
        await until(lambda: bool(w.gate.requests))
        speak(store, w.engine_ids[0], tokens_of(w, TEXT))
        assert text_of(await asked.events()) == TEXT
        assert await metric(w, 'ferry:gateway_waiting{pool="default",priority_class="normal"}') == 0
        waits = 'ferry:gateway_wait_seconds_count{priority_class="normal"}'
        assert await metric(w, waits) >= 1


@pytest.mark.parametrize(
    ("path", "body", "waiting"),
    [
        pytest.param("chat/completions", {"messages": MESSAGES, "stream": True}, 1, id="stream"),
        pytest.param("chat/completions", {"messages": MESSAGES}, 1, id="whole"),
        pytest.param("completions", {**PROMPTS, "stream": True}, 2, id="stream of two prompts"),
        pytest.param("completions", PROMPTS, 2, id="two prompts"),
    ],
)
async def test_a_client_that_leaves_waits_no_longer(
    full: Full, auth: str, path: str, body: dict[str, Any], waiting: int
) -> None:
    async with full() as w:
        asked = w.ask("POST", f"/v1/{path}", body, authorization=auth)
        await queued(w, waiting)
        await asked.leave()
        await queued(w, 0)
        make_room(w)
        other = w.ask("POST", "/v1/chat/completions", {"messages": MESSAGES}, authorization=auth)
        await until(lambda: bool(w.gate.requests))
        assert len(w.gate.requests) == 1
        assert [s.request_id for s in w.client.reader.streams] == w.engine_ids
        await other.leave()


async def test_a_full_queue_is_told_as_overload(
    full: Full, auth: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_queue, "WAITING_MAX", 1)
    async with full() as w:

        def ask() -> Exchange:
            body = {"messages": MESSAGES, "stream": True}
            return w.ask("POST", "/v1/chat/completions", body, authorization=auth)

        first = ask()
        await queued(w, 1)
        second = ask()
        answer = await second.json()
        assert second.status == 503
        assert second.headers["retry-after"] == "1"
        assert answer["error"]["code"] == "server_is_overloaded"
        assert "wait at this server" in answer["error"]["message"]
        await first.leave()


async def test_a_request_ends_with_an_error_when_nobody_serves_for_too_long(
    full: Full, auth: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_queue, "NOBODY_MAX_S", 0.05)
    monkeypatch.setattr(gateway_queue, "TICK_S", 0.02)
    async with full() as w:
        asked = w.ask("POST", "/v1/chat/completions", {"messages": MESSAGES}, authorization=auth)
        await queued(w, 1)
        w.client.view.apply("i-01")  # type: ignore[arg-type]
        answer = await asked.json()
        assert asked.status == 503
        assert "No instance has served" in answer["error"]["message"]
        await asyncio.wait({asked.task})


async def test_a_server_that_stops_sends_waiting_requests_away(full: Full, auth: str) -> None:
    async with full() as w:
        asked = w.ask("POST", "/v1/chat/completions", {"messages": MESSAGES}, authorization=auth)
        await queued(w, 1)
        w.runtime.begin_stop()
        answer = await asked.json()
        assert asked.status == 503
        assert answer["error"]["code"] == "server_stopping"
        assert w.gate.requests == []
