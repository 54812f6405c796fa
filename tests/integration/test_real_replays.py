"""Real vLLM engines that die or hang in mid answer: every answer is the very one that would have
been, word for word."""

import json
import signal
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from engine_pool.types import InstanceState, InstanceStatus
from tests.integration.installation import START_DEADLINE_S, Installation, wait_for
from tests.integration.operator import Operator
from tests.integration.streams import (
    CHAT,
    TIMEOUT_S,
    Event,
    chat_body,
    events_of,
    text_of,
)
from tests.tiny_model import tiny_model

STREAMS = 8
TOKENS = 400
"""Some seconds of decoding beside others."""
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.9, "seed": 5, "frequency_penalty": 0.4},
]
LOST_WAIT_S = 3.0 * TIMEOUT_S


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Two real engines with a tiny model, in float32: what else is in a batch, and whether a token
    was computed with the prompt or after it, changes no answer then."""
    started = Installation(
        tmp_path_factory.mktemp("replays"),
        FERRY_ENGINE="vllm",
        FERRY_INSTANCES="2",
        FERRY_MODEL=str(tiny_model()),
        FERRY_KV_CACHE_GIB="0.05",
        FERRY_DTYPE="float32",
    )
    try:
        started.wait_ready()
        yield started
    finally:
        started.stop()


def body(number: int) -> dict[str, Any]:
    words = [{"role": "user", "content": f"def lost_{number}(request): " * 10}]
    sampling = SAMPLINGS[number % len(SAMPLINGS)]
    return chat_body(TOKENS, model=tiny_model().name, messages=words, ignore_eos=True, **sampling)


class Readers:
    """Streams that are read at the same time, each by a thread."""

    def __init__(self, installation: Installation, count: int) -> None:
        self.events: list[list[Event]] = [[] for _ in range(count)]
        self.comments: list[list[str]] = [[] for _ in range(count)]
        self._installation = installation
        self._threads = [threading.Thread(target=self._read, args=(n,)) for n in range(count)]
        for thread in self._threads:
            thread.start()

    def _read(self, number: int) -> None:
        headers = self._installation.headers | {"x-ferry-events": "1"}
        with (
            httpx.Client(base_url=self._installation.url, timeout=LOST_WAIT_S) as client,
            client.stream("POST", CHAT, json=body(number), headers=headers) as answer,
        ):
            assert answer.status_code == 200
            lines = answer.iter_lines()
            for event in events_of(_Listening(lines, self.comments[number])):  # type: ignore[arg-type]
                self.events[number].append(event)

    def wait_begun(self, tokens: int) -> None:
        wait_for(lambda: all(len(e) >= tokens for e in self.events), "all streams speak")

    def join(self) -> None:
        for thread in self._threads:
            thread.join(LOST_WAIT_S)
            assert not thread.is_alive(), "a stream hangs"

    def texts(self) -> list[str]:
        for events in self.events:
            assert events[-1].data == "[DONE]", events[-1].data
        return [text_of(events) for events in self.events]


class _Listening:
    """An answer's lines, and what of them was a comment."""

    def __init__(self, lines: Iterator[str], comments: list[str]) -> None:
        self._lines = lines
        self._comments = comments

    def iter_lines(self) -> Iterator[str]:
        for line in self._lines:
            if line.startswith(": request."):
                self._comments.append(line)
            yield line


def busiest(pair: Installation) -> InstanceStatus:
    load = max(pair.loads(), key=lambda load: len(load.running))
    assert load.running
    return next(s for s in pair.statuses() if s.instance == load.instance)


@pytest.fixture(scope="module")
def stayed(pair: Installation) -> list[str]:
    """The answers of engines that live."""
    wait_serving(pair)
    readers = Readers(pair, STREAMS)
    readers.join()
    assert not any(readers.comments)
    return readers.texts()


def wait_serving(pair: Installation) -> None:
    wait_for(
        lambda: [s.state for s in pair.statuses()] == [InstanceState.SERVING] * 2,
        "both engines serve",
        START_DEADLINE_S,
    )


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(signal.SIGKILL, id="killed"),
        pytest.param(signal.SIGSTOP, id="hung"),
    ],
)
def test_answers_of_a_lost_engine_are_the_ones_that_would_have_been(
    pair: Installation, stayed: list[str], how: signal.Signals
) -> None:
    wait_serving(pair)
    readers = Readers(pair, STREAMS)
    readers.wait_begun(10)
    victim = busiest(pair)
    assert victim.pid is not None
    process = psutil.Process(victim.pid)
    process.send_signal(how)
    try:
        readers.join()
    finally:
        if how is signal.SIGSTOP and process.is_running():
            process.send_signal(signal.SIGCONT)
    assert readers.texts() == stayed
    told = [comment for comments in readers.comments for comment in comments]
    facts = [json.loads(c.removeprefix(": request.replayed ")) for c in told]
    assert facts, "some of them were there"
    assert {fact["from"] for fact in facts} == {victim.instance}
    assert all(fact["replays"] == 1 and fact["gap_ms"] is not None for fact in facts)
    with Operator(pair) as operator:
        ids = [events[0].chunk["id"] for events in readers.events]
        records = [operator.ended_request(request_id) for request_id in ids]
    assert sum(record["replays"] for record in records) == len(facts)
    assert {record["state"] for record in records} == {"completed"}
    assert {record["output_tokens"] for record in records} == {TOKENS}
    metrics = httpx.get(f"{pair.url}/metrics", timeout=60).text
    counted = [
        line for line in metrics.splitlines() if line.startswith("ferry:replayed_requests_total{")
    ]
    assert sum(float(line.rpartition(" ")[2]) for line in counted) >= len(facts)
