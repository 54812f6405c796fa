"""The arithmetic of the rebalancing benchmark: what is compared, and how a trace is scaled."""

import json

import pytest

from benchmarks.rebalance import result_of
from benchmarks.rebalance_figures import Round, figures_of, percentile, spread, table
from benchmarks.rebalance_load import Door, Outcome, Seen, _body
from benchmarks.rebalance_trace import EXCERPT, Scale, arrivals_of
from engine_pool.simulator.sim_request import Arrival
from engine_pool.simulator.trace import read_trace
from engine_pool.types import PriorityClass

SCALE = Scale(40, 2.0, 0.2, 0.5, 1024, 0.1)


def seen(index: int, ttft_ms: float, gaps_ms: tuple[float, ...] = (10.0,)) -> Seen:
    latency_ms = ttft_ms + sum(gaps_ms)
    return Seen(index, PriorityClass.NORMAL, ttft_ms, gaps_ms, latency_ms, 1 + len(gaps_ms))


def round_of(*ttft_ms: float, preemptions: int = 0, failures: tuple[str, ...] = ()) -> Round:
    requests = tuple(seen(n, ms) for n, ms in enumerate(ttft_ms))
    return Round(Outcome(requests, failures, 2.0, 0.5), preemptions, 1, 0)


def test_a_ratio_above_one_says_that_less_is_left_with_it():
    assert spread([100, 300, 80], [50, 100, 40]) == {
        "median": 2.0,
        "min": 2.0,
        "max": 3.0,
        "total": round(480 / 190, 3),
    }


@pytest.mark.parametrize(
    ("without", "with_it", "median", "total"),
    [
        pytest.param([4, 2], [0, 2], 1.0, 3.0, id="none in one round"),
        pytest.param([4, 2], [0, 0], None, None, id="none at all with it"),
        pytest.param([float("nan")], [1.0], None, 0, id="nothing was measured"),
    ],
)
def test_a_round_with_nothing_to_divide_by_is_left_out(without, with_it, median, total):
    found = spread(without, with_it)
    assert found["median"] == median
    if total != 0:
        assert found["total"] == total


@pytest.mark.parametrize(("percent", "value"), [(50, 50), (99, 99), (100, 100), (1, 1), (0.1, 1)])
def test_percentiles_are_values_that_occurred(percent, value):
    assert percentile(range(1, 101), percent) == value


def test_gaps_of_all_requests_count_together():
    found = figures_of([seen(0, 5.0, (1.0, 2.0)), seen(1, 7.0, (30.0,))])
    assert found["ttft_mean_ms"] == 6.0
    assert found["itl_p50_ms"] == 2.0
    assert found["itl_p99_ms"] == 30.0
    assert found["latency_p99_ms"] == 37.0


def test_the_result_can_be_read_by_people_and_by_machines():
    found = {
        "off": [round_of(100, 400, preemptions=4), round_of(200, 200, preemptions=2)],
        "on": [round_of(50, 100), round_of(100, 100, preemptions=1, failures=("request 7: lost",))],
        "classes": [round_of(25, 200), round_of(50, 100)],
    }
    result = json.loads(json.dumps(result_of(found, [{0}, {0}]), allow_nan=False))
    assert result["rounds"] == 2
    assert result["off"]["preemptions"] == 6
    assert result["on"]["failures"] == 1
    assert result["ratios"]["ttft_p99_ms"]["median"] == 3.0
    assert result["ratios"]["preemptions"]["total"] == 6.0
    high = result["classes"]["high"]
    assert high["without"]["requests"] == high["with"]["requests"] == 2
    assert high["ratios"]["ttft_mean_ms"]["median"] == 2.0
    assert result["classes"]["normal"]["ratios"]["ttft_mean_ms"]["min"] == 0.5
    lines = table(result).splitlines()
    assert next(line for line in lines if line.startswith("preemptions")).split()[1:3] == ["6", "1"]


def test_rounds_of_one_number_are_the_same_and_others_are_not():
    rows = read_trace(EXCERPT)
    first = arrivals_of(rows, 0, SCALE)
    assert first == arrivals_of(rows, 0, SCALE)
    assert first != arrivals_of(rows, 1, SCALE)


@pytest.mark.parametrize("number", [0, 1, 20])
def test_a_scaled_trace_fits_the_model_and_comes_at_its_rate(number):
    arrivals = arrivals_of(read_trace(EXCERPT), number, SCALE)
    assert len(arrivals) == SCALE.requests
    assert all(a.prompt_tokens + a.output_tokens < SCALE.max_model_len for a in arrivals)
    assert arrivals[-1].arrival_s == pytest.approx((SCALE.requests - 1) / SCALE.rate_per_s)
    assert [a.index for a in arrivals] == list(range(SCALE.requests))


def test_prompts_have_their_length_and_share_no_beginning():
    door = Door("http://127.0.0.1/v1", "m", {PriorityClass.NORMAL: "sk-secret"})
    prompts = []
    for seed in ("off-0", "on-0"):
        for index in range(50):
            body = json.loads(_body(door, Arrival(index, 0.0, 200, 7), seed))
            assert len(body["prompt"]) == 200
            assert body["max_tokens"] == 7
            prompts.append(tuple(body["prompt"][:16]))
    assert len(set(prompts)) == 100
    assert "sk-secret" not in repr(door)
