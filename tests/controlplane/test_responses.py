"""The WebSocket's protocol: pure."""

import json
from typing import Any

import pytest

from controlplane.gateway.call import Migration
from controlplane.gateway.errors import ApiError
from controlplane.gateway.responses import ResponseEvents, to_chat_body
from controlplane.gateway.sse import DONE


def chunk(**choice: Any) -> str:
    return "data: " + json.dumps({"choices": [{"index": 0, "finish_reason": None, **choice}]})


USAGE = "data: " + json.dumps(
    {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}
)
CHUNKS = [
    chunk(delta={"role": "assistant", "content": ""}),
    chunk(delta={"content": "Hé"}),
    chunk(delta={"content": ""}),
    chunk(delta={"content": "llo"}, finish_reason="stop"),
    USAGE,
    DONE,
]


def events_after(after: int | None) -> list[dict[str, Any]]:
    made = ResponseEvents("r", 5, "m", after)
    texts = [made.created(), *(made.event(c) for c in CHUNKS)]
    return [json.loads(t) for t in texts if t is not None]


def test_an_answer_is_created_comes_in_deltas_and_completes() -> None:
    events = events_after(None)
    assert [e["type"] for e in events] == [
        "response.created",
        "response.in_progress",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.completed",
    ]
    numbers = [e["sequence_number"] for e in events]
    assert numbers == sorted(set(numbers))
    response = events[-1]["response"]
    assert response["status"] == "completed"
    assert response["output"][0]["content"][0]["text"] == "Héllo"
    assert response["usage"] == {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}


@pytest.mark.parametrize("after", range(-1, 6))
def test_a_resumed_answer_gives_exactly_what_is_missing(after: int) -> None:
    whole = events_after(None)
    assert events_after(after) == [e for e in whole if e["sequence_number"] > after]


MOVE = Migration(0, "i-01", "i-02", 1, 8.25)


def moving_events_after(after: int | None) -> list[dict[str, Any]]:
    """As `events_after`, with a move before the fourth chunk."""
    made = ResponseEvents("r", 5, "m", after)
    texts = [made.created(), *(made.event(c) for c in CHUNKS[:3]), made.migrated(MOVE)]
    texts += [made.event(c) for c in CHUNKS[3:]]
    return [json.loads(t) for t in texts if t is not None]


def test_a_move_is_an_event_between_the_tokens_of_two_instances() -> None:
    events = moving_events_after(None)
    assert [e["type"] for e in events][2:5] == [
        "response.output_text.delta",
        "request.migrated",
        "response.output_text.delta",
    ]
    assert events[3] == {
        "type": "request.migrated",
        "sequence_number": 4,
        "request_id": "r",
        "from": "i-01",
        "to": "i-02",
        "at_token": 1,
        "gap_ms": 8.25,
    }
    numbers = [e["sequence_number"] for e in events]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("after", range(-1, 7))
def test_a_resumed_answer_tells_of_a_move_exactly_once(after: int) -> None:
    whole = moving_events_after(None)
    assert moving_events_after(after) == [e for e in whole if e["sequence_number"] > after]


def test_a_failure_is_the_last_event() -> None:
    made = ResponseEvents("r", 5, "m")
    text = made.event('data: {"error": {"code": "instance_lost", "message": "m"}}')
    assert text is not None
    event = json.loads(text)
    assert event["type"] == "response.failed"
    assert event["response"]["error"]["code"] == "instance_lost"
    assert made.has_failed
    assert made.event(DONE) is None


@pytest.mark.parametrize("after", [0, 5])
def test_a_resumed_answer_that_fails_says_so_whatever_its_client_has(after: int) -> None:
    made = ResponseEvents("r", 1, "m", after)
    text = made.failed({"code": "instance_lost"})
    assert text is not None
    event = json.loads(text)
    assert (event["type"], event["sequence_number"]) == ("response.failed", after + 1)


def test_input_and_instructions_become_messages() -> None:
    body = to_chat_body(
        {"type": "response.create", "input": "hi", "instructions": "be", "max_output_tokens": 4}
    )
    assert body["messages"] == [
        {"role": "system", "content": "be"},
        {"role": "user", "content": "hi"},
    ]
    assert body["max_completion_tokens"] == 4
    assert body["stream"] is True
    assert "type" not in body


@pytest.mark.parametrize(
    ("message", "param"),
    [
        pytest.param({}, "input", id="nothing to answer"),
        pytest.param({"input": "a", "messages": []}, "input", id="both"),
        pytest.param({"input": "a", "n": 2}, "n", id="several choices"),
        pytest.param({"input": "a", "tools": []}, "tools", id="tools"),
    ],
)
def test_what_only_http_serves_is_refused_by_name(message: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        to_chat_body(message)
    assert caught.value.param == param
