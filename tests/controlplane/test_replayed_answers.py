"""What clients, records and metrics hear of a replay; with vLLM's real front end."""

import json
from dataclasses import replace
from typing import Any

import pytest

from controlplane.gateway.pool_metrics import pool_collector
from controlplane.gateway.records import to_row
from engine_pool.token_log import FENCE_EPOCHS, request_key
from engine_pool.types import InstanceState
from tests.controlplane.fakes import Producer, status_of, until
from tests.controlplane.test_consumers import Socket
from tests.controlplane.test_moving_answers import BODY, without_comments
from tests.controlplane.web_process import MESSAGES, TEXT, Make, Web, know_two, text_of, tokens_of

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

CHAT = "/v1/chat/completions"
COMMENT = ": request.replayed "
LOST_AT = 7
"""Tokens after which the tests' engine dies."""
LOST = status_of("i-01", InstanceState.LOST)


async def lose_and_go_on(w: Web, store: Any, tokens: list[int]) -> None:
    """Has i-01 die in mid answer, and i-02 say the rest when it is asked to."""
    producer = Producer(store)
    for i, token in enumerate(tokens[:LOST_AT]):
        assert producer.write(w.engine_ids[0], i, [token])
    w.client.view.apply(LOST)
    await until(lambda: len(w.gate.requests) == 2)
    again = w.gate.requests[1]
    assert again.output_token_ids == tuple(tokens[:LOST_AT])
    for i, token in enumerate(tokens[LOST_AT:], LOST_AT):
        finish = "length" if i == len(tokens) - 1 else None
        assert producer.write(w.engine_ids[0], i, [token], finish, again.epoch, "i-02")


@pytest.mark.parametrize("asks", [True, False])
async def test_a_stream_goes_on_and_hears_of_it_when_it_asks(
    web: Make, auth: str, store: Any, asks: bool
) -> None:
    async with web() as w:
        know_two(w)
        headers = {"x_ferry_events": "1"} if asks else {}
        asked = w.ask("POST", CHAT, BODY, authorization=auth, **headers)
        await until(lambda: len(w.gate.requests) == 1)
        await lose_and_go_on(w, store, tokens_of(w, TEXT))
        events = await asked.events()
        assert text_of(events) == TEXT
        told = [line for e in events for line in e.split("\n") if line.startswith(COMMENT)]
        assert len(told) == (1 if asks else 0)
        for line in told:
            facts = json.loads(line.removeprefix(COMMENT))
            assert (facts["from"], facts["to"], facts["at_token"]) == ("i-01", "i-02", LOST_AT)
            assert facts["replays"] == 1
            assert "died" in facts["reason"]
        ids = [e.split("\n")[0].rpartition(":")[2] for e in without_comments(events)[:-1]]
        assert ids == [str(i + 1) for i in range(len(ids))]
        assert w.gate.requests[1].payload == w.gate.requests[0].payload


async def test_a_whole_answer_says_it_in_a_header(web: Make, auth: str, store: Any) -> None:
    async with web() as w:
        know_two(w)
        asked = w.ask("POST", CHAT, {"messages": MESSAGES}, authorization=auth)
        await until(lambda: len(w.gate.requests) == 1)
        tokens = tokens_of(w, TEXT)
        await lose_and_go_on(w, store, tokens)
        answer = await asked.json()
        assert answer["choices"][0]["message"]["content"] == TEXT
        assert answer["usage"]["completion_tokens"] == len(tokens), "each token counts once"
        assert asked.headers["x-ferry-replays"] == "1"


async def test_a_socket_hears_of_it(web: Make, auth: str, store: Any) -> None:
    async with web() as w:
        know_two(w)
        socket = await Socket(w, auth).open()
        await socket.say(type="response.create", input="hi")
        await until(lambda: len(w.gate.requests) == 1)
        await lose_and_go_on(w, store, tokens_of(w, TEXT))
        heard = await socket.hear_until("response.completed")
        (event,) = [e for e in heard if e["type"] == "request.replayed"]
        assert (event["from"], event["to"], event["at_token"]) == ("i-01", "i-02", LOST_AT)
        numbers = [e["sequence_number"] for e in heard]
        assert numbers == sorted(set(numbers))
        await socket.leave()


async def test_the_record_tells_each_replay(
    web: Make, auth: str, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[Any] = []
    async with web() as w:
        know_two(w)
        add = w.runtime.records.add

        def note(call: Any, status: str, error_code: str = "", **more: Any) -> None:
            rows.append(to_row(call, status, error_code, **more, now_s=call.arrived_s + 1.0))
            add(call, status, error_code, **more)

        monkeypatch.setattr(w.runtime.records, "add", note)
        asked = w.ask("POST", CHAT, BODY, authorization=auth)
        await until(lambda: len(w.gate.requests) == 1)
        tokens = tokens_of(w, TEXT)
        await lose_and_go_on(w, store, tokens)
        await asked.events()
        await until(lambda: bool(rows))
        counted = {
            (s.name, s.labels.get("reason")): s.value
            for metric in pool_collector.collect()
            for s in metric.samples
            if s.name == "ferry:replayed_requests_total"
        }
        assert counted[("ferry:replayed_requests_total", "died")] == 1
    (row,) = rows
    assert (row.status, row.replays, row.migrations) == ("completed", 1, 0)
    assert row.instances == ["i-01", "i-02"]
    assert row.output_tokens == len(tokens)
    (told,) = row.replay_notes
    assert (told["from"], told["to"], told["at_token"]) == ("i-01", "i-02", LOST_AT)
    assert told["at_ms"] >= told["gap_ms"] >= 0
    assert row.migration_ms == pytest.approx(told["gap_ms"], abs=0.01)


@pytest.mark.parametrize("is_same", [True, False])
async def test_another_process_sends_the_very_same_request_again_or_refuses(
    web: Make, auth: str, store: Any, is_same: bool
) -> None:
    """The process that read the stream died together with its engine."""
    async with web() as first:
        asked = first.ask(
            "POST", CHAT, BODY | {"seed": 5}, authorization=auth, x_ferry_detach_s="20"
        )
        await until(lambda: len(first.gate.requests) == 1)
        (sent,) = first.gate.requests
        tokens = tokens_of(first, TEXT)
        for i, token in enumerate(tokens[:LOST_AT]):
            assert Producer(store).write(sent.request_id, i, [token])
        event = await asked.event()
        assert event is not None
        request_id = event[len("id: ") :].partition(":")[0]
        await asked.leave()
    if not is_same:
        names = store.hkeys(request_key(request_id))
        (name,) = [n for n in names if n.startswith(b"prompt:")]
        store.hset(request_key(request_id), name, b"another one")
    async with web() as second:
        know_two(second)
        second.client.view.apply(LOST)
        resumed = second.ask("GET", f"{CHAT}/{request_id}/events", authorization=auth)
        if not is_same:
            events = await resumed.events()
            assert "replay_refused" in events[-1]
            assert "prompt" in events[-1]
            return
        await until(lambda: len(second.gate.requests) == 1)
        again = second.gate.requests[0]
        assert again.payload == sent.payload
        assert again == replace(
            sent, epoch=1 + FENCE_EPOCHS, output_token_ids=tuple(tokens[:LOST_AT])
        )
        for i, token in enumerate(tokens[LOST_AT:], LOST_AT):
            finish = "length" if i == len(tokens) - 1 else None
            Producer(store).write(again.request_id, i, [token], finish, again.epoch, "i-02")
        assert text_of(await resumed.events()) == TEXT
