"""What clients, records and metrics hear of a move; with vLLM's real front end."""

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx2
import pytest
from openai import AsyncOpenAI

from controlplane.gateway import metrics
from controlplane.gateway.call import Call
from controlplane.gateway.sse import DONE, PING
from tests.controlplane.fakes import Producer, load_of, status_of, until
from tests.controlplane.test_consumers import Socket
from tests.controlplane.web_process import (
    MESSAGES,
    TEXT,
    Make,
    Web,
    bodies,
    know_two,
    text_of,
    tokens_of,
)

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

BODY = {"messages": MESSAGES, "stream": True, "stream_options": {"include_usage": True}}
COMMENT = ": request.migrated "
MOVES_AT = 7
"""Tokens after which the tests' requests move."""


def speak_and_move(
    store: Any, request_id: str, tokens: Sequence[int], moves_at: int = MOVES_AT
) -> None:
    """Writes an answer as i-01 and, after some tokens, i-02 would."""
    producer = Producer(store)
    for i, token in enumerate(tokens):
        epoch, instance = (1, "i-01") if i < moves_at else (2, "i-02")
        finish = "length" if i == len(tokens) - 1 else None
        assert producer.write(request_id, i, [token], finish, epoch, instance)


def facts_of(event: str) -> dict[str, Any]:
    line = next(line for line in event.split("\n") if line.startswith(COMMENT))
    facts: dict[str, Any] = json.loads(line.removeprefix(COMMENT))
    return facts


def without_comments(events: Sequence[str]) -> list[str]:
    def kept(event: str) -> str:
        return "\n".join(line for line in event.split("\n") if not line.startswith(":"))

    return [kept(e) for e in events]


async def moved_stream(w: Web, store: Any, auth: str, **headers: str) -> list[str]:
    """Returns the events of an answer whose request moves."""
    asked = w.ask("POST", "/v1/chat/completions", BODY, authorization=auth, **headers)
    count = len(w.gate.requests)
    await until(lambda: len(w.gate.requests) > count)
    speak_and_move(store, w.engine_ids[-1], tokens_of(w, TEXT))
    return await asked.events()


async def test_a_stream_hears_of_a_move_only_when_it_asks(web: Make, auth: str, store: Any) -> None:
    async with web() as w:
        know_two(w)
        plain = await moved_stream(w, store, auth)
        assert text_of(plain) == TEXT
        assert not [e for e in plain if e.startswith(":")]
    async with web() as w:
        know_two(w)
        told = await moved_stream(w, store, auth, x_ferry_events="1")
        assert text_of(told) == TEXT
        (at,) = [i for i, e in enumerate(told) if COMMENT in e]
        facts = facts_of(told[at])
        assert (facts["from"], facts["to"], facts["at_token"]) == ("i-01", "i-02", MOVES_AT)
        assert facts["gap_ms"] >= 0
        # The chunk with the role, one for each token at the source, then the move.
        assert at == 1 + MOVES_AT
        ids = [e.split("\n")[0].rpartition(":")[2] for e in without_comments(told) if e != DONE]
        assert ids == [str(i + 1) for i in range(len(ids))]


async def test_another_word_in_the_header_is_refused(web: Make, auth: str) -> None:
    async with web() as w:
        asked = w.ask(
            "POST", "/v1/chat/completions", BODY, authorization=auth, x_ferry_events="yes"
        )
        assert (await asked.json())["error"]["param"] == "x-ferry-events"
        assert asked.status == 400
        assert w.gate.requests == []


async def test_openais_client_ignores_what_a_stream_tells_of_moves_and_its_pings(
    web: Make, auth: str, store: Any
) -> None:
    async with web() as w:
        know_two(w)
        events = await moved_stream(w, store, auth, x_ferry_events="1")
    assert any(COMMENT in e for e in events)

    async def with_pings() -> AsyncIterator[bytes]:
        for event in events:
            yield PING
            yield event.encode()

    def answer(request: httpx2.Request) -> httpx2.Response:
        kind = {"content-type": "text/event-stream; charset=utf-8"}
        return httpx2.Response(200, headers=kind, content=with_pings())

    async with AsyncOpenAI(
        api_key="sk-none",
        base_url="http://ferry/v1",
        http_client=httpx2.AsyncClient(transport=httpx2.MockTransport(answer)),
    ) as client:
        stream = await client.chat.completions.create(
            model="the-model", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        chunks = [c async for c in stream]
    assert [c.model_dump(exclude_unset=True) for c in chunks] == bodies(without_comments(events))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == TEXT


async def test_any_cut_of_a_moved_stream_is_resumed_exactly(
    web: Make, auth: str, store: Any
) -> None:
    async with web() as first, web() as second:
        know_two(first, second)
        whole = await moved_stream(first, store, auth, x_ferry_events="1")
        (at,) = [i for i, e in enumerate(whole) if COMMENT in e]
        for cut in range(1, len(whole)):
            mark = without_comments(whole)[cut - 1].split("\n")[0].removeprefix("id: ")
            again = second.ask(
                "POST",
                "/v1/chat/completions",
                authorization=auth,
                last_event_id=mark,
                x_ferry_events="1",
            )
            rest = await again.events()
            assert without_comments(rest) == without_comments(whole)[cut:], mark
            moves = [facts_of(e) for e in rest if COMMENT in e]
            # It stands in the log where it was; only the gap is nobody's any more.
            assert moves == ([{**facts_of(whole[at]), "gap_ms": None}] if cut <= at else [])


async def test_a_socket_is_told_of_a_move_at_its_place_also_when_it_resumes(
    web: Make, auth: str, store: Any
) -> None:
    async with web() as first, web() as second:
        know_two(first, second)
        socket = await Socket(first, auth).open()
        await socket.say(type="response.create", input="hi")
        await until(lambda: bool(first.gate.requests))
        speak_and_move(store, first.engine_ids[0], tokens_of(first, TEXT))
        heard = await socket.hear_until("response.completed")
        (event,) = [e for e in heard if e["type"] == "request.migrated"]
        response_id = heard[-1]["response"]["id"]
        assert event["gap_ms"] >= 0
        assert {k: v for k, v in event.items() if k != "gap_ms"} == {
            "type": "request.migrated",
            # created, in_progress, a chunk for each token.
            "sequence_number": 2 + MOVES_AT,
            "request_id": response_id,
            "from": "i-01",
            "to": "i-02",
            "at_token": MOVES_AT,
        }
        numbers = [e["sequence_number"] for e in heard]
        assert numbers == sorted(set(numbers))
        event["gap_ms"] = None
        other = await Socket(second, auth).open()
        for after in (-1, MOVES_AT, 1 + MOVES_AT, 2 + MOVES_AT, 3 + MOVES_AT):
            await other.say(type="response.resume", response_id=response_id, starting_after=after)
            rest = await other.hear_until("response.completed")
            assert rest == [e for e in heard if e["sequence_number"] > after]
        await socket.leave()
        await other.leave()


@pytest.mark.parametrize("how", ["cancel", "disconnect"])
async def test_a_moved_answer_is_stopped_where_it_is(
    web: Make, auth: str, store: Any, how: str
) -> None:
    async with web() as w:
        know_two(w)
        socket = await Socket(w, auth).open()
        await socket.say(type="response.create", input="hi")
        await until(lambda: bool(w.gate.requests))
        (engine_id,) = w.engine_ids
        producer = Producer(store)
        producer.write(engine_id, 0, [500])
        producer.write(engine_id, 1, [500], epoch=2, instance="i-02")
        await socket.hear_until("request.migrated")
        if how == "cancel":
            await socket.say(type="response.cancel")
            await socket.hear_until("response.failed")
        await socket.leave()
        abort = ("abort", "actor-i-02", (engine_id,))
        await until(lambda: abort in w.gate.calls)
        assert [kind for kind, _, _ in w.gate.calls] == ["submit", "abort"]


async def test_a_stop_string_stops_a_request_that_is_moving_away(
    web: Make, auth: str, store: Any
) -> None:
    async with web() as w:
        know_two(w)
        body = {"messages": MESSAGES, "stop": ["naïve"]}
        asked = w.ask("POST", "/v1/chat/completions", body, authorization=auth)
        await until(lambda: bool(w.gate.requests))
        (engine_id,) = w.engine_ids
        tokens, producer = tokens_of(w, TEXT), Producer(store)
        for i, token in enumerate(tokens):
            producer.write(engine_id, i, [token])
        answer = await asked.json()
        assert answer["choices"][0]["finish_reason"] == "stop"
        await until(lambda: ("abort", "actor-i-01", (engine_id,)) in w.gate.calls)
        # It had left meanwhile.
        producer.write(engine_id, len(tokens), [500], epoch=2, instance="i-02")
        await until(lambda: ("abort", "actor-i-02", (engine_id,)) in w.gate.calls)


async def test_a_request_that_moved_is_resumed_and_aborted_by_another_process(
    web: Make, auth: str, store: Any
) -> None:
    async with web() as first, web() as second:
        asked = first.ask(
            "POST", "/v1/chat/completions", BODY, authorization=auth, x_ferry_detach_s="20"
        )
        await until(lambda: bool(first.gate.requests))
        (engine_id,) = first.engine_ids
        # It moves in the queue, and its first instance goes away.
        await asked.started()
        second.client.view.apply("i-01")
        second.client.view.apply(status_of("i-02"))
        second.client.view.apply(load_of("i-02", seq=2, waiting=[engine_id]))
        (key,) = [k.decode() for k in store.keys("ferry:request:*")]
        path = f"/v1/chat/completions/{key.removeprefix('ferry:request:')}/events"
        again = second.ask("GET", path, authorization=auth)
        await until(lambda: bool(second.client.reader.streams))
        assert second.client.reader.streams[0].actor == "actor-i-02"
        Producer(store).write(engine_id, 0, [500], epoch=2, instance="i-02")
        assert await again.event() is not None
        await again.leave()
        await until(lambda: ("abort", "actor-i-02", (engine_id,)) in second.gate.calls)
        await asked.leave()


async def test_the_call_counts_its_moves_and_names_where_it_was(
    web: Make, auth: str, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Call] = []
    async with web() as w:
        know_two(w)
        monkeypatch.setattr(w.runtime.records, "add", lambda call, *_, **__: calls.append(call))
        moved_before = metrics.MOVED_STREAMS._value.get()
        gaps_before = metrics.MOVED_GAP_S._sum.get()
        asked = w.ask("POST", "/v1/chat/completions", {"messages": MESSAGES}, authorization=auth)
        await until(lambda: bool(w.gate.requests))
        tokens, producer = tokens_of(w, TEXT), Producer(store)
        (engine_id,) = w.engine_ids
        for i, token in enumerate(tokens):
            # There and back.
            epoch = 1 + (i > 3) + (i > 8)
            finish = "length" if i == len(tokens) - 1 else None
            name = "i-02" if epoch == 2 else "i-01"
            assert producer.write(engine_id, i, [token], finish, epoch, name)
        answer = await asked.json()
        assert answer["choices"][0]["message"]["content"] == TEXT
        # As before: the one that took it.
        assert asked.headers["x-ferry-instance"] == "i-01"
        (call,) = calls
        assert call.migrations == 2
        assert call.instances == ["i-01", "i-02", "i-01"]
        assert call.instance == "i-01"
        assert metrics.MOVED_STREAMS._value.get() == moved_before + 2
        assert metrics.MOVED_GAP_S._sum.get() > gaps_before
        # A replay is no further move.
        path = f"/v1/chat/completions/{answer['id']}/events"
        assert text_of(await w.ask("GET", path, authorization=auth).events()) == TEXT
        assert metrics.MOVED_STREAMS._value.get() == moved_before + 2


async def test_each_choice_moves_for_itself(
    web: Make, auth: str, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Call] = []
    async with web() as w:
        know_two(w)
        monkeypatch.setattr(w.runtime.records, "add", lambda call, *_, **__: calls.append(call))
        body = {"messages": MESSAGES, "stream": True, "n": 2, "seed": 1}
        asked = w.ask("POST", "/v1/chat/completions", body, authorization=auth, x_ferry_events="1")
        await until(lambda: len(w.gate.requests) == 2)
        one, two = w.engine_ids
        tokens = tokens_of(w, TEXT)
        speak_and_move(store, one, tokens, moves_at=len(tokens))
        speak_and_move(store, two, tokens, moves_at=4)
        events = await asked.events()
        assert text_of(events, 0) == text_of(events, 1) == TEXT
        (told,) = [e for e in events if COMMENT in e]
        assert facts_of(told)["at_token"] == 4
        assert bodies([told])[0]["choices"][0]["index"] == 1
        (call,) = calls
        assert (call.migrations, call.instances) == (1, ["i-01", "i-02"])
