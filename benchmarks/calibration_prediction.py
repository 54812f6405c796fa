"""The simulator on the requests that a real pool got, and the figures that are compared. Pure."""

from collections.abc import Sequence
from typing import Final

from benchmarks.rebalance_figures import percentile
from benchmarks.rebalance_load import Outcome
from engine_pool.simulator.cost_file import MeasuredCosts
from engine_pool.simulator.scenario import Scenario, scenario_of
from engine_pool.simulator.sim_request import Arrival
from engine_pool.simulator.world import World

STEP_BUDGET_TOKENS: Final = 2048
"""vLLM's max_num_batched_tokens on CPU: prompt tokens of one step."""
FIGURES: Final = (
    "ttft_mean_ms",
    "ttft_p50_ms",
    "ttft_p99_ms",
    "request_mean_ms",
    "request_p99_ms",
    "decode_mean_ms",
    "decode_p99_ms",
)


def measured_figures(outcome: Outcome) -> dict[str, float]:
    """Returns what the readers of the real pool saw."""
    return _figures(
        [s.ttft_ms for s in outcome.seen],
        [s.latency_ms for s in outcome.seen],
        [ms for s in outcome.seen if (ms := s.decode_ms) is not None],
    )


def predicted_figures(scenario: Scenario, arrivals: Sequence[Arrival]) -> dict[str, float]:
    """Runs the simulator on the same requests and returns the same figures."""
    world = World(scenario, list(arrivals))
    world.run(None)
    world.check_integrity()
    ttft: list[float] = []
    latency: list[float] = []
    decode: list[float] = []
    for r in world.requests:
        assert r.first_token_s is not None, "every request has finished"
        assert r.finish_s is not None, "every request has finished"
        ttft.append((r.first_token_s - r.arrival_s) * 1000)
        latency.append((r.finish_s - r.arrival_s) * 1000)
        if r.output_tokens > 1:
            decode.append((r.finish_s - r.first_token_s) * 1000 / (r.output_tokens - 1))
    return _figures(ttft, latency, decode) | {
        "preemptions": sum(r.preemptions for r in world.requests),
        "moves": sum(r.moves for r in world.requests),
    }


def scenario_for(costs: MeasuredCosts, capacity_tokens: int, instances: int) -> Scenario:
    """Returns a pool like the real one."""
    engine = costs.engine
    return scenario_of(
        {
            "name": "calibration",
            "pool": {
                "instances": instances,
                "capacity_tokens": capacity_tokens,
                "block_size_tokens": engine.block_size_tokens,
                "max_running": engine.max_running,
                "max_prefill_tokens": STEP_BUDGET_TOKENS,
                # vLLM admits up to the last block.
                "watermark": 0.0,
            },
            "costs": costs.scenario_section(),
        }
    )


def _figures(
    ttft: Sequence[float], latency: Sequence[float], decode: Sequence[float]
) -> dict[str, float]:
    return {
        "requests": len(ttft),
        "ttft_mean_ms": sum(ttft) / len(ttft),
        "ttft_p50_ms": percentile(ttft, 50),
        "ttft_p99_ms": percentile(ttft, 99),
        "request_mean_ms": sum(latency) / len(latency),
        "request_p99_ms": percentile(latency, 99),
        "decode_mean_ms": sum(decode) / len(decode),
        "decode_p99_ms": percentile(decode, 99),
    }
