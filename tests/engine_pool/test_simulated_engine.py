from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_pool.engine_spec import SampleText
from engine_pool.errors import EngineRefused
from engine_pool.ports import EngineRequest
from engine_pool.simulator.costs import StepCosts
from engine_pool.simulator.live_engine import SimulatedEngine, SimulatedLimits
from engine_pool.types import PriorityClass
from tests.engine_pool.make import request

EOS = 2
TEXT = SampleText(
    sentences=tuple(tuple(range(100 * n, 100 * n + 7)) for n in range(1, 6)),
    openings=tuple(tuple(range(100 * n + 50, 100 * n + 57)) for n in range(1, 6)),
    eos_token_id=EOS,
)


class Sleeps:
    """Notes how long the engine would have slept."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def engine(
    *, blocks: int = 40, max_running: int = 4, max_model_len: int = 512, sleep=None
) -> SimulatedEngine:
    limits = SimulatedLimits(
        capacity_blocks=blocks, max_running=max_running, max_model_len=max_model_len
    )
    return SimulatedEngine(TEXT, limits, sleep=sleep or Sleeps())


def run_to_end(eng: SimulatedEngine, most_steps: int = 5000) -> dict[str, list]:
    outputs: dict[str, list] = {}
    for _ in range(most_steps):
        if not eng.has_work():
            return outputs
        for output in eng.step():
            outputs.setdefault(output.request_id, []).append(output)
        eng.check_integrity()
    raise AssertionError("the engine does not come to an end")


def run_to_end_of(one: EngineRequest) -> dict[str, list]:
    eng = engine()
    eng.add(one)
    return run_to_end(eng)


def tokens(outputs: list) -> list[int]:
    return [t for output in outputs for t in output.token_ids]


def test_a_request_goes_on_after_the_tokens_that_another_engine_has_said():
    one = request(max_tokens=30)
    said = tokens(run_to_end_of(one)["r1"])
    again = replace(one, output_token_ids=tuple(said[:12]))
    assert tokens(run_to_end_of(again)["r1"]) == said[12:]


def test_a_request_is_refused_after_tokens_that_this_engine_would_not_have_said():
    eng = engine()
    eng.add(replace(request(max_tokens=30), output_token_ids=(1, 2, 3)))
    ((refused,),) = run_to_end(eng).values()
    assert refused.refusal
    assert refused.finish_reason is None
    assert eng.load().waiting == ()


def test_an_answer_is_cut_at_max_tokens():
    eng = engine()
    eng.add(request(max_tokens=5))
    outputs = run_to_end(eng)["r1"]
    assert len(tokens(outputs)) == 5
    assert [o.finish_reason for o in outputs] == [None] * 4 + ["length"]


def test_an_answer_goes_on_for_min_tokens():
    eng = engine(blocks=80, max_model_len=1200)
    eng.add(request(max_tokens=1000, min_tokens=1000))
    outputs = run_to_end(eng)["r1"]
    assert len(tokens(outputs)) == 1000
    assert outputs[-1].finish_reason == "length"


def test_an_answer_ends_by_itself_at_a_sentence():
    eng = engine()
    eng.add(request(max_tokens=500))
    outputs = run_to_end(eng)["r1"]
    said = tokens(outputs)
    assert outputs[-1].finish_reason == "stop"
    assert said[-1] == EOS
    assert tuple(said[:7]) in TEXT.openings
    assert tuple(said[-8:-1]) in TEXT.sentences + TEXT.openings


def test_the_same_request_gets_the_same_answer_and_another_one_another():
    answers = []
    for name in ("same", "same", "other"):
        eng = engine()
        eng.add(request(name, max_tokens=500))
        answers.append(tokens(run_to_end(eng)[name]))
    assert answers[0] == answers[1] != answers[2]


def test_a_preempted_request_goes_on_where_it_was():
    alone = engine(blocks=100)
    alone.add(request("late", prompt_tokens=100, max_tokens=120))
    expected = tokens(run_to_end(alone)["late"])
    crowded = engine(blocks=16)
    crowded.add(request("early", prompt_tokens=100, max_tokens=110, arrival_unix_s=1))
    crowded.add(request("late", prompt_tokens=100, max_tokens=120, arrival_unix_s=2))
    outputs = run_to_end(crowded)
    assert crowded.load().preemptions_total > 0
    assert tokens(outputs["late"]) == expected


def test_the_last_come_of_the_lowest_class_is_preempted():
    eng = engine(blocks=16)
    names = {"low": PriorityClass.LOW, "high": PriorityClass.HIGH}
    for name, priority in names.items():
        eng.add(request(name, prompt_tokens=100, max_tokens=120, priority=priority))
    while not eng.load().preemptions_total:
        eng.step()
    assert [r.request_id for r in eng.load().running] == ["high"]
    assert eng.load().waiting[0].preemptions == 1


def test_an_urgent_request_passes_the_queue():
    eng = engine(max_running=1)
    eng.add(request("first", max_tokens=3))
    eng.step()
    eng.add(request("normal"))
    eng.add(request("high", priority=PriorityClass.HIGH))
    assert [r.request_id for r in eng.load().waiting] == ["high", "normal"]


def test_a_burst_is_prefilled_as_one_batch():
    sleeps = Sleeps()
    eng = engine(sleep=sleeps)
    for n in range(4):
        eng.add(request(f"r{n}", prompt_tokens=50))
    assert len(eng.step()) == 4
    assert sleeps.seconds[0] > 0


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "words"),
    [
        pytest.param(512, 1, "512 prompt tokens", id="longer than the model takes"),
        pytest.param(400, 400, "needs up to 512 KV tokens", id="larger than the memory"),
    ],
)
def test_what_can_never_run_is_refused(prompt_tokens, max_tokens, words):
    eng = engine(blocks=30)
    with pytest.raises(EngineRefused, match=words):
        eng.add(request(prompt_tokens=prompt_tokens, max_tokens=max_tokens))
    assert not eng.has_work()


def test_steps_take_as_long_as_the_papers():
    a10 = StepCosts()
    assert a10.prefill_ms([1024]) == pytest.approx(218.6, abs=0.5)
    assert a10.decode_ms(1, 0) == pytest.approx(35.8, abs=0.1)
    assert a10.decode_ms(32, 8000) == pytest.approx(51.6, abs=0.1)
    assert StepCosts(time_scale=0.5).decode_ms(1, 0) == a10.decode_ms(1, 0) / 2
    assert a10.prefill_ms([]) == a10.decode_ms(0, 0) == 0.0


actions = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"),
            st.integers(1, 300),
            st.integers(1, 150),
            st.sampled_from(list(PriorityClass)),
        ),
        st.tuples(st.just("abort"), st.integers(0, 20)),
        st.tuples(st.just("step"), st.integers(1, 30)),
    ),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(actions, st.integers(8, 60), st.integers(1, 6))
def test_blocks_are_conserved_and_every_request_ends_once(todo, blocks, max_running):
    eng = engine(blocks=blocks, max_running=max_running)
    ends: dict[str, int] = {}
    added: list[str] = []
    aborted: set[str] = set()

    def step() -> None:
        for output in eng.step():
            if output.finish_reason:
                ends[output.request_id] = ends.get(output.request_id, 0) + 1
        eng.check_integrity()

    for kind, *what in todo:
        if kind == "add":
            name = f"r{len(added)}"
            wish = request(name, prompt_tokens=what[0], max_tokens=what[1], priority=what[2])
            try:
                eng.add(wish)
            except EngineRefused:
                continue
            added.append(name)
        elif kind == "abort" and what[0] < len(added):
            if added[what[0]] not in ends:
                aborted.add(added[what[0]])
            eng.abort([added[what[0]]])
            eng.check_integrity()
        elif kind == "step":
            for _ in range(what[0]):
                step()
    for _ in range(20_000):
        if not eng.has_work():
            break
        step()
    assert ends == dict.fromkeys(set(added) - aborted, 1)
    assert eng.load().used_tokens == 0
