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
none), other processes on the engines' cores, and the way through gateway and store: what a lone
request needs besides its prefill is `way_ms`, and `ratios_with_way` has it added to what was
predicted. Five minutes; `--quick` two to three.
The last line is JSON. Exit code 1: a request failed.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from benchmarks import session
from benchmarks.calibration_prediction import (
    FIGURES,
    measured_figures,
    predicted_figures,
    scenario_for,
)
from benchmarks.rebalance_load import Outcome, bytes_per_kv_token, play
from benchmarks.rebalance_pool import Pool, Sizes, started
from benchmarks.rebalance_trace import EXCERPT, Scale, arrivals_of
from benchmarks.servers import MODEL_DIR, ROOT
from engine_pool.simulator.cost_file import CostFileError, MeasuredCosts, read_costs
from engine_pool.simulator.sim_request import Arrival
from engine_pool.simulator.trace import TraceError, read_trace

GIB: Final = 1024**3
CALIBRATION_TIMEOUT_S: Final = 600.0
LONE_REQUESTS: Final = 8
LONE_PROMPT_TOKENS: Final = 32
WAY: Final = ("ttft_mean_ms", "ttft_p50_ms", "ttft_p99_ms", "request_mean_ms", "request_p99_ms")
"""Figures that a request's way to its engine is a part of."""


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


def way_ms(pool: Pool, costs: MeasuredCosts) -> float:
    """Returns what a lone request's first token takes besides its prefill: gateway, store, client.
    The first requests warm the pool up. Raises: RuntimeError when one fails."""
    lone = Arrival(0, 0.0, LONE_PROMPT_TOKENS, 2)
    ttft_ms: list[float] = []
    for number in range(2 * LONE_REQUESTS):
        seed = f"alone-{number}"
        outcome = asyncio.run(play(pool.door, [lone], seed=seed, with_classes=False))
        if outcome.failures:
            raise RuntimeError(outcome.failures[0])
        ttft_ms.append(outcome.seen[0].ttft_ms)
    alone_ms = statistics.median(ttft_ms[LONE_REQUESTS:])
    return max(0.0, alone_ms - costs.steps.prefill_ms([LONE_PROMPT_TOKENS]))


def play_on(pool: Pool, arrivals: Sequence[Arrival]) -> tuple[Outcome, dict[str, int]]:
    """Plays the load on the real pool."""
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
        way = way_ms(pool, costs)
        outcome, counts = play_on(pool, arrivals)
    measured = measured_figures(outcome) | counts
    scenario = scenario_for(costs, capacity_tokens, sizes.instances)
    predicted = predicted_figures(scenario, arrivals)
    return {
        "predicted": _rounded(predicted),
        "measured": _rounded(measured),
        "ratios": {name: round(predicted[name] / measured[name], 3) for name in FIGURES},
        "way_ms": round(way, 2),
        "ratios_with_way": {n: round((predicted[n] + way) / measured[n], 3) for n in WAY},
        "failures": list(outcome.failures)[:20],
        "client_late_ms": round(outcome.late_ms, 1),
        "scale": asdict(scale),
        "costs": asdict(costs),
    }


def table(result: dict[str, Any]) -> str:
    """Returns the figures for a reader."""
    lines = [f"{'':18}{'predicted':>12}{'measured':>12}{'ratio':>8}{'with the way':>14}"]
    for name in (*FIGURES, "preemptions", "moves"):
        ratio, with_way = result["ratios"].get(name), result["ratios_with_way"].get(name)
        lines.append(
            f"{name:18}{result['predicted'][name]:>12,.1f}{result['measured'][name]:>12,.1f}"
            f"{'' if ratio is None else f'{ratio:8.2f}'}"
            f"{'' if with_way is None else f'{with_way:14.2f}'}"
        )
    lines.append(f"a lone request's way through gateway and store: {result['way_ms']:.1f} ms")
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

    def measured() -> dict[str, Any]:
        try:
            return measure(options)
        except (CostFileError, TraceError) as error:
            raise RuntimeError(str(error)) from error

    return session.run(measured, problems="failures", table=table, save=options.save)


if __name__ == "__main__":
    sys.exit(main())
