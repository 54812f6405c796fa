"""How well the simulator foretells a real pool: the same requests, predicted and measured.

Measures this machine's engine (`python -m engine_pool.calibrate`; `--costs` names a file that is
there), plays an open-loop load on a whole installation with two vLLM engines (`make up`), and gives
the simulator the cost file, the pool's sizes and the same arrivals and lengths. Reported is
predicted / measured for TTFT, whole requests and decode time per token: 1 is perfect, below 1 the
pool was slower than foretold.

    python -m benchmarks.calibration [--quick] [--costs costs.json] [--requests 80] [--rate 1.2]
        [--trace FILE] [--model FOLDER] [--kv-tokens 16384] [--save FILE]

What the simulator does not have: vLLM cuts prompts into chunks and computes them beside decodes
(`mixed_step_ratio` in the cost file says what that is worth), prefix caches (the prompts here share
none), the gateway, and other processes on the engines' cores. Five minutes; `--quick` two to three.
The last line is JSON. Exit code 1: a request failed.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.migration_rig import Interrupted, end_on_signals
from benchmarks.rebalance_figures import percentile
from benchmarks.rebalance_load import Outcome, bytes_per_kv_token, play
from benchmarks.rebalance_pool import Pool, Sizes, started
from benchmarks.rebalance_trace import EXCERPT, Scale, arrivals_of
from benchmarks.servers import MODEL_DIR, ROOT
from engine_pool.simulator.cost_file import CostFileError, MeasuredCosts, read_costs
from engine_pool.simulator.scenario import Scenario, scenario_of
from engine_pool.simulator.sim_request import Arrival
from engine_pool.simulator.trace import TraceError, read_trace
from engine_pool.simulator.world import World

GIB: Final = 1024**3
CALIBRATION_TIMEOUT_S: Final = 600.0
STEP_BUDGET_TOKENS: Final = 2048
"""vLLM's max_num_batched_tokens on CPU: prompt tokens of one step."""
WARM_UP_REQUESTS: Final = 6
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


def calibrate(options: argparse.Namespace, gib: float, path: Path) -> None:
    """Measures the engine in a process of its own. Raises: RuntimeError."""
    arguments = ["--out", str(path), "--kv-cache-gib", f"{gib:.6f}", "--model", str(options.model)]
    if options.quick:
        arguments.append("--quick")
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "FERRY_MAX_MODEL_LEN": str(options.max_model_len),
        "FERRY_MAX_RUNNING": str(options.max_running),
    }
    command = [sys.executable, "-m", "engine_pool.calibrate", *arguments]
    try:
        subprocess.run(command, cwd=ROOT, env=environ, check=True, timeout=CALIBRATION_TIMEOUT_S)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(f"the engine could not be measured: {error}") from error


def play_on(pool: Pool, arrivals: Sequence[Arrival]) -> tuple[Outcome, dict[str, int]]:
    """Plays the load on the real pool. Raises: RuntimeError when not even the warm-up works."""
    few = [replace(a, arrival_s=0.25 * n) for n, a in enumerate(arrivals[:WARM_UP_REQUESTS])]
    warm_up = asyncio.run(play(pool.door, few, seed="warm-up", with_classes=False))
    if warm_up.failures:
        raise RuntimeError(warm_up.failures[0])
    pool.wait_idle()
    before = pool.counts()
    outcome = asyncio.run(play(pool.door, arrivals, seed="measured", with_classes=False))
    pool.wait_idle()
    done = pool.counts().since(before)
    return outcome, {"preemptions": done.preemptions, "moves": done.moves}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Calibrates, plays, predicts. Raises: CostFileError, RuntimeError, TraceError."""
    rows = read_trace(options.trace)
    gib = options.kv_tokens * bytes_per_kv_token(options.model) / GIB
    with tempfile.TemporaryDirectory(prefix="ferry-costs-") as folder:
        path = options.costs or Path(folder) / "costs.json"
        if options.costs is None:
            calibrate(options, gib, path)
        costs = read_costs(path)
    scale = Scale(
        options.requests,
        options.rate,
        options.prompt_factor,
        options.output_factor,
        options.max_model_len,
        0.0,
    )
    arrivals = arrivals_of(rows, 0, scale)
    sizes = Sizes(options.model, gib, options.max_model_len, options.max_running)
    print("starting an installation", flush=True)
    with started("calibration", sizes) as pool:
        capacity_tokens = pool.capacity_tokens()
        outcome, counts = play_on(pool, arrivals)
    measured = measured_figures(outcome) | counts
    scenario = scenario_for(costs, capacity_tokens, sizes.instances)
    predicted = predicted_figures(scenario, arrivals)
    return {
        "predicted": _rounded(predicted),
        "measured": _rounded(measured),
        "ratios": {name: round(predicted[name] / measured[name], 3) for name in FIGURES},
        "failures": list(outcome.failures)[:20],
        "client_late_ms": round(outcome.late_ms, 1),
        "scale": asdict(scale),
        "costs": asdict(costs),
    }


def table(result: dict[str, Any]) -> str:
    """Returns the figures for a reader."""
    lines = [f"{'':18}{'predicted':>12}{'measured':>12}{'ratio':>8}"]
    for name in (*FIGURES, "preemptions", "moves"):
        ratio = result["ratios"].get(name)
        lines.append(
            f"{name:18}{result['predicted'][name]:>12,.1f}{result['measured'][name]:>12,.1f}"
            f"{'' if ratio is None else f'{ratio:8.2f}'}"
        )
    if (mixed := result["costs"]["mixed_step_ratio"]) is not None:
        lines.append(f"a prefill beside a decode step against one after the other: {mixed:.2f}")
    return "\n".join(lines)


def _rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 2) for name, value in figures.items()}


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a short calibration, 30 requests")
    parser.add_argument("--costs", type=Path, help="a cost file that was measured here before")
    parser.add_argument("--requests", type=int, default=80)
    parser.add_argument("--rate", type=float, default=1.2, help="requests a second")
    parser.add_argument("--trace", type=Path, default=EXCERPT, help="Azure's or BurstGPT's columns")
    parser.add_argument("--model", type=Path, default=MODEL_DIR, help="a folder")
    parser.add_argument("--kv-tokens", type=int, default=16_384, help="KV cache of an engine")
    parser.add_argument("--max-model-len", type=int, default=1536)
    parser.add_argument("--max-running", type=int, default=32)
    parser.add_argument("--prompt-factor", type=float, default=0.2)
    parser.add_argument("--output-factor", type=float, default=0.5)
    parser.add_argument("--save", type=Path, help="keeps the JSON there")
    options = parser.parse_args()
    if options.quick:
        options.requests = min(options.requests, 30)
    for name in ("requests", "rate", "prompt_factor", "output_factor"):
        if getattr(options, name) <= 0:
            parser.error(f"--{name.replace('_', '-')}: a number above 0 is expected")
    return options


def main() -> int:
    options = read_options()
    end_on_signals()
    busy_before = os.getloadavg()[0]
    began_s = time.monotonic()
    try:
        result = measure(options)
    except (CostFileError, TraceError, RuntimeError) as error:
        print(error)
        return 2
    except (KeyboardInterrupt, Interrupted) as error:
        print(f"interrupted: {type(error).__name__}", flush=True)
        return 130
    result |= {
        "machine_load_before": round(busy_before, 2),
        "took_s": round(time.monotonic() - began_s),
    }
    for failure in result["failures"]:
        print(failure)
    print(table(result))
    line = json.dumps(result)
    if options.save:
        options.save.write_text(line + "\n")
    print(line)
    return int(bool(result["failures"]))


if __name__ == "__main__":
    sys.exit(main())
