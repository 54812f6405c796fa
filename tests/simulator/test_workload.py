"""Workloads have the lengths and gaps that the paper gives, and depend on their seed only."""

from dataclasses import replace
from statistics import fmean, pstdev

import pytest

from engine_pool.simulator.trace import TraceRow
from engine_pool.simulator.workload import (
    CAP_TOKENS,
    MIXES,
    DrawnWorkload,
    draw,
    draw_arrivals,
    draw_lengths,
    replay,
    stream,
)
from engine_pool.types import PriorityClass

MANY = 40_000
DRAWN = DrawnWorkload(
    requests=500,
    rate_per_s=5.0,
    cv=1.0,
    input_mix=MIXES["M"],
    output_mix=MIXES["M"],
    input_cap_tokens=CAP_TOKENS,
    output_cap_tokens=CAP_TOKENS,
    high_share=0.1,
)


@pytest.mark.parametrize(
    ("mix", "mean", "p50", "p80", "p95", "p99"),
    [
        pytest.param("S", 127, 35, 103, 412, 1682, id="short"),
        pytest.param("M", 254, 30, 163, 1285, 4576, id="medium"),
        pytest.param("L", 512, 54, 596, 3127, 5262, id="long"),
    ],
)
def test_lengths_are_those_of_the_paper(
    mix: str, mean: float, p50: float, p80: float, p95: float, p99: float
) -> None:
    drawn = sorted(draw_lengths(MIXES[mix], MANY, CAP_TOKENS, stream(1, "lengths")))
    assert fmean(drawn) == pytest.approx(mean, rel=0.04)
    found = [drawn[int(MANY * share)] for share in (0.5, 0.8, 0.95, 0.99)]
    assert found == pytest.approx([p50, p80, p95, p99], rel=0.15)
    assert 1 <= drawn[0] <= drawn[-1] <= CAP_TOKENS


@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0, 4.0])
def test_gaps_have_the_rate_and_the_variation_that_were_asked_for(cv: float) -> None:
    arrivals = draw_arrivals(8.0, cv, MANY, stream(1, "arrivals"))
    gaps = [b - a for a, b in zip([0.0, *arrivals], arrivals, strict=False)]
    assert fmean(gaps) == pytest.approx(1 / 8, rel=0.06)
    assert pstdev(gaps) / fmean(gaps) == pytest.approx(cv, rel=0.06, abs=1e-9)
    assert all(gap >= 0 for gap in gaps)


def test_the_same_seed_draws_the_same_requests() -> None:
    assert draw(DRAWN, 7) == draw(DRAWN, 7)
    assert draw(DRAWN, 7) != draw(DRAWN, 8)


def test_another_rate_leaves_lengths_and_classes_as_they_were() -> None:
    slow, fast = draw(DRAWN, 7), draw(replace(DRAWN, rate_per_s=50.0, cv=4.0), 7)
    for one, other in zip(slow, fast, strict=True):
        assert one.prompt_tokens == other.prompt_tokens
        assert one.output_tokens == other.output_tokens
        assert one.priority_class == other.priority_class


def test_a_tenth_is_of_the_high_class() -> None:
    drawn = draw(replace(DRAWN, requests=5000), 3)
    share = fmean(a.priority_class is PriorityClass.HIGH for a in drawn)
    assert share == pytest.approx(0.1, abs=0.02)


ROWS = [TraceRow(100.0, 50, 7), TraceRow(104.0, 9000, 20), TraceRow(102.0, 10, 8000)]


def test_a_trace_is_played_in_order_of_time_and_cut_to_the_caps() -> None:
    played = replay(
        ROWS, rate_per_s=None, input_cap_tokens=4000, output_cap_tokens=3000, high_share=0, seed=1
    )
    assert [a.arrival_s for a in played] == [0.0, 2.0, 4.0]
    assert [(a.prompt_tokens, a.output_tokens) for a in played] == [(50, 7), (10, 3000), (4000, 20)]


def test_a_trace_is_stretched_to_a_rate() -> None:
    played = replay(
        ROWS, rate_per_s=0.1, input_cap_tokens=100, output_cap_tokens=100, high_share=0, seed=1
    )
    assert [a.arrival_s for a in played] == pytest.approx([0.0, 10.0, 20.0])
