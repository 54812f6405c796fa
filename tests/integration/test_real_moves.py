"""Two real vLLM engines behind the API: a moved answer is the very one that would have stayed."""

from collections.abc import Iterator
from typing import Any

import pytest

from engine_pool.types import InstanceState
from tests.integration.installation import START_DEADLINE_S, Installation, wait_for
from tests.integration.operator import Operator
from tests.integration.streams import Event, chat_body, open_stream, take, text_of
from tests.tiny_model import tiny_model

TOKENS = 1200
"""Some seconds of decoding: both moves end before the answer does."""
KINDS = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 0.9, "seed": 11, "logprobs": True, "top_logprobs": 2},
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Two real engines with a tiny model."""
    started = Installation(
        tmp_path_factory.mktemp("pair"),
        FERRY_ENGINE="vllm",
        FERRY_INSTANCES="2",
        FERRY_MODEL=str(tiny_model()),
        FERRY_KV_CACHE_GIB="0.05",
    )
    try:
        started.wait_ready()
        wait_for(
            lambda: [s.state for s in started.statuses()] == [InstanceState.SERVING] * 2,
            "both engines serve",
            START_DEADLINE_S,
        )
        yield started
    finally:
        started.stop()


def body(kind: str) -> dict[str, Any]:
    words = [{"role": "user", "content": "def move(request): " * 20}]
    return chat_body(
        TOKENS, model=tiny_model().name, messages=words, ignore_eos=True, **KINDS[kind]
    )


def logprobs_of(events: list[Event]) -> list[object]:
    chunks = [event.chunk for event in events if event.data != "[DONE]"]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    found = [choice["logprobs"] for choice in choices if choice.get("logprobs")]
    return [token for logprobs in found for token in logprobs["content"]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_moved_answer_is_the_one_that_stayed(pair: Installation, kind: str) -> None:
    with open_stream(pair.url, pair.headers, body(kind)) as stream:
        stayed = list(stream)
    with (
        Operator(pair) as operator,
        open_stream(pair.url, pair.headers, body(kind)) as stream,
    ):
        moved = take(stream, 8)
        request_id = moved[0].chunk["id"]
        there = operator.wait_end(operator.migrate(request_id)["migration_id"])
        back = operator.wait_end(operator.migrate(request_id, there["source"])["migration_id"])
        moved += list(stream)
    assert moved[-1].data == "[DONE]"
    assert text_of(moved) == text_of(stayed)
    assert logprobs_of(moved) == logprobs_of(stayed)
    assert len(logprobs_of(moved)) == (TOKENS if kind == "seeded" else 0)
    assert [there["state"], back["state"]] == ["committed"] * 2, (there, back)
    assert there["sent_bytes"] > 0
    assert (back["source"], back["destination"]) == (there["destination"], there["source"])
