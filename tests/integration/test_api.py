"""The API through the official client: what a developer has on the first day."""

import asyncio

import httpx
import pytest
from openai import (
    AsyncOpenAI,
    AuthenticationError,
    BadRequestError,
    NotFoundError,
    OpenAI,
)

from tests.integration.installation import Installation
from tests.integration.streams import WORDS

pytestmark = pytest.mark.both_databases

MODEL = "SmolLM2-135M-Instruct"


def test_the_model_is_listed_and_found(idle: Installation) -> None:
    client = idle.client()
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_a_chat_is_answered_with_its_usage(idle: Installation) -> None:
    answer = idle.client().chat.completions.create(model=MODEL, messages=WORDS, max_tokens=12)
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12


def test_a_stream_has_one_id_a_finish_reason_and_the_usage_last(idle: Installation) -> None:
    chunks = list(
        idle.client().chat.completions.create(
            model=MODEL,
            messages=WORDS,
            max_tokens=12,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert not chunks[-1].choices
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 12


async def test_many_answers_at_once_all_arrive(idle: Installation) -> None:
    client = AsyncOpenAI(base_url=f"{idle.url}/v1", api_key=idle.login["api_key"], timeout=60)

    async def ask(number: int) -> int:
        stream = await client.chat.completions.create(
            model=MODEL, messages=WORDS, max_tokens=8 + number, stream=True
        )
        return len([chunk async for chunk in stream if chunk.choices[0].delta.content])

    counts = await asyncio.gather(*(ask(number) for number in range(12)))
    assert all(count > 0 for count in counts)


def test_text_completions_are_served_too(idle: Installation) -> None:
    answer = idle.client().completions.create(model=MODEL, prompt="Once upon", max_tokens=6)
    assert answer.choices[0].text
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        pytest.param({"temperature": -3}, BadRequestError, "temperature", id="out of range"),
        pytest.param({"model": "no-such-model"}, NotFoundError, "model", id="unknown model"),
        pytest.param(
            {"extra_body": {"nonsense": 1}}, BadRequestError, "nonsense", id="unknown parameter"
        ),
        pytest.param(
            {"messages": [{"role": "user", "content": "x " * 100_000}]},
            BadRequestError,
            None,
            id="too long for the model",
        ),
    ],
)
def test_errors_are_typed_and_name_the_parameter(
    idle: Installation, fields: dict[str, object], error: type[Exception], param: str | None
) -> None:
    request = {"model": MODEL, "messages": WORDS, "max_tokens": 4} | fields
    with pytest.raises(error) as caught:
        idle.client().chat.completions.create(**request)  # type: ignore[call-overload]
    body = caught.value.body  # type: ignore[attr-defined]
    assert body["message"]
    if param:
        assert param in (body.get("param") or body["message"])


def test_a_wrong_key_is_refused(idle: Installation) -> None:
    with pytest.raises(AuthenticationError) as caught:
        OpenAI(base_url=f"{idle.url}/v1", api_key="sk-wrong", max_retries=0).models.list()
    assert caught.value.code == "invalid_api_key"


def test_the_client_s_request_id_comes_back(idle: Installation) -> None:
    answer = httpx.get(
        f"{idle.url}/v1/models", headers=idle.headers | {"X-Request-Id": "mine-1"}, timeout=30
    )
    assert answer.headers["x-request-id"] == "mine-1"
