"""A web process is replaced while it serves: no stream breaks, and all of them go on elsewhere."""

import json
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.integration.installation import DEADLINE_S, Installation, wait_for
from tests.integration.operator import Operator
from tests.integration.streams import (
    CHAT,
    WORDS,
    Event,
    chat_body,
    open_socket,
    open_stream,
)

STREAMS = 10
SHORT = 2
"""Of these, so many end within the grace."""
GRACE_S = 6.0
"""Long enough that a new request is served meanwhile, and shorter than the long streams."""
LONG_TOKENS = 1200
"""With `ignore_eos`: a minute of decoding."""


class Reader:
    """A client of one stream, which reads until the stream ends."""

    def __init__(self, url: str, installation: Installation, tokens: int) -> None:
        self.events: list[Event] = []
        self.has_begun = threading.Event()
        self._url, self._headers, self._tokens = url, installation.headers, tokens

    def read(self) -> None:
        body = chat_body(self._tokens, ignore_eos=True)
        with open_stream(self._url, self._headers, body) as events:
            for event in events:
                self.events.append(event)
                if len(self.events) == 5:
                    self.has_begun.set()

    @property
    def request_id(self) -> str:
        return self.events[0].event_id.partition(":")[0]


@pytest.fixture
def leaver(installation: Installation) -> tuple[str, "subprocess.Popen[bytes]"]:
    """A web process that a test replaces; `second_url` is the one that stays."""
    return installation.start_web("web-leaver", FERRY_WEB_GRACE_S=str(GRACE_S))


def test_a_deploy_breaks_no_stream(
    idle: Installation, second_url: str, leaver: "tuple[str, subprocess.Popen[bytes]]"
) -> None:
    url, process = leaver
    lengths = [12] * SHORT + [LONG_TOKENS] * (STREAMS - SHORT)
    readers = [Reader(url, idle, tokens) for tokens in lengths]
    with (
        ThreadPoolExecutor(STREAMS) as threads,
        Operator(idle) as operator,
        connect(
            url.replace("http", "ws", 1) + "/ws/live",
            additional_headers={"Cookie": f"sessionid={operator.session_id}"},
            origin=url,  # type: ignore[arg-type]
        ) as page,
        open_socket(url, idle.headers) as socket,
    ):
        socket.send(json.dumps(_create()))
        said = [json.loads(socket.recv(DEADLINE_S)) for _ in range(5)]
        reading = [threads.submit(reader.read) for reader in readers]
        for reader in readers:
            assert reader.has_begun.wait(DEADLINE_S)

        process.send_signal(signal.SIGTERM)
        wait_for(lambda: _readiness(url) == (503, "draining"), "readiness says no")
        late = httpx.post(
            f"{url}{CHAT}", json=chat_body(2, stream=False), headers=idle.headers, timeout=60
        )
        assert late.status_code == 200, "who has not noticed is served"
        assert late.headers["connection"] == "close"

        for task in reading:
            task.result(DEADLINE_S)
        said += _rest_of(socket)
        assert _close_code(page) == 1001
        assert _close_code(socket) == 1001
    assert process.wait(DEADLINE_S) in (0, -signal.SIGTERM)

    assert [reader.events[-1].data for reader in readers[:SHORT]] == ["[DONE]"] * SHORT
    for reader in readers[SHORT:]:
        error = reader.events.pop().chunk["error"]
        assert (error["code"], error["resumable"]) == ("server_stopping", True)
    with ThreadPoolExecutor(STREAMS) as threads:
        rests = list(threads.map(lambda r: _resumed(second_url, idle, r), readers[SHORT:]))
    for reader, rest in zip(readers[SHORT:], rests, strict=True):
        path = f"{CHAT}/{reader.request_id}/events"
        with open_stream(second_url, idle.headers, None, path) as events:
            whole = list(events)
        assert reader.events + rest == whole, "neither gap, repeat nor change"
        assert whole[-1].data == "[DONE]"
    assert _socket_rest(second_url, idle, said) == LONG_TOKENS
    idle.wait_idle()


def _create() -> dict[str, Any]:
    return {
        "type": "response.create",
        "model": "SmolLM2-135M-Instruct",
        "messages": WORDS,
        "max_output_tokens": LONG_TOKENS,
        "ignore_eos": True,
    }


def _readiness(url: str) -> tuple[int, str]:
    answer = httpx.get(f"{url}/readyz", timeout=DEADLINE_S)
    return answer.status_code, answer.json().get("reason", "")


def _rest_of(socket: Any) -> list[dict[str, Any]]:
    events = []
    try:
        while True:
            events.append(json.loads(socket.recv(DEADLINE_S)))
    except ConnectionClosed:
        return events


def _close_code(socket: Any) -> int | None:
    _rest_of(socket)
    code: int | None = socket.close_code
    return code


def _resumed(url: str, installation: Installation, reader: Reader) -> list[Event]:
    after = {"Last-Event-ID": reader.events[-1].event_id}
    body = chat_body(LONG_TOKENS, ignore_eos=True)
    with open_stream(url, installation.headers | after, body) as events:
        return list(events)


def _socket_rest(url: str, installation: Installation, said: list[dict[str, Any]]) -> int:
    """Resumes a socket's answer; returns how many tokens it has in all, after checking that its
    events are numbered without gap or repeat."""
    assert all(event["type"] != "response.failed" for event in said)
    resume = {
        "type": "response.resume",
        "response_id": said[0]["response"]["id"],
        "starting_after": said[-1]["sequence_number"],
    }
    with open_socket(url, installation.headers) as socket:
        socket.send(json.dumps(resume))
        while said[-1]["type"] != "response.completed":
            said.append(json.loads(socket.recv(DEADLINE_S)))
    numbers = [event["sequence_number"] for event in said]
    assert numbers == sorted(set(numbers))
    tokens: int = said[-1]["response"]["usage"]["output_tokens"]
    return tokens
