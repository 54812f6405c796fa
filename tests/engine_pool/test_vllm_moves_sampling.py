"""A request that moves while it runs answers as if it had stayed: the same tokens, the same
logprobs, whatever its sampling depends on."""

import json
from collections.abc import Iterator

import pytest

from tests.engine_pool.vllm_pair import Answer, Pair, make_engine, prompt_of, run_unmoved, wish
from tests.tiny_model import VOCABULARY, tiny_model

pytestmark = pytest.mark.slow

EOS = 2
PROMPT_TOKENS = 250
"""Six tokens before the border of a block of 128 tokens."""
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"type": "integer"}, "minItems": 6}},
    "required": ["a"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[object, object]]:
    both = make_engine("i-01"), make_engine("i-02")
    yield both
    for engine in both:
        engine.close()


@pytest.fixture
def pair(engines) -> Iterator[Pair]:
    one = Pair(*engines)
    yield one
    for engine in engines:
        assert not engine.has_work()
        assert engine.load().used_tokens == 0


SAMPLINGS = [
    pytest.param({}, id="greedy"),
    pytest.param({"temperature": 0.8, "seed": 7}, id="seeded"),
    pytest.param({"temperature": 1.3, "seed": 8, "top_p": 0.9, "top_k": 40}, id="top-p-top-k"),
    pytest.param({"temperature": 1.0, "seed": 9, "min_p": 0.02}, id="min-p"),
    pytest.param(
        {"frequency_penalty": 0.9, "presence_penalty": 0.6, "repetition_penalty": 1.3},
        id="penalties",
    ),
    pytest.param(
        {"temperature": 1.0, "seed": 3, "frequency_penalty": 1.0, "repetition_penalty": 1.2},
        id="penalties-seeded",
    ),
    pytest.param(
        {"temperature": 1.0, "seed": 5, "logit_bias": {5: 8.0, 9: 8.0, 17: -100.0}},
        id="logit-bias",
    ),
    pytest.param(
        {
            "temperature": 1.0,
            "seed": 4,
            "min_tokens": 16,
            "stop_token_ids": list(range(VOCABULARY // 3, VOCABULARY)),
        },
        id="min-tokens-stop-tokens",
    ),
    pytest.param({"allowed_token_ids": list(range(40, 60)), "logprobs": 5}, id="allowed-tokens"),
    pytest.param({"temperature": 1.0, "seed": 2, "ignore_eos": True}, id="ignore-eos"),
    pytest.param({"temperature": 1.0, "seed": 6, "prompt_logprobs": 1}, id="prompt-logprobs"),
]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_there_and_back_again_changes_nothing(pair, sampling):
    prompt = prompt_of(PROMPT_TOKENS)
    [stayed] = run_unmoved(pair, wish(prompt, **sampling))
    moved = pair.add(wish(prompt, **sampling))
    for moment in (3, 10):
        pair.until(moved, moment)
        pair.move(moved, steps=2)
    pair.finish()
    assert pair.answers[moved] == stayed
    assert len(stayed.tokens) == len(stayed.logprobs) > 12


@pytest.mark.parametrize("moment", [1, 5, 6, 7, 8, 22, 23])
def test_the_moment_of_the_move_does_not_matter(pair, moment):
    sampling = {"temperature": 0.9, "seed": 11, "presence_penalty": 0.7}
    prompt = prompt_of(PROMPT_TOKENS)
    [stayed] = run_unmoved(pair, wish(prompt, **sampling))
    moved = pair.add(wish(prompt, **sampling))
    pair.until(moved, moment)
    how = pair.move(moved)
    pair.finish()
    assert pair.answers[moved] == stayed
    computed_tokens = PROMPT_TOKENS + moment - 1
    assert how.parked.computed_tokens == how.seen.computed_tokens == computed_tokens
    assert len(how.seen.complete_blocks) == computed_tokens // 128
    assert how.sent_blocks == -(-computed_tokens // 128)


def test_many_moves_of_many_requests_change_nothing(pair):
    """Batches differ at every step; so do the logprobs then, in their last digits."""
    wishes = [
        {"seed": 20 + n, "temperature": 1.0, "frequency_penalty": 0.5, "max_tokens": 40}
        for n in range(4)
    ]
    prompts = [prompt_of(100 + 60 * n, seed=n) for n in range(4)]
    stayed = run_unmoved(pair, *(wish(p, **w) for p, w in zip(prompts, wishes, strict=True)))
    moved = [pair.add(wish(p, **w), at=0) for p, w in zip(prompts, wishes, strict=True)]
    for round_number in range(12):
        pair.step()
        pair.move(moved[round_number % 4], steps=round_number % 3)
    pair.finish()
    for request_id, unmoved in zip(moved, stayed, strict=True):
        assert pair.answers[request_id].tokens == unmoved.tokens
        assert_close(pair.answers[request_id], unmoved)


def test_children_of_one_request_move_each_for_itself(pair):
    """n = 2: the front end makes two requests of it, with seeds of their own."""
    prompt = prompt_of(140)
    children = [{"temperature": 1.0, "seed": 100 + n} for n in range(2)]
    stayed = run_unmoved(pair, *(wish(prompt, **child) for child in children))
    first, second = (pair.add(wish(prompt, **child)) for child in children)
    pair.until(first, 4)
    assert pair.move(first).cached_blocks == 0
    pair.until(second, 9)
    # Their prompt went along with the first one.
    assert pair.move(second).cached_blocks == 1
    pair.finish()
    assert [pair.answers[first].tokens, pair.answers[second].tokens] == [a.tokens for a in stayed]
    assert stayed[0].tokens != stayed[1].tokens


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param({"regex": "[1-9]{30}-(red|blue)"}, id="regex"),
        pytest.param({"json": json.dumps(SCHEMA)}, id="json-schema"),
    ],
)
def test_structured_output_keeps_to_its_rule_across_moves(pair, rule):
    sampling = {
        "temperature": 1.0,
        "seed": 12,
        "max_tokens": 120,
        "ignore_eos": False,
        "stop_token_ids": [EOS],
    }
    prompt = prompt_of(130)
    [stayed] = run_unmoved(pair, wish(prompt, **sampling, structured_outputs=structured(rule)))
    moved = pair.add(wish(prompt, **sampling, structured_outputs=structured(rule)))
    for moment in (4, 14):
        pair.until(moved, moment)
        pair.move(moved, steps=1)
    pair.finish()
    assert pair.answers[moved] == stayed
    said = text_of(stayed)
    assert len(said) > 20
    if "json" in rule and stayed.finish_reason == "stop":
        assert set(json.loads(said)) == {"a"}


def structured(rule: dict[str, str]) -> object:
    from vllm.sampling_params import StructuredOutputsParams

    params = StructuredOutputsParams(**rule)
    params._backend = "xgrammar"
    return params


def text_of(answer: Answer) -> str:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(tiny_model() / "tokenizer.json")).decode(answer.tokens)


def assert_close(answer: Answer, other: Answer) -> None:
    for (ids, values), (other_ids, other_values) in zip(
        answer.logprobs, other.logprobs, strict=True
    ):
        assert ids[0] == other_ids[0]
        assert values[0] == pytest.approx(other_values[0], abs=0.05)
