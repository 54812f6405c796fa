"""The API with vLLM's real front end, a real store, and engines that say what a test wants."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from engine_pool.ports import EngineRequest
from engine_pool.types import InstanceState, PriorityClass
from tests.controlplane.fakes import Producer, status_of, until
from tests.controlplane.web_process import MESSAGES, TEXT, Make, bodies, speak, text_of, tokens_of

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.slow,
    # vLLM reads a field of its own requests that it calls deprecated.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


async def test_a_chat_is_answered_whole(web: Make, auth: str, store: Any) -> None:
    async with web() as w:
        asked = w.ask(
            "POST",
            "/v1/chat/completions",
            {"messages": MESSAGES},
            authorization=auth,
            x_request_id="mine-1",
        )
        await until(lambda: bool(w.gate.requests))
        speak(store, w.engine_ids[0], tokens_of(w, TEXT))
        answer = await asked.json()
        assert asked.status == 200
        assert answer["choices"][0]["message"]["content"] == TEXT
        assert answer["model"] == "the-model"
        assert answer["usage"]["completion_tokens"] == len(tokens_of(w, TEXT))
        assert asked.headers["x-request-id"] == "mine-1"
        assert asked.headers["x-ferry-instance"] == "i-01"
        assert asked.headers["openai-processing-ms"].isdigit()


async def test_a_stream_keeps_its_rules(web: Make, auth: str, store: Any) -> None:
    body = {"messages": MESSAGES, "stream": True, "stream_options": {"include_usage": True}}
    async with web() as w:
        asked = w.ask("POST", "/v1/chat/completions", body, authorization=auth)
        await until(lambda: bool(w.gate.requests))
        speak(store, w.engine_ids[0], tokens_of(w, TEXT))
        events = await asked.events()
        made = bodies(events)
        assert asked.headers["cache-control"] == "no-cache"
        assert asked.headers["x-accel-buffering"] == "no"
        assert asked.headers["content-type"].startswith("text/event-stream")
        assert events[-1] == "data: [DONE]\n\n"
        assert len({(b["id"], b["created"], b["model"]) for b in made}) == 1
        assert made[0]["choices"][0]["delta"]["role"] == "assistant"
        assert made[-2]["choices"][0]["finish_reason"] == "length"
        assert made[-1]["choices"] == []
        assert made[-1]["usage"]["completion_tokens"] == len(tokens_of(w, TEXT))
        assert text_of(events) == TEXT


async def test_any_cut_is_resumed_exactly_by_another_process(
    web: Make, auth: str, store: Any
) -> None:
    body = {"messages": MESSAGES, "stream": True, "stream_options": {"include_usage": True}}
    async with web() as first, web() as second:
        asked = first.ask("POST", "/v1/chat/completions", body, authorization=auth)
        await until(lambda: bool(first.gate.requests))
        speak(store, first.engine_ids[0], tokens_of(first, TEXT))
        whole = await asked.events()
        for cut in range(1, len(whole)):
            mark = whole[cut - 1].split("\n")[0].removeprefix("id: ")
            again = second.ask(
                "POST", "/v1/chat/completions", authorization=auth, last_event_id=mark
            )
            assert await again.events() == whole[cut:], mark
        request_id = bodies(whole)[0]["id"]
        path = f"/v1/chat/completions/{request_id}/events"
        assert await second.ask("GET", path, authorization=auth).events() == whole
        assert second.gate.calls == []


async def test_choices_are_resumed_each_at_its_own_place(web: Make, auth: str, store: Any) -> None:
    body = {"messages": MESSAGES, "stream": True, "n": 2, "seed": 1}
    async with web() as first, web() as second:
        asked = first.ask("POST", "/v1/chat/completions", body, authorization=auth)
        await until(lambda: len(first.gate.requests) == 2)
        one, two = first.engine_ids
        tokens, producer = tokens_of(first, TEXT), Producer(store)
        # One choice runs ahead of the other.
        for i, token in enumerate(tokens):
            producer.write(one, i, [token], finish="stop" if i == len(tokens) - 1 else None)
            if i % 3 == 0:
                producer.write(two, i // 3, [tokens[i // 3]])
        producer.write(two, (len(tokens) + 2) // 3, [], finish="length")
        whole = await asked.events()
        for cut in range(1, len(whole) - 1):
            mark = whole[cut - 1].split("\n")[0].removeprefix("id: ")
            again = second.ask(
                "POST", "/v1/chat/completions", authorization=auth, last_event_id=mark
            )
            rest = await again.events()
            for index in (0, 1):
                assert text_of([*whole[:cut], *rest], index) == text_of(whole, index)
            assert len(rest) == len(whole) - cut


async def test_a_running_stream_moves_to_another_process(web: Make, auth: str, store: Any) -> None:
    body = {"messages": MESSAGES, "stream": True}
    async with web() as first, web() as second:
        asked = first.ask("POST", "/v1/chat/completions", body, authorization=auth)
        await until(lambda: bool(first.gate.requests))
        engine_id, tokens = first.engine_ids[0], tokens_of(first, TEXT)
        producer = Producer(store)
        for i in range(4):
            producer.write(engine_id, i, [tokens[i]])
        had = [await asked.event() for _ in range(3)]
        assert had[-1] is not None
        mark = had[-1].split("\n")[0].removeprefix("id: ")
        again = second.ask("POST", "/v1/chat/completions", authorization=auth, last_event_id=mark)
        await again.started()
        left = await asked.events()
        assert "stream_superseded" in left[-1]
        for i in range(4, len(tokens)):
            producer.write(
                engine_id, i, [tokens[i]], finish="length" if i == len(tokens) - 1 else None
            )
        rest = await again.events()
        assert text_of([e for e in had if e] + rest) == TEXT
        assert all(kind != "abort" for w in (first, second) for kind, _, _ in w.gate.calls)


async def test_another_tenant_cannot_resume_a_stream(
    web: Make, auth: str, make_key_of: Callable[[str], str], store: Any
) -> None:
    async with web() as w:
        asked = w.ask(
            "POST",
            "/v1/chat/completions",
            {"messages": MESSAGES, "stream": True},
            authorization=auth,
        )
        await until(lambda: bool(w.gate.requests))
        speak(store, w.engine_ids[0], tokens_of(w, "hi"))
        request_id = bodies(await asked.events())[0]["id"]
        for path in (
            f"/v1/chat/completions/{request_id}/events",
            f"/v1/completions/{request_id}/events",
            "/v1/chat/completions/chatcmpl-nothing/events",
        ):
            other = w.ask("GET", path, authorization=make_key_of("bob"))
            assert (await other.json())["error"]["code"] == "stream_not_found"
            assert other.status == 404


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("tokens", [0, 3], ids=["before the first token", "in decode"])
async def test_a_client_that_leaves_stops_the_engine(
    web: Make, auth: str, store: Any, stream: bool, tokens: int
) -> None:
    async with web() as w:
        body = {"messages": MESSAGES, "stream": stream, "n": 2}
        asked = w.ask("POST", "/v1/chat/completions", body, authorization=auth)
        await until(lambda: len(w.gate.requests) == 2)
        for i in range(tokens):
            Producer(store).write(w.engine_ids[0], i, [500 + i])
        await asyncio.sleep(0.05)
        await asked.leave()
        await until(lambda: len(w.gate.calls) == 2)
        assert w.gate.calls[1][0] == "abort"
        assert set(w.gate.calls[1][2]) == set(w.engine_ids)
        assert w.client.reader.streams == ()
        assert w.runtime.front is not None
        processor = w.runtime.front.llm.output_processor
        assert processor.request_states == processor.parent_requests == {}
        (row,) = w.runtime.records._waiting
        assert (row.status, row.error_code) == ("cancelled", "")
        assert row.output_tokens == tokens


async def test_a_detached_request_goes_on_until_its_time_is_over(
    web: Make, auth: str, store: Any
) -> None:
    async with web() as w:
        body = {"messages": MESSAGES, "stream": True}
        asked = w.ask(
            "POST", "/v1/chat/completions", body, authorization=auth, x_ferry_detach_s="0.3"
        )
        await asked.started()
        await asked.leave()
        assert len(w.gate.calls) == 1
        assert Producer(store).write(w.engine_ids[0], 0, [500])
        await until(lambda: len(w.gate.calls) == 2)
        assert w.gate.calls[1] == ("abort", "actor-i-01", (w.engine_ids[0],))


async def test_a_client_that_does_not_read_costs_a_bounded_buffer(
    web: Make, auth: str, store: Any
) -> None:
    from engine_pool.token_reader import UNREAD_MAX

    async with web() as w:
        body = {"messages": MESSAGES, "stream": True}
        asked = w.ask("POST", "/v1/chat/completions", body, authorization=auth)
        await asked.started()
        asked.reads.clear()
        count = 5 * UNREAD_MAX
        await asyncio.to_thread(speak, store, w.engine_ids[0], [500] * count)
        await asyncio.sleep(0.3)
        assert w.runtime.front is not None
        (state,) = w.runtime.front.llm.output_processor.request_states.values()
        assert state.queue.unread() <= UNREAD_MAX + 1
        asked.reads.set()
        events = await asked.events()
        # A chunk with the role, one a token, and [DONE].
        assert len(events) == count + 2


async def test_a_dead_instance_is_an_event_and_then_the_end(
    web: Make, auth: str, store: Any
) -> None:
    async with web() as w:
        asked = w.ask(
            "POST",
            "/v1/chat/completions",
            {"messages": MESSAGES, "stream": True},
            authorization=auth,
        )
        await asked.started()
        Producer(store).write(w.engine_ids[0], 0, [500])
        # Nobody else is there, and it does not wait.
        w.client.use(replace(w.client.config, replay_wait_s=0.0))
        w.client.view.apply(status_of("i-01", InstanceState.LOST))
        events = await asked.events()
        error = bodies(events)[-1]["error"]
        assert (error["code"], error["resumable"]) == ("instance_lost", False)
        assert "[DONE]" not in events[-1]


async def test_a_draining_process_is_not_ready_and_serves_on(
    web: Make, auth: str, store: Any
) -> None:
    async with web() as w:
        w.pools.begin_drain()
        asked = w.ask("GET", "/readyz")
        assert await asked.json() == {"reason": "draining"}
        assert asked.status == 503
        body = {"messages": MESSAGES, "stream": True}
        late = w.ask("POST", "/v1/chat/completions", body, authorization=auth)
        await until(lambda: bool(w.gate.requests))
        speak(store, w.engine_ids[0], tokens_of(w, TEXT))
        assert text_of(await late.events()) == TEXT


async def test_a_stopping_process_lets_go_of_its_streams_for_another(
    web: Make, auth: str, store: Any
) -> None:
    async with web() as first, web() as second:
        body = {"messages": MESSAGES, "stream": True}
        asked = first.ask("POST", "/v1/chat/completions", body, authorization=auth)
        await asked.started()
        tokens, producer = tokens_of(first, TEXT), Producer(store)
        producer.write(first.engine_ids[0], 0, [tokens[0]])
        had = [await asked.event() for _ in range(2)]
        first.runtime.begin_stop()
        late = first.ask("POST", "/v1/chat/completions", body, authorization=auth)
        assert (await late.json())["error"]["message"] == "Not ready: this server is stopping."
        error = bodies(await asked.events())[-1]["error"]
        assert (error["code"], error["resumable"]) == ("server_stopping", True)
        assert [kind for kind, _, _ in first.gate.calls] == ["submit"]
        mark = str(had[-1]).split("\n")[0].removeprefix("id: ")
        again = second.ask("POST", "/v1/chat/completions", authorization=auth, last_event_id=mark)
        await again.started()
        for i, token in enumerate(tokens[1:], start=1):
            last = i == len(tokens) - 1
            producer.write(first.engine_ids[0], i, [token], finish="length" if last else None)
        rest = await again.events()
        assert text_of([str(e) for e in had] + rest) == TEXT


async def test_tool_calls_are_parsed_and_plain_text_is_left_alone(
    web: Make, auth: str, store: Any
) -> None:
    said = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    async with web() as w:
        for stream in (True, False):
            body = {"messages": MESSAGES, "tools": tools, "stream": stream}
            asked = w.ask("POST", "/v1/chat/completions", body, authorization=auth)
            wanted = 1 if stream else 2
            await until(lambda wanted=wanted: len(w.gate.requests) == wanted)
            speak(store, w.engine_ids[-1], tokens_of(w, said))
            if stream:
                calls = [
                    c["delta"]["tool_calls"][0]["function"]
                    for b in bodies(await asked.events())
                    for c in b["choices"]
                    if c["delta"].get("tool_calls")
                ]
                assert calls[0]["name"] == "add"
                assert json.loads("".join(c.get("arguments") or "" for c in calls)) == {"a": 1}
            else:
                message = (await asked.json())["choices"][0]["message"]
                assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"a": 1}
        plain = w.ask("POST", "/v1/chat/completions", {"messages": MESSAGES}, authorization=auth)
        await until(lambda: len(w.gate.requests) == 3)
        speak(store, w.engine_ids[-1], tokens_of(w, said))
        assert (await plain.json())["choices"][0]["message"]["content"] == said


async def test_a_stop_string_stops_the_engine(web: Make, auth: str, store: Any) -> None:
    async with web() as w:
        body = {"messages": MESSAGES, "stop": ["世界"], "stream": True}
        asked = w.ask("POST", "/v1/chat/completions", body, authorization=auth)
        await until(lambda: bool(w.gate.requests))
        speak(store, w.engine_ids[0], tokens_of(w, TEXT))
        events = await asked.events()
        assert text_of(events) == TEXT.partition("世界")[0]
        assert bodies(events)[-1]["choices"][0]["finish_reason"] == "stop"


def refused(body: Any, status: int, param: str | None, code: str | None = None) -> Any:
    return body, status, param, code


@pytest.mark.parametrize(
    ("body", "status", "param", "code"),
    [
        pytest.param(
            *refused({"messages": MESSAGES, "what": 1}, 400, "what", "unknown_parameter"),
            id="unknown",
        ),
        pytest.param(*refused({}, 400, "messages"), id="no messages"),
        pytest.param(*refused(b"{", 400, None), id="no JSON"),
        pytest.param(*refused(b"[]", 400, None), id="no object"),
        pytest.param(
            *refused({"messages": MESSAGES, "temperature": -1}, 400, "temperature"), id="range"
        ),
        pytest.param(
            *refused({"messages": MESSAGES, "temperature": "x"}, 400, "temperature"), id="type"
        ),
        pytest.param(
            *refused({"messages": MESSAGES, "kv_transfer_params": {}}, 400, "kv_transfer_params"),
            id="not served",
        ),
        pytest.param(
            *refused({"messages": MESSAGES, "model": "x"}, 404, "model", "model_not_found"),
            id="model",
        ),
        pytest.param(
            *refused(
                {"messages": [{"role": "user", "content": "a " * 5000}]},
                400,
                "messages",
                "context_length_exceeded",
            ),
            id="too long",
        ),
        pytest.param(
            *refused({"messages": MESSAGES, "max_tokens": 10**6}, 400, "max_tokens"), id="too much"
        ),
        pytest.param(
            *refused(
                {
                    "messages": [
                        {
                            "role": "user",
                            "content": [
                                {
                                    "type": "image_url",
                                    "image_url": {"url": "data:image/png;base64,AA=="},
                                }
                            ],
                        }
                    ]
                },
                400,
                "messages",
            ),
            id="picture",
        ),
    ],
)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_bad_request_is_refused_by_name(
    web: Make, auth: str, body: Any, status: int, param: str | None, code: str | None, stream: bool
) -> None:
    async with web() as w:
        sent = {**body, "stream": stream} if isinstance(body, dict) else body
        asked = w.ask("POST", "/v1/chat/completions", sent, authorization=auth)
        error = (await asked.json())["error"]
        assert asked.status == status, error
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error"
        assert error["param"] == param, error
        if code is not None:
            assert error["code"] == code
        assert w.gate.calls == []


async def test_without_a_right_key_nothing_is_served(web: Make, auth: str) -> None:
    async with web() as w:
        for path in ("/v1/models", "/v1/chat/completions", "/v1/completions", "/tokenize"):
            method = "GET" if path == "/v1/models" else "POST"
            for header in ({}, {"authorization": "Bearer sk-000000000000-x"}):
                asked = w.ask(method, path, {}, **header)
                assert (await asked.json())["error"]["code"] == "invalid_api_key"
                assert asked.status == 401


async def test_without_an_instance_the_answer_is_503_and_when_to_come_back(
    web: Make, auth: str
) -> None:
    async with web() as w:
        w.client.view.apply(status_of("i-01", InstanceState.STARTING))
        for stream in (True, False):
            body = {"messages": MESSAGES, "stream": stream}
            asked = w.ask("POST", "/v1/chat/completions", body, authorization=auth)
            assert (await asked.json())["error"]["code"] == "server_is_overloaded"
            assert asked.status == 503
            assert int(asked.headers["retry-after"]) * 1000 == int(asked.headers["retry-after-ms"])
        ready = w.ask("GET", "/readyz")
        assert "no instance is serving" in (await ready.json())["reason"]
        assert ready.status == 503
        alive = w.ask("GET", "/livez")
        await alive.events()
        assert alive.status == 200


async def test_paths_and_methods_that_are_not_there(web: Make, auth: str) -> None:
    async with web() as w:
        for method, path, status in (
            ("GET", "/v1/nothing", 404),
            ("GET", "/v1/chat/completions", 405),
            ("POST", "/v1/models", 405),
        ):
            asked = w.ask(method, path, authorization=auth)
            assert set((await asked.json())["error"]) == {"message", "type", "param", "code"}
            assert asked.status == status


async def test_a_body_that_is_too_large_is_refused(
    web: Make, auth: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.gateway.exchange.BODY_MAX_BYTES", 1000)
    async with web() as w:
        asked = w.ask("POST", "/v1/completions", b"x" * 1001, authorization=auth)
        await asked.events()
        assert asked.status == 413


async def test_the_models_and_their_tokens(web: Make, auth: str) -> None:
    async with web() as w:
        listed = await w.ask("GET", "/v1/models", authorization=auth).json()
        assert [m["id"] for m in listed["data"]] == ["the-model"]
        one = await w.ask("GET", "/v1/models/the-model", authorization=auth).json()
        assert one == listed["data"][0]
        missing = w.ask("GET", "/v1/models/other", authorization=auth)
        assert (await missing.json())["error"]["code"] == "model_not_found"
        made = await w.ask("POST", "/tokenize", {"prompt": TEXT}, authorization=auth).json()
        assert made["tokens"] == tokens_of(w, TEXT)
        back = await w.ask(
            "POST", "/detokenize", {"tokens": made["tokens"]}, authorization=auth
        ).json()
        assert back["prompt"] == TEXT


async def test_several_prompts_have_their_own_choices(web: Make, auth: str, store: Any) -> None:
    async with web() as w:
        body = {"prompt": ["a", "b"], "max_tokens": 5}
        asked = w.ask("POST", "/v1/completions", body, authorization=auth)
        await until(lambda: len(w.gate.requests) == 2)
        for i, engine_id in enumerate(sorted(w.engine_ids)):
            speak(store, engine_id, tokens_of(w, f"answer {i}"))
        answer = await asked.json()
        assert [c["text"] for c in answer["choices"]] == ["answer 0", "answer 1"]


async def test_what_goes_to_an_engine_is_what_vllm_would_send(
    web: Make, make_key_of: Callable[[str], str], store: Any
) -> None:
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.serial_utils import MsgpackDecoder

    async with web() as w:
        body = {
            "messages": MESSAGES,
            "max_completion_tokens": 7,
            "temperature": 0.5,
            "service_tier": "flex",
        }
        asked = w.ask("POST", "/v1/chat/completions", body, authorization=make_key_of("bob"))
        await until(lambda: bool(w.gate.requests))
        request: EngineRequest = w.gate.requests[0]
        core = MsgpackDecoder(EngineCoreRequest).decode(request.payload)
        assert core.request_id == request.request_id
        assert len(core.prompt_token_ids) == request.prompt_tokens
        assert core.sampling_params.temperature == 0.5
        assert core.sampling_params.max_tokens == request.max_tokens == 7
        assert request.priority_class is PriorityClass.LOW
        assert request.tenant == "bob"
        await asked.leave()
