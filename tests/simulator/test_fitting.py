"""The fits find the coefficients that measurements were made with, also among bad measurements."""

import random
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_pool.simulator.costs import CopyCosts, StepCosts
from engine_pool.simulator.fitting import (
    CopyPoint,
    DecodePoint,
    FitError,
    PrefillPoint,
    fit,
    fit_copies,
    fit_steps,
)

PROMPTS = ((16,), (64,), (256,), (512,), (1024,), (2048,), (64,) * 4, (256,) * 4, (16,) * 16)
GRID = tuple((b, b * c) for b in (1, 2, 4, 8, 16, 32) for c in (32, 256, 1024))


def prefills(costs: StepCosts) -> list[PrefillPoint]:
    return [PrefillPoint(p, costs.prefill_ms(p)) for p in PROMPTS]


def decodes(costs: StepCosts) -> list[DecodePoint]:
    return [DecodePoint(b, tokens, costs.decode_ms(b, tokens)) for b, tokens in GRID]


def near(costs: StepCosts, share: float):
    return pytest.approx(asdict(costs), rel=share, abs=1e-9)


cost = st.floats(1e-3, 100.0)


@settings(deadline=None, max_examples=40)
@given(cost, cost, st.floats(1e-6, 1e-3), cost, cost, st.floats(1e-5, 1.0))
def test_exact_measurements_give_their_costs_back(a, b, c, d, e, f):
    costs = StepCosts(a, b, c, d, e, f)
    found, facts = fit_steps(prefills(costs), decodes(costs))
    assert asdict(found) == near(costs, 1e-3)
    assert facts["prefill"].max_error < 1e-4
    assert facts["decode"].max_error < 1e-4
    assert facts["decode"].points == len(GRID)


def test_small_noise_moves_predictions_little():
    costs, dice = StepCosts(), random.Random(1)
    noisy = [
        DecodePoint(p.sequences, p.kv_tokens, p.ms * dice.uniform(0.97, 1.03))
        for p in decodes(costs)
        for _ in range(4)
    ]
    found, facts = fit_steps(prefills(costs), noisy)
    for sequences, tokens in GRID:
        assert found.decode_ms(sequences, tokens) == pytest.approx(
            costs.decode_ms(sequences, tokens), rel=0.03
        )
    assert 0 < facts["decode"].median_error < 0.03


@pytest.mark.parametrize("seed", range(10))
def test_steps_that_others_held_up_do_not_spoil_the_fit(seed):
    costs, dice = StepCosts(), random.Random(seed)
    points = decodes(costs)
    for index in dice.sample(range(len(points)), 3):
        p = points[index]
        points[index] = DecodePoint(p.sequences, p.kv_tokens, p.ms * dice.uniform(2, 10))
    found, facts = fit_steps(prefills(costs), points)
    assert asdict(found) == near(costs, 0.05)
    assert facts["decode"].max_error > 0.4, "the report does not hide them"
    assert facts["decode"].median_error < 0.01


def test_a_cost_that_is_not_there_is_zero_and_none_is_negative():
    # A step that takes the less the more there is to read: no cost model can say that.
    points = [DecodePoint(b, tokens, 40 - tokens * 1e-4) for b, tokens in GRID]
    found, _ = fit_steps(prefills(StepCosts()), points)
    assert found.decode_ms_per_kv_token == 0
    assert found.decode_base_ms == pytest.approx(40, rel=0.05)
    assert min(asdict(found).values()) >= 0


def test_a_prompt_that_is_cut_pays_the_base_for_each_of_its_steps():
    costs = StepCosts()
    cut = [
        PrefillPoint((n,), costs.prefill_ms([n]) + (steps - 1) * costs.prefill_base_ms, steps)
        for n, steps in ((64, 1), (512, 1), (1024, 2), (2048, 4), (4096, 8))
    ]
    found, _ = fit_steps(cut, decodes(costs))
    assert found.prefill_base_ms == pytest.approx(costs.prefill_base_ms, rel=1e-3)


def test_copies_have_a_base_and_a_rate():
    costs = CopyCosts(1.5, 1, 0.02, block_size_tokens=128, kv_token_bytes=23_040)
    points = [CopyPoint(n, costs.copy_ms(n)) for n in (1, 2, 4, 8, 16)]
    found, facts = fit_copies(points, 128, 23_040)
    assert asdict(found) == pytest.approx(asdict(costs))
    assert facts.max_error < 1e-6


@pytest.mark.parametrize(
    ("points", "says"),
    [
        pytest.param([], "decode: 0 measurements are too few", id="none"),
        pytest.param([DecodePoint(1, 8, 1.0)] * 9, "decode: 9 measurements are too few", id="same"),
        pytest.param(
            [DecodePoint(b, 10 * b, 1.0) for b in (1, 2, 4, 8)],
            "decode: the sizes that were measured do not tell costs apart",
            id="tokens only grow with the batch",
        ),
        pytest.param(
            [DecodePoint(b, t, 0.0) for b, t in GRID],
            "decode: a time of 0.0 ms cannot have been measured",
            id="no time",
        ),
        pytest.param(
            [DecodePoint(b, t, float("nan")) for b, t in GRID],
            "decode: a time of nan ms cannot have been measured",
            id="not a number",
        ),
    ],
)
def test_measurements_that_tell_nothing_are_refused(points, says):
    with pytest.raises(FitError, match=says):
        fit_steps(prefills(StepCosts()), points)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 64), st.integers(1, 4096)), min_size=6, max_size=20))
def test_any_measurements_give_costs_that_are_not_negative_or_an_error(sizes):
    dice = random.Random(len(sizes))
    rows = [(1.0, float(b), float(b * c)) for b, c in sizes]
    try:
        found = fit("any", rows, [dice.uniform(0.1, 100) for _ in rows])
    except FitError:
        return
    assert min(found.coefficients) >= 0
    assert found.facts.max_error >= found.facts.median_error >= 0
