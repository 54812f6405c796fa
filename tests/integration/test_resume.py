"""A stream that is cut goes on where it stopped, on any web process."""

import json

from tests.integration.installation import Installation
from tests.integration.streams import (
    CHAT,
    DETACH,
    WORDS,
    chat_body,
    open_socket,
    open_stream,
    take,
    text_of,
)


def test_a_stream_goes_on_at_another_web_process_without_gap_or_repeat(
    idle: Installation, second_url: str
) -> None:
    body = chat_body(60)
    with open_stream(idle.url, idle.headers | DETACH, body) as events:
        first = take(events, 9)
    after = {"Last-Event-ID": first[-1].event_id}
    with open_stream(second_url, idle.headers | after, body) as events:
        rest = list(events)
    request_id = first[0].event_id.partition(":")[0]
    with open_stream(second_url, idle.headers, None, f"{CHAT}/{request_id}/events") as events:
        whole = list(events)
    assert first + rest == whole
    assert whole[-1].data == "[DONE]"
    assert len(text_of(whole)) > len(text_of(first)) > 0


def test_a_finished_stream_can_still_be_read(idle: Installation, second_url: str) -> None:
    body = chat_body(10)
    with open_stream(idle.url, idle.headers, body) as events:
        whole = list(events)
    after = {"Last-Event-ID": whole[3].event_id}
    with open_stream(second_url, idle.headers | after, body) as events:
        assert list(events) == whole[4:]


def test_a_socket_s_answer_goes_on_at_another_web_process(
    idle: Installation, second_url: str
) -> None:
    create = {"type": "response.create", "messages": WORDS, "max_output_tokens": 40}
    first: list[dict[str, object]] = []
    with open_socket(idle.url, idle.headers) as socket:
        socket.send(json.dumps(create | {"model": "SmolLM2-135M-Instruct"}))
        while not first or first[-1]["type"] not in ("response.completed", "response.failed"):
            first.append(json.loads(socket.recv(60)))
    assert first[-1]["type"] == "response.completed"
    cut = first[10]
    resume = {
        "type": "response.resume",
        "response_id": first[0]["response"]["id"],  # type: ignore[index]
        "starting_after": cut["sequence_number"],
    }
    rest: list[dict[str, object]] = []
    with open_socket(second_url, idle.headers) as socket:
        socket.send(json.dumps(resume))
        while not rest or rest[-1]["type"] != "response.completed":
            rest.append(json.loads(socket.recv(60)))
    assert rest == first[11:]
