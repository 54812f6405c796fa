"""A request whose engine was lost goes on at another one from its tokens alone, and answers as if
it had stayed; or it is refused, and says why."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.engine_pool.test_vllm_moves_sampling import (
    EOS,
    PROMPT_TOKENS,
    SAMPLINGS,
    SCHEMA,
    assert_close,
    structured,
    text_of,
)
from tests.engine_pool.vllm_pair import (
    STEPS_MAX,
    Pair,
    forget_prefixes,
    make_engine,
    prompt_of,
    run_unmoved,
    wish,
)

pytestmark = pytest.mark.slow


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


def lose(pair: Pair, request_id: str) -> None:
    """Its engine dies: nothing is left of it there."""
    at = pair.at[request_id]
    pair.engines[at].abort([request_id])
    while pair.engines[at].has_work():
        pair.engines[at].step()
    forget_prefixes(pair)


def send_again(pair: Pair, request_id: str) -> None:
    """Sends a lost request to the other engine, with what its reader has."""
    tokens = tuple(pair.answers[request_id].tokens)
    at = 1 - pair.at[request_id]
    pair.at[request_id] = at
    pair.engines[at].add(replace(pair.wishes[request_id], output_token_ids=tokens))


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("moment", [1, 9])
def test_a_lost_request_goes_on_with_the_same_tokens(pair, sampling, moment):
    prompt = prompt_of(PROMPT_TOKENS)
    [stayed] = run_unmoved(pair, wish(prompt, **sampling))
    lost = pair.add(wish(prompt, **sampling))
    pair.until(lost, moment)
    lose(pair, lost)
    send_again(pair, lost)
    pair.finish()
    assert pair.answers[lost].tokens == stayed.tokens
    assert pair.answers[lost].finish_reason == stayed.finish_reason
    assert_close(pair.answers[lost], stayed)
    assert len(stayed.tokens) == len(stayed.logprobs) > 12


def test_it_may_be_lost_more_than_once_also_in_mid_prompt(pair):
    sampling = {"temperature": 1.0, "seed": 31, "frequency_penalty": 0.8, "max_tokens": 40}
    prompt = prompt_of(PROMPT_TOKENS)
    [stayed] = run_unmoved(pair, wish(prompt, **sampling))
    lost = pair.add(wish(prompt, **sampling))
    for moment in (4, 4, 15, 16):
        pair.until(lost, moment)
        lose(pair, lost)
        send_again(pair, lost)
    pair.finish()
    assert pair.answers[lost].tokens == stayed.tokens


def test_a_crowd_of_lost_requests_is_served_beside_those_that_were_there(pair):
    """More than run at once, so some wait in the queue: the batch's makeup changes nothing."""
    wishes = [{"seed": 40 + n, "temperature": 1.0, "max_tokens": 20} for n in range(6)]
    prompts = [prompt_of(60 + 30 * n, seed=n) for n in range(6)]
    stayed = [run_unmoved(pair, wish(p, **w))[0] for p, w in zip(prompts, wishes, strict=True)]
    there = pair.add(wish(prompts[5], **wishes[5]), at=1)
    lost = [pair.add(wish(p, **w)) for p, w in zip(prompts[:5], wishes, strict=False)]
    pair.until(lost[0], 5)
    for request_id in lost:
        pair.engines[0].abort([request_id])
    while pair.engines[0].has_work():
        pair.engines[0].step()
    for request_id in lost:
        send_again(pair, request_id)
    waiting = {r.request_id for r in pair.engines[1].load().waiting}
    assert waiting == set(lost)
    pair.finish()
    for request_id, unmoved in zip([*lost, there], stayed, strict=True):
        assert pair.answers[request_id].tokens == unmoved.tokens


def test_it_can_move_alive_after_it_came_back(pair):
    sampling = {"temperature": 0.9, "seed": 17, "presence_penalty": 0.7, "max_tokens": 30}
    prompt = prompt_of(PROMPT_TOKENS)
    [stayed] = run_unmoved(pair, wish(prompt, **sampling))
    lost = pair.add(wish(prompt, **sampling))
    pair.until(lost, 6)
    lose(pair, lost)
    send_again(pair, lost)
    pair.until(lost, 12)
    pair.move(lost, steps=2)
    pair.finish()
    assert pair.answers[lost].tokens == stayed.tokens


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param({"regex": "[1-9]{30}-(red|blue)"}, id="regex"),
        pytest.param({"json": json.dumps(SCHEMA)}, id="json-schema"),
    ],
)
def test_structured_output_keeps_to_its_rule(pair, rule):
    sampling = {
        "temperature": 1.0,
        "seed": 12,
        "max_tokens": 120,
        "ignore_eos": False,
        "stop_token_ids": [EOS],
    }
    prompt = prompt_of(130)
    [stayed] = run_unmoved(pair, wish(prompt, **sampling, structured_outputs=structured(rule)))
    lost = pair.add(wish(prompt, **sampling, structured_outputs=structured(rule)))
    for moment in (4, 14):
        pair.until(lost, moment)
        lose(pair, lost)
        send_again(pair, lost)
    pair.finish()
    assert pair.answers[lost].tokens == stayed.tokens
    assert len(text_of(stayed)) > 20


def test_what_waits_for_its_grammar_is_reported_and_can_be_aborted(pair, monkeypatch):
    rule = structured({"regex": "[1-9]{30}"})
    monkeypatch.setattr(
        "vllm.v1.structured_output.request.StructuredOutputRequest.is_grammar_ready", False
    )
    waiting = replace(
        wish(prompt_of(40), structured_outputs=rule, max_tokens=40), output_token_ids=(5, 6)
    )
    engine = pair.engines[0]
    engine.add(waiting)
    assert [r.request_id for r in engine.load().waiting] == [waiting.request_id]
    assert engine.has_work()
    assert engine.step() == []
    engine.abort([waiting.request_id])
    assert engine.load().waiting == ()


REFUSED = [
    pytest.param({"max_tokens": 3}, (5, 6, 7), "all its tokens", id="nothing-left"),
    pytest.param({"max_tokens": 100_000}, (5,), "tokens long", id="too-long"),
    pytest.param({"structured_outputs": "[1-9]{9}"}, (3, 3), "grammar", id="breaks-its-grammar"),
]


@pytest.mark.parametrize(("sampling", "outputs", "why"), REFUSED)
def test_what_cannot_go_on_is_refused_with_the_reason(pair, sampling, outputs, why):
    if "structured_outputs" in sampling:
        sampling = {"structured_outputs": structured({"regex": sampling["structured_outputs"]})}
    request = replace(wish(prompt_of(40), **sampling), output_token_ids=outputs)
    engine = pair.engines[0]
    engine.add(request)
    assert first_refusal(pair, 0).count(why) == 1
    assert engine.load().waiting == ()


def test_a_lost_generator_that_is_not_made_again_here_is_refused(pair, monkeypatch):
    engine = pair.engines[0]
    monkeypatch.setattr(engine._returns, "_makes_generators", False)
    seeded = {"temperature": 1.0, "seed": 1}
    engine.add(replace(wish(prompt_of(40), **seeded), output_token_ids=(5, 6)))
    assert "random generator" in first_refusal(pair, 0)


def first_refusal(pair: Pair, at: int) -> str:
    for _ in range(STEPS_MAX):
        outputs = pair.engines[at].step()
        if outputs:
            [output] = outputs
            assert output.finish_reason is None
            assert output.token_ids == ()
            return output.refusal
    raise AssertionError("nothing was refused")
