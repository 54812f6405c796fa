"""Requests for a pool at zero, as their clients see it."""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
import redis

from controlplane.tenants.selectors import KeyPolicy
from engine_pool.client import PoolClient
from engine_pool.types import InstanceName
from tests.controlplane.fakes import load_of, status_of, until
from tests.controlplane.test_waiting_requests import metric
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

CHAT = "/v1/chat/completions"
BODY = {"messages": MESSAGES, "stream": True}

Empty = Callable[..., "contextlib.AbstractAsyncContextManager[Web]"]


@pytest.fixture
def empty(
    web: Make, store_url: str, load: Callable[[PoolClient], Any], policies: dict[str, KeyPolicy]
) -> Empty:
    """Makes a web process whose pool is at zero. `web` keeps it from the database."""

    @contextlib.asynccontextmanager
    async def make(hold_s: float = 300.0, hold_max: int = 10) -> AsyncIterator[Web]:
        async with running(store_url, load, policies) as web:
            web.client.use(replace(web.client.config, hold_s=hold_s, hold_max=hold_max))
            web.client.view.apply(InstanceName("i-01"))
            yield web

    return make


def wake(web: Web) -> None:
    """Brings the pool's first instance."""
    web.client.view.apply(status_of("i-02"))
    web.client.view.apply(load_of("i-02"))


async def held(web: Web, count: int) -> None:
    await until(lambda: len(web.client.dispatcher.holding) == count)


async def test_a_stream_begins_with_the_first_instance_and_keeps_its_place_till_then(
    empty: Empty, auth: str, store: "redis.Redis[bytes]"
) -> None:
    async with empty() as w:
        asked = w.ask("POST", CHAT, BODY, authorization=auth)
        await held(w, 1)
        name = 'ferry:held_requests{pool="default",priority_class="normal"}'
        assert await metric(w, name) == 1
        assert await metric(w, "ferry:leases") == 1
        assert asked.status == 0
        wake(w)
        await until(lambda: bool(w.gate.requests))
        # From its arrival, as the engine reckons the time in queues.
        (request,) = w.gate.requests
        assert w.runtime.front is not None
        call = w.runtime.front.llm._calls[request.request_id]
        assert request.arrival_unix_s == call.arrived_unix_s
        speak(store, w.engine_ids[0], tokens_of(w, TEXT))
        assert text_of(await asked.events()) == TEXT
        assert asked.status == 200
        assert await metric(w, name) == 0


async def test_a_client_that_leaves_gives_its_place_back(empty: Empty, auth: str) -> None:
    async with empty() as w:
        asked = w.ask("POST", CHAT, BODY, authorization=auth)
        await held(w, 1)
        await asked.leave()
        await held(w, 0)
        assert await metric(w, "ferry:leases") == 0
        wake(w)
        assert w.gate.requests == []


async def test_after_the_time_the_client_hears_that_the_pool_starts(
    empty: Empty, auth: str
) -> None:
    async with empty(hold_s=0.1) as w:
        asked = w.ask("POST", CHAT, BODY, authorization=auth)
        error = (await asked.json())["error"]
        assert asked.status == 503
        assert asked.headers["retry-after"] == "5"
        assert (error["code"], error["type"]) == ("pool_starting", "server_error")
        assert "The pool is starting" in error["message"]
        assert await metric(w, "ferry:leases") == 0


async def test_who_finds_no_place_to_wait_is_told_at_once(empty: Empty, auth: str) -> None:
    async with empty(hold_max=0) as w:
        asked = w.ask("POST", CHAT, {"messages": MESSAGES}, authorization=auth)
        error = (await asked.json())["error"]
        assert asked.status == 503
        assert asked.headers["retry-after"] == "1"
        assert error["code"] == "server_is_overloaded"


@pytest.mark.parametrize(("hold_s", "status"), [(300.0, 200), (0.0, 503)])
async def test_a_pool_at_zero_is_ready_if_requests_wait_for_it(
    empty: Empty, hold_s: float, status: int
) -> None:
    async with empty(hold_s=hold_s) as w:
        asked = w.ask("GET", "/readyz")
        await asked.json()
        assert asked.status == status
