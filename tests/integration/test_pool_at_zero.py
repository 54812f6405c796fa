"""A pool at zero on a running installation: a request wakes it, waits for its first instance, and
is answered; scaling, worker, pool process and web process are the real ones."""

from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from tests.integration.installation import START_DEADLINE_S, Installation, wait_for
from tests.integration.operator import Operator

POOL, MODEL = "sleepy", "sleepy-model"
SAYS: list[Any] = [{"role": "user", "content": "Tell me about ferries."}]


@pytest.fixture
def operator(installation: Installation) -> Iterator[Operator]:
    installation.wait_ready()
    with Operator(installation) as made:
        yield made


@pytest.fixture
def sleepy(installation: Installation, operator: Operator) -> Iterator[str]:
    """A pool that is on, and has no instance."""
    made = operator.post(
        "/pools",
        {
            "name": POOL, "served_model_name": MODEL, "instances": 0, "min_instances": 0,
            "max_instances": 1, "scaling_mode": "act", "hold_s": 600,
        },
    )  # fmt: skip
    assert made.status_code == 201, made.text
    yield MODEL
    operator.remove_pool(POOL)


def test_a_request_wakes_a_pool_at_zero_and_is_answered(
    installation: Installation, operator: Operator, sleepy: str
) -> None:
    client: OpenAI = installation.client(timeout=START_DEADLINE_S, max_retries=0)
    wait_for(
        lambda: sleepy in [model.id for model in client.models.list()],
        "the web process serves the model",
        START_DEADLINE_S,
    )
    told = operator.get(f"/pools/{POOL}/scaling")
    assert (told["now"]["wanted"], told["now"]["serving"]) == (0, 0)
    answer = client.chat.completions.create(model=sleepy, messages=SAYS, max_tokens=8)
    assert answer.choices[0].message.content
    (first,) = operator.get("/scaling/decisions", pool=POOL, kind="grow")["data"]
    assert (first["signal"], first["is_applied"]) == ("demand", True)
    assert (first["instances_before"], first["instances_after"]) == (0, 1)
    record = operator.ended_request(answer.id)
    # It waited here for most of its time, which is told as its time in the queue.
    assert record["queue_ms"] > 0.5 * record["ttft_ms"]
