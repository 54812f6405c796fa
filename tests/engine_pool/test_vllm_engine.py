"""A real vLLM EngineCore on a tiny random model, stepped by hand. One start for all tests here."""

import re
from collections.abc import Iterator

import pytest

from engine_pool.config import PoolConfig
from engine_pool.engine_spec import EngineSpec
from engine_pool.errors import EngineRefused
from engine_pool.types import InstanceName, PriorityClass
from tests.engine_pool.make import request
from tests.tiny_model import MAX_MODEL_LEN, VOCABULARY, tiny_model

pytestmark = pytest.mark.slow

KV_CACHE_GIB = 0.05
MAX_RUNNING = 8
BLOCK_SIZE_TOKENS = 32
"""Not vLLM's own for this platform."""
EOS = 2


@pytest.fixture(scope="module")
def engine() -> Iterator["object"]:
    from engine_pool.vllm_adapter import VllmEngine

    config = PoolConfig(
        kv_cache_gib=KV_CACHE_GIB, max_running=MAX_RUNNING, block_size=BLOCK_SIZE_TOKENS
    )
    spec = EngineSpec(InstanceName("i-01"), "a", config, str(tiny_model()), 1, 0)
    one = VllmEngine(spec)
    yield one
    one.close()


def wish(name: str, *, prompt: list[int] | None = None, priority=PriorityClass.NORMAL, **sampling):
    from vllm import SamplingParams
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.serial_utils import MsgpackEncoder

    prompt = prompt or list(range(100, 140))
    params = SamplingParams(**{"max_tokens": 6, "ignore_eos": True, "temperature": 0.0} | sampling)
    core = EngineCoreRequest(
        request_id=name,
        prompt_token_ids=prompt,
        mm_features=None,
        sampling_params=params,
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )
    payload = bytes(MsgpackEncoder(size_threshold=1 << 60).encode(core)[0])
    return request(
        name,
        prompt_tokens=len(prompt),
        max_tokens=params.max_tokens,
        priority=priority,
        payload=payload,
    )


def run(engine, *wishes) -> dict[str, list]:
    for one in wishes:
        engine.add(one)
    outputs: dict[str, list] = {}
    for _ in range(20_000):  # a grammar is compiled meanwhile: many empty steps
        if not engine.has_work():
            return outputs
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
    raise AssertionError("the engine does not come to an end")


def tokens(outputs: list) -> list[int]:
    return [t for o in outputs for t in o.token_ids]


def test_greedy_answers_repeat_and_use_the_prefix_cache(engine):
    prompt = list(range(200, 200 + 300))
    first = run(engine, wish("a", prompt=prompt))["a"]
    again = run(engine, wish("b", prompt=prompt))["b"]
    assert len(tokens(first)) == 6
    assert tokens(first) == tokens(again)
    assert first[-1].finish_reason == "length"
    assert first[0].cached_tokens == 0
    assert again[0].cached_tokens > 0


def test_a_burst_is_prefilled_in_one_step(engine):
    for n in range(MAX_RUNNING):
        engine.add(wish(f"r{n}", prompt=list(range(10 + n, 40 + n)), max_tokens=2))
    assert len(engine.load().waiting) == MAX_RUNNING
    assert len(engine.step()) == MAX_RUNNING
    assert len(run(engine)) == MAX_RUNNING


def test_logprobs_travel_in_the_detail(engine):
    from engine_pool.vllm_detail import decode_detail

    outputs = run(engine, wish("a", logprobs=3, prompt_logprobs=1))["a"]
    logprobs, prompt_logprobs = decode_detail(outputs[0].detail)
    # The sampled token comes first, then the three most likely ones.
    assert logprobs.logprob_token_ids.shape == (1, 4)
    assert logprobs.logprob_token_ids[0, 0] == outputs[0].token_ids[0]
    assert logprobs.logprobs[0, 0] == max(logprobs.logprobs[0]) < 0
    assert tuple(prompt_logprobs.logprob_token_ids.shape) == (39, 2)
    _, later = decode_detail(outputs[1].detail)
    assert later is None
    assert run(engine, wish("b"))["b"][0].detail is None


def test_seeds_decide_what_is_sampled(engine):
    answers = [
        tokens(run(engine, wish(f"s{n}", temperature=1.0, seed=seed, max_tokens=20))[f"s{n}"])
        for n, seed in enumerate((1, 1, 2))
    ]
    assert answers[0] == answers[1] != answers[2]


def test_structured_output_keeps_to_its_rule(engine):
    from tokenizers import Tokenizer
    from vllm.sampling_params import StructuredOutputsParams

    rule = StructuredOutputsParams(regex="[1-9]{3}-(red|blue)")
    rule._backend = "xgrammar"
    outputs = run(
        engine,
        wish("a", structured_outputs=rule, max_tokens=60, ignore_eos=False, stop_token_ids=[EOS]),
    )["a"]
    said = Tokenizer.from_file(str(tiny_model() / "tokenizer.json")).decode(tokens(outputs))
    assert outputs[-1].finish_reason == "stop"
    assert re.fullmatch("[1-9]{3}-(red|blue)", said)


def test_blocks_are_as_large_as_was_asked_for(engine):
    assert engine.load().block_size_tokens == BLOCK_SIZE_TOKENS


def test_an_abort_frees_the_blocks(engine):
    before = engine.load()
    assert before.used_tokens == 0
    engine.add(wish("a", max_tokens=500))
    engine.step()
    during = engine.load()
    assert [r.request_id for r in during.running] == ["a"]
    assert during.used_tokens == during.running[0].kv_tokens >= 41
    assert during.running[0].output_tokens == 1
    engine.abort(["a", "unknown"])
    assert engine.load().used_tokens == 0
    assert run(engine) == {}


def test_an_urgent_request_goes_before_those_that_wait(engine):
    for n in range(MAX_RUNNING):
        engine.add(wish(f"r{n}", max_tokens=20))
    engine.step()
    engine.add(wish("low", priority=PriorityClass.LOW))
    engine.add(wish("high", priority=PriorityClass.HIGH))
    queue = engine.load().waiting
    assert [r.request_id for r in queue] == ["high", "low"]
    assert queue[0].demand_tokens >= 41
    assert len(run(engine)) == MAX_RUNNING + 2


def test_too_many_tokens_mean_preemptions_that_are_counted(engine):
    capacity = engine.load().capacity_tokens
    each = min(MAX_MODEL_LEN - 500, capacity // 4)
    before = engine.load().preemptions_total
    prompts = [[(7 * n + i) % VOCABULARY for i in range(each)] for n in range(5)]
    outputs = run(engine, *(wish(f"p{n}", prompt=p, max_tokens=300) for n, p in enumerate(prompts)))
    assert all(len(tokens(o)) == 300 for o in outputs.values())
    assert len(outputs) == 5
    assert (engine.load().preemptions_total > before) == (5 * (each + 300) > capacity)
    assert engine.load().used_tokens == 0


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        pytest.param(request("a", payload=b"nonsense"), "not a request of this vLLM", id="garbage"),
        pytest.param(request("a", payload=b""), "not a request of this vLLM", id="empty"),
    ],
)
def test_a_payload_that_is_no_request_is_refused(engine, bad, words):
    with pytest.raises(EngineRefused, match=words):
        engine.add(bad)
    assert not engine.has_work()


def test_a_prompt_that_is_too_long_is_refused(engine):
    assert engine.max_model_len == MAX_MODEL_LEN
    with pytest.raises(EngineRefused, match=f"{MAX_MODEL_LEN} prompt tokens"):
        engine.add(wish("a", prompt=[5] * MAX_MODEL_LEN))


def test_a_payload_of_another_request_is_refused(engine):
    from dataclasses import replace

    with pytest.raises(EngineRefused, match="is request a's"):
        engine.add(replace(wish("a"), request_id="b"))


@pytest.mark.parametrize("moment", ["alone", "beside another"])
def test_a_seeded_prompt_in_chunks_answers_as_one_in_a_piece(engine, moment: str) -> None:
    sampling = {"temperature": 1.1, "seed": 5, "max_tokens": 8, "logprobs": 1}
    prompt = [3 + n * 7 % 900 for n in range(200)]
    whole = run(engine, wish("whole", prompt=prompt, **sampling))["whole"]
    scheduler = engine._scheduler
    scheduler.reset_prefix_cache()
    budget, scheduler.max_num_scheduled_tokens = scheduler.max_num_scheduled_tokens, 48
    try:
        others = [] if moment == "alone" else [wish("other", temperature=0.9, seed=9)]
        cut = run(engine, *others, wish("cut", prompt=prompt, **sampling))["cut"]
    finally:
        scheduler.max_num_scheduled_tokens = budget
    assert tokens(cut) == tokens(whole)
