"""What the real front end hands down of a prompt, so that its like is found by its beginning."""

from dataclasses import replace
from typing import Any

import pytest

from engine_pool import ledger
from engine_pool.types import EngineKind
from tests.controlplane.fakes import load_of, status_of, until
from tests.controlplane.web_process import Make

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.slow,
    # vLLM reads a field of its own requests that it calls deprecated.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

SYSTEM = {"role": "system", "content": "You are a careful assistant. " * 30}


def chat(text: str, **more: Any) -> dict[str, Any]:
    messages = [SYSTEM, {"role": "user", "content": text}]
    return {"messages": messages, "stream": True, **more}


async def test_chats_with_one_beginning_share_its_hashes_unless_salted(
    web: Make, auth: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "LEDGER_LIFE_S", 60.0)
    async with web() as w:
        w.client.view.apply(replace(status_of("i-01"), engine=EngineKind.VLLM))
        w.client.view.apply(load_of("i-01", 2))
        wishes = [
            chat("one"),
            chat("two"),
            chat("three", cache_salt="mine"),
        ]
        asked = []
        for count, body in enumerate(wishes, start=1):
            asked.append(w.ask("POST", "/v1/chat/completions", body, authorization=auth))
            await until(lambda count=count: len(w.gate.requests) == count)
        one, two, salted = (e.prefix for e in w.client.view.ledger.entries())
        # The beginning that they share has over 128 tokens.
        assert one[:2] == two[:2]
        assert len(salted) >= 2
        assert not set(salted) & set(one)
        demands = [e.demand_tokens for e in w.client.view.ledger.entries()]
        assert demands[1] < demands[0]
        assert demands[2] >= demands[0]
        for exchange in asked:
            await exchange.leave()
