"""A real vLLM engine behind the API: what only real tokens can show."""

import json

import pytest

from tests.integration.installation import Installation

MODEL = "SmolLM2-135M-Instruct"
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]


def test_the_model_knows_the_capital_of_france(real: Installation) -> None:
    answer = real.client().chat.completions.create(
        model=MODEL, messages=FRANCE, max_tokens=24, temperature=0
    )
    assert "Paris" in str(answer.choices[0].message.content)
    assert answer.choices[0].finish_reason == "stop"


def test_a_stream_and_a_whole_answer_say_the_same(real: Installation) -> None:
    request = {"model": MODEL, "messages": FRANCE, "max_tokens": 24, "temperature": 0}
    whole = real.client().chat.completions.create(**request)
    chunks = real.client().chat.completions.create(**request, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content


def test_logprobs_are_those_of_the_tokens(real: Installation) -> None:
    answer = real.client().chat.completions.create(
        model=MODEL, messages=FRANCE, max_tokens=5, temperature=0, logprobs=True, top_logprobs=3
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 5
    for token in logprobs.content:
        assert len(token.top_logprobs) == 3
        assert token.logprob == max(top.logprob for top in token.top_logprobs)


def test_two_choices_with_a_seed_can_be_had_again(real: Installation) -> None:
    def ask() -> list[str | None]:
        answer = real.client().chat.completions.create(
            model=MODEL, messages=FRANCE, max_tokens=12, n=2, seed=7, temperature=1.2
        )
        return [choice.message.content for choice in answer.choices]

    first = ask()
    assert len(first) == 2
    assert first[0] != first[1]
    assert ask() == first


def test_a_stop_string_ends_the_answer_before_it(real: Installation) -> None:
    answer = real.client().chat.completions.create(
        model=MODEL, messages=FRANCE, max_tokens=24, temperature=0, stop=["Paris"]
    )
    assert answer.choices[0].finish_reason == "stop"
    assert "Paris" not in str(answer.choices[0].message.content)
    assert "capital" in str(answer.choices[0].message.content)


def test_an_answer_follows_a_json_schema(real: Installation) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "large": {"type": "boolean"}},
        "required": ["city", "large"],
        "additionalProperties": False,
    }
    answer = real.client().chat.completions.create(
        model=MODEL,
        messages=FRANCE,
        max_tokens=60,
        temperature=0,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "place", "schema": schema, "strict": True},
        },
    )
    said = json.loads(str(answer.choices[0].message.content))
    assert said["city"] in ("Paris", "Rome")
    assert isinstance(said["large"], bool)


def test_a_named_tool_is_called(real: Installation) -> None:
    """Without a tool parser for the model, vLLM does not hold the arguments to their schema."""
    answer = real.client().chat.completions.create(
        model=MODEL,
        messages=FRANCE,
        max_tokens=60,
        temperature=0,
        tools=[{"type": "function", "function": {"name": "show", "parameters": {}}}],
        tool_choice={"type": "function", "function": {"name": "show"}},
    )
    calls = answer.choices[0].message.tool_calls
    assert calls
    assert calls[0].function.name == "show"
    assert calls[0].function.arguments


@pytest.mark.parametrize("fields", [{"logit_bias": {"9": 5}}, {"presence_penalty": 1.5}])
def test_sampling_fields_are_taken(real: Installation, fields: dict[str, object]) -> None:
    answer = real.client().chat.completions.create(  # type: ignore[call-overload]
        model=MODEL, messages=FRANCE, max_tokens=4, **fields
    )
    assert answer.usage.completion_tokens == 4
