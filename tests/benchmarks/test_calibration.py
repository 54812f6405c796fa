"""What the simulator is given is the pool that was measured, and both sides are counted alike."""

import pytest

from benchmarks.calibration_prediction import (
    FIGURES,
    measured_figures,
    predicted_figures,
    scenario_for,
)
from benchmarks.rebalance_load import Outcome, Seen
from engine_pool.simulator.cost_file import EngineFacts, FitFacts, MachineFacts, MeasuredCosts
from engine_pool.simulator.costs import CopyCosts, StepCosts
from engine_pool.simulator.sim_request import Arrival
from engine_pool.types import PriorityClass

COSTS = MeasuredCosts(
    steps=StepCosts(5.0, 0.5, 0.0, 20.0, 1.0, 0.0),
    copies=CopyCosts(1.5, 1, 0.02, block_size_tokens=128, kv_token_bytes=23_040),
    copy_slowdown=0.1,
    mixed_step_ratio=0.9,
    engine=EngineFacts(16_384, 128, 32, 1536),
    machine=MachineFacts(2, 1, "2.13.0", "vllm 0.32.0 on cpu", "324f727a70eae085"),
    measured_at="2026-01-02T03:04:05+00:00",
    fits={"decode": FitFacts(18, 0.02, 0.2)},
)


def test_lone_requests_take_what_their_steps_cost():
    arrivals = [Arrival(n, n * 10.0, 100, 11) for n in range(5)]
    found = predicted_figures(scenario_for(COSTS, 15_872, 2), arrivals)
    assert found["ttft_p50_ms"] == pytest.approx(55.0)
    assert found["decode_mean_ms"] == pytest.approx(21.0)
    assert found["request_p99_ms"] == pytest.approx(55.0 + 10 * 21.0)
    assert found["preemptions"] == 0


def test_the_simulated_pool_has_the_real_sizes_and_costs():
    scenario = scenario_for(COSTS, 15_872, 3)
    assert scenario.pool.instances == 3
    assert scenario.engine_limits().capacity_tokens == 15_872
    assert scenario.engine_limits().block_size_tokens == 128
    assert scenario.step_costs() == COSTS.steps
    copies = scenario.copy_costs()
    assert copies.copy_ms(2) == pytest.approx(COSTS.copies.copy_ms(2))


def test_readers_and_simulator_give_the_same_figures():
    seen = tuple(
        Seen(n, PriorityClass.NORMAL, 50.0 + n, (20.0,) * 10, 250.0 + n, 11) for n in range(3)
    )
    found = measured_figures(Outcome(seen, (), 1.0, 0.0))
    assert found["ttft_mean_ms"] == pytest.approx(51.0)
    assert found["decode_mean_ms"] == pytest.approx(20.0)
    assert set(FIGURES) <= found.keys()
    arrivals = [Arrival(0, 0.0, 100, 11)]
    assert set(FIGURES) <= predicted_figures(scenario_for(COSTS, 15_872, 1), arrivals).keys()
