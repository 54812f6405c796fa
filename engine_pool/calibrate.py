"""Measures a real engine and writes the costs that the simulator computes with.

    python -m engine_pool.calibrate --out costs.json [--model FOLDER] [--kv-cache-gib 0.5] [--quick]

The engine is the pool's own: the same adapter, settings (FERRY_* variables) and threads, in this
process. It is stepped by hand: prompts of several lengths, alone and together; decode steps over
batch size and context; copies of KV blocks to a second engine, in a process of its own. Then the
coefficients of simulator/costs.py are fitted. Two to three minutes on two CPU cores with the
default model; nothing else should run meanwhile.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from engine_pool.calibration import Bench, CalibrationError
from engine_pool.calibration_copies import copies_to_another
from engine_pool.calibration_sizes import QUICK, Effort, Room
from engine_pool.config import PoolConfig
from engine_pool.engine_spec import EngineSpec
from engine_pool.errors import ConfigError, EngineFailed
from engine_pool.served_model import resolve_model
from engine_pool.simulator.cost_file import (
    EngineFacts,
    FitFacts,
    MachineFacts,
    MeasuredCosts,
    write_costs,
)
from engine_pool.simulator.costs import CopyCosts
from engine_pool.simulator.fitting import FitError, fit_copies, fit_steps
from engine_pool.types import InstanceName

if TYPE_CHECKING:
    from engine_pool.vllm_adapter import VllmEngine

SLOWDOWN_SEQUENCES, SLOWDOWN_CONTEXT = 4, 256
"""The batch that is watched while copies run: a step of it is neither short nor long."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command. Returns 2 for a setting that cannot work, 1 for an engine that cannot be
    measured."""
    options = _options(arguments)
    # Its warnings are the same at each start; whoever looks for one sets the variable.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    try:
        spec = _spec(options, os.environ)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    try:
        costs = calibrate(spec, QUICK if options.quick else Effort(), with_copies=options.copies)
        write_costs(options.out, costs)
    except (CalibrationError, EngineFailed, FitError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    _say("")
    for line in readable(costs, options.out):
        _say(line)
    return 0


def calibrate(spec: EngineSpec, effort: Effort, *, with_copies: bool) -> MeasuredCosts:
    """Measures an engine of this spec, in this process. Raises: CalibrationError, EngineFailed,
    FitError."""
    # Takes seconds; not before the options are known to be right.
    from engine_pool.vllm_adapter import VllmEngine

    _say(f"starting an engine with {spec.threads} threads")
    engine = VllmEngine(spec)
    try:
        return _measure(engine, spec, effort, with_copies=with_copies)
    finally:
        engine.close()


def _measure(
    engine: "VllmEngine", spec: EngineSpec, effort: Effort, *, with_copies: bool
) -> MeasuredCosts:
    load, shape = engine.load(), engine.moves.shape
    room = Room(
        engine.max_model_len, load.capacity_tokens, load.block_size_tokens, load.max_running
    )
    bench = Bench(engine, engine.moves.probe, room, effort, tell=_say)
    steps, fits = fit_steps(bench.prefills(), bench.decodes())
    mixed_ratio = bench.mixed_ratio(steps)
    copies: CopyCosts | None = None
    slowdown: float | None = None
    if with_copies:
        _say("starting a second engine")
        with copies_to_another(engine, spec) as channel:
            points = channel.measure(_say)
            copies, fits["copies"] = fit_copies(points, load.block_size_tokens, shape.token_bytes)
            slowdown = bench.slowdown(SLOWDOWN_SEQUENCES, SLOWDOWN_CONTEXT, channel)
    return MeasuredCosts(
        steps=steps,
        copies=copies,
        copy_slowdown=slowdown,
        mixed_step_ratio=mixed_ratio,
        engine=EngineFacts(**asdict(room)),
        machine=MachineFacts(
            cores=os.cpu_count() or 1,
            threads=spec.threads,
            torch=version("torch"),
            engine=shape.engine,
            model=shape.model,
        ),
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        fits=fits,
    )


def readable(costs: MeasuredCosts, path: Path) -> list[str]:
    """Returns what was found, and a scenario to begin with."""
    engine, steps = costs.engine, costs.steps
    lines = [f"{'fit of':10}{'points':>8}{'median error':>14}{'largest':>9}"]
    lines += [_fit_line(name, fit) for name, fit in costs.fits.items()]
    lines += [
        f"a prompt of 512 tokens {steps.prefill_ms([512]):.0f} ms, a step of 8 sequences with 4096 "
        f"tokens {steps.decode_ms(8, 4096):.1f} ms",
        "a prefill beside a decode step against one after the other: "
        + ("not measured" if costs.mixed_step_ratio is None else f"{costs.mixed_step_ratio:.2f}"),
        f"written to {path}; a scenario for it begins with:",
        "",
        "[pool]",
        f"capacity_tokens = {engine.capacity_tokens}",
        f"block_size_tokens = {engine.block_size_tokens}",
        f"max_running = {engine.max_running}",
        "[costs]",
        f'file = "{path.name}"',
    ]
    return lines


def _fit_line(name: str, fit: FitFacts) -> str:
    return f"{name:10}{fit.points:>8}{fit.median_error:>13.1%}{fit.max_error:>9.0%}"


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m engine_pool.calibrate",
        description=(__doc__ or "").splitlines()[0],
        epilog="All other settings of the engine come from the FERRY_* variables.",
    )
    parser.add_argument("--out", type=Path, default=Path("costs.json"), help="the cost file")
    parser.add_argument("--model", help="folder or hub id, instead of FERRY_MODEL")
    parser.add_argument("--kv-cache-gib", help="instead of FERRY_KV_CACHE_GIB")
    parser.add_argument("--threads", help="of the engine, instead of FERRY_ENGINE_THREADS")
    parser.add_argument("--quick", action="store_true", help="fewer sizes, one try of each")
    parser.add_argument(
        "--no-copies", dest="copies", action="store_false", help="without a second engine"
    )
    return parser.parse_args(arguments)


def _spec(options: argparse.Namespace, environ: "os._Environ[str]") -> EngineSpec:
    """Raises: ConfigError."""
    said = {
        "FERRY_MODEL": options.model,
        "FERRY_KV_CACHE_GIB": options.kv_cache_gib,
        "FERRY_ENGINE_THREADS": options.threads,
    }
    config = PoolConfig.from_env({**environ, **{k: v for k, v in said.items() if v}})
    # As the pool does: its engines share the machine's cores.
    share = max(1, (os.cpu_count() or 1) // max(1, config.instances))
    config = replace(config, engine_threads=config.engine_threads or share)
    model = resolve_model(config)
    name = InstanceName("calibration")
    return EngineSpec(name, name, config, model.path, config.engine_threads, 0)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
