"""Idempotency-Key: what is sent twice runs once."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from controlplane.gateway import idempotency
from tests.controlplane.asgi_client import Exchange
from tests.controlplane.fakes import until
from tests.controlplane.web_process import MESSAGES, Make, Web, speak, tokens_of

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

CHAT = "/v1/chat/completions"


def ask(web: Web, auth: str, key: str = "k-1", **more: Any) -> Exchange:
    body = {"messages": MESSAGES, "max_tokens": 20, **more}
    return web.ask("POST", CHAT, body, authorization=auth, idempotency_key=key)


async def test_a_repeat_waits_for_the_first_and_gets_its_answer_at_any_process(
    web: Make, auth: str, store: Any
) -> None:
    async with web() as first, web() as second:
        asked = ask(first, auth)
        await until(lambda: bool(first.gate.requests))
        meanwhile = ask(second, auth)
        await asyncio.sleep(0.05)
        speak(store, first.engine_ids[0], tokens_of(first, "hi"))
        answer = await asked.json()
        assert await meanwhile.json() == answer
        later = ask(first, auth)
        assert await later.json() == answer
        assert "idempotent-replayed" not in asked.headers
        for repeat in (meanwhile, later):
            assert repeat.headers["idempotent-replayed"] == "true"
        assert len(first.gate.requests) + len(second.gate.requests) == 1


async def test_another_body_is_refused_by_name(web: Make, auth: str) -> None:
    async with web() as w:
        asked = ask(w, auth)
        await until(lambda: bool(w.gate.requests))
        other = ask(w, auth, max_tokens=21)
        error = (await other.json())["error"]
        assert other.status == 400
        assert (error["code"], error["param"]) == ("idempotency_key_reused", "Idempotency-Key")
        await asked.leave()


async def test_a_key_is_a_tenants_own(
    web: Make, auth: str, make_key_of: Callable[[str], str]
) -> None:
    async with web() as w:
        asked = [ask(w, auth), ask(w, make_key_of("bob"), max_tokens=21)]
        await until(lambda: len(w.gate.requests) == 2)
        for one in asked:
            await one.leave()


async def test_what_has_failed_or_was_left_runs_again(web: Make, auth: str, store: Any) -> None:
    async with web() as w:
        w.gate.refusing["actor-i-01"] = "full"
        refused = ask(w, auth)
        await refused.started()
        assert refused.status == 503
        w.gate.refusing.clear()
        left = ask(w, auth)
        await until(lambda: len(w.gate.requests) == 1)
        await left.leave()
        again = ask(w, auth)
        await until(lambda: len(w.gate.requests) == 2)
        speak(store, w.engine_ids[1], tokens_of(w, "hi"))
        await again.json()
        assert again.status == 200


async def test_a_key_whose_process_died_is_free_again(
    web: Make, auth: str, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest_ms = idempotency.CLAIM_MS
    monkeypatch.setattr(idempotency, "CLAIM_MS", 50)
    async with web() as w:
        first = ask(w, auth)
        await until(lambda: bool(w.gate.requests))
        # The second one is to keep the key for as long as its answer takes.
        monkeypatch.setattr(idempotency, "CLAIM_MS", longest_ms)
        again = ask(w, auth)
        await until(lambda: len(w.gate.requests) == 2)
        speak(store, w.engine_ids[1], tokens_of(w, "hi"))
        assert (await again.json())["choices"]
        await first.leave()
        # The first one's end takes nothing from the second.
        assert (await ask(w, auth).json())["choices"]
        assert len(w.gate.requests) == 2


@pytest.mark.parametrize(
    ("key", "more"),
    [
        pytest.param("", {}, id="empty"),
        pytest.param("x" * 256, {}, id="too long"),
        pytest.param("k", {"stream": True}, id="a stream"),
    ],
)
async def test_a_key_that_cannot_be_kept_is_named(
    web: Make, auth: str, key: str, more: dict[str, Any]
) -> None:
    async with web() as w:
        asked = ask(w, auth, key, **more)
        assert (await asked.json())["error"]["param"] == "Idempotency-Key"
        assert (asked.status, w.gate.requests) == (400, [])
