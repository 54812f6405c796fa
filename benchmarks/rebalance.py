"""What rebalancing does for real requests: a replayed trace on real engines, with it and without.

Two whole installations (`make up`: gateway, store, pool process, Ray, two vLLM engines each) stand
ready, one with FERRY_REBALANCE=on, one with off. In turns each gets the same requests at the same
times: an excerpt of the Azure conversation trace, lengths and rate scaled to this machine so that
KV memory is tight. Then a third run of the round gives a tenth of the requests the high class, to
be compared with the same requests in the round without classes.

    python -m benchmarks.rebalance [--quick] [--rounds 3] [--seconds 45] [--load 0.8 | --rate 1.5]
        [--trace FILE] [--model FOLDER | --random-model] [--kv-tokens 3840] [--save FILE]

The rate is found by itself: some requests that come all at once say how many a second the pool
serves, and `--load` of that is used for all rounds, so that memory and queues are the same trouble
on any machine.

The client is one process on the same machine and measures what a reader sees: TTFT from the time at
which the trace says that the request comes, gaps between chunks (ITL), the whole answer. Eleven
minutes on two cores (`--quick`: under three); nothing else should run meanwhile. The last line is
JSON. Exit code 1: a request failed.
"""

import argparse
import asyncio
import math
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks import session
from benchmarks.migration import LARGER
from benchmarks.migration_rig import random_model
from benchmarks.rebalance_figures import (
    RATIOS,
    Round,
    class_figures,
    failures_of,
    mode_figures,
    ratios_of,
    round_figures,
    table,
)
from benchmarks.rebalance_load import bytes_per_kv_token, play
from benchmarks.rebalance_pool import Pool, Sizes, started
from benchmarks.rebalance_trace import EXCERPT, Scale, arrivals_of
from benchmarks.servers import MODEL_DIR
from engine_pool.simulator.trace import TraceError, TraceRow, read_trace
from engine_pool.types import PriorityClass

GIB: Final = 1024**3
LEAST_GIB: Final = 0.01
"""The least that FERRY_KV_CACHE_GIB takes."""
WARM_UP_REQUESTS: Final = 6
PROBE_REQUESTS: Final = 32
"""That come at once and tell how many a second the pool serves: more than it runs at a time."""
QUICK_SECONDS: Final = 20.0
LEAST_REQUESTS: Final = 20
"""Of a round, however slow the machine is."""
OFF, ON, CLASSES = "off", "on", "classes"


@dataclass
class Bench:
    """One run of the benchmark."""

    off: Pool
    on: Pool
    rows: Sequence[TraceRow]
    scale: Scale

    def run(self, rounds: int, *, with_classes: bool) -> dict[str, list[Round]]:
        """Plays all rounds. Who goes first alternates."""
        found: dict[str, list[Round]] = {OFF: [], ON: [], CLASSES: []}
        for number in range(rounds):
            modes = [(OFF, self.off), (ON, self.on)]
            if with_classes:
                modes.append((CLASSES, self.on))
            for mode, pool in modes if number % 2 == 0 else reversed(modes):
                found[mode].append(self._play(mode, pool, number))
        return found

    def warm_up(self) -> None:
        """Sends a few requests to both: the first ones meet code that never ran."""
        scale = replace(self.scale, requests=WARM_UP_REQUESTS, rate_per_s=4.0, high_share=0.5)
        few = arrivals_of(self.rows, 0, scale)
        for pool in (self.off, self.on):
            outcome = asyncio.run(play(pool.door, few, seed="warm-up", with_classes=True))
            if outcome.failures:
                raise RuntimeError(f"{pool.name}: {outcome.failures[0]}")
            pool.wait_idle()

    def served_per_s(self) -> float:
        """Returns how many requests a second a pool serves when there are always some."""
        scale = replace(self.scale, requests=PROBE_REQUESTS)
        at_once = [replace(a, arrival_s=0.0) for a in arrivals_of(self.rows, 0, scale)]
        outcome = asyncio.run(play(self.off.door, at_once, seed="probe", with_classes=False))
        if outcome.failures:
            raise RuntimeError(f"{self.off.name}: {outcome.failures[0]}")
        self.off.wait_idle()
        return len(at_once) / outcome.wall_s

    def _play(self, mode: str, pool: Pool, number: int) -> Round:
        arrivals = arrivals_of(self.rows, number, self.scale)
        before = pool.counts()
        outcome = asyncio.run(
            # Every run has prompts of its own: none finds its blocks in a prefix cache.
            play(pool.door, arrivals, seed=f"{mode}-{number}", with_classes=mode == CLASSES)
        )
        pool.wait_idle()
        done = pool.counts().since(before)
        one = Round(outcome, done.preemptions, done.moves, done.aborted)
        f = round_figures(one)
        print(
            f"round {number + 1} {mode:8} TTFT p50 {f['ttft_p50_ms']:7.0f} p99 "
            f"{f['ttft_p99_ms']:7.0f} ms  ITL p99 {f['itl_p99_ms']:6.0f} ms  preemptions "
            f"{f['preemptions']:3.0f}  moves {f['moves']:3.0f}  failures {f['failures']:.0f}  "
            f"{f['tokens_per_s']:5.0f} tokens/s  {outcome.wall_s:4.0f} s",
            flush=True,
        )
        return one


def result_of(found: dict[str, list[Round]], high: Sequence[set[int]]) -> dict[str, Any]:
    """Returns what the last line says. `high`: each round's requests of the high class."""
    off, on, classed = found[OFF], found[ON], found[CLASSES]
    return {
        "rounds": len(on),
        "off": mode_figures(off),
        "on": mode_figures(on),
        "ratios": ratios_of(
            [round_figures(r) for r in off], [round_figures(r) for r in on], RATIOS
        ),
        "classes": class_figures(on, classed, high) if classed else None,
    }


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help=f"one round of {QUICK_SECONDS:.0f} s of arrivals"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=45.0, help="of arrivals in each run")
    parser.add_argument("--load", type=float, default=0.8, help="share of what the pool can serve")
    parser.add_argument("--rate", type=float, help="requests a second, instead of --load")
    parser.add_argument("--trace", type=Path, default=EXCERPT, help="Azure's or BurstGPT's columns")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--model", type=Path, default=MODEL_DIR, help="a folder")
    which.add_argument(
        "--random-model",
        dest="model",
        action="store_const",
        const=None,
        help="10 million random parameters: steps of 5 to 10 ms",
    )
    parser.add_argument("--instances", type=int, default=2, help="engines of each installation")
    parser.add_argument("--kv-tokens", type=int, default=3840, help="KV cache of an engine")
    parser.add_argument("--max-model-len", type=int, default=1536)
    parser.add_argument("--max-running", type=int, default=32)
    parser.add_argument("--prompt-factor", type=float, default=0.2)
    parser.add_argument("--output-factor", type=float, default=0.5)
    parser.add_argument("--high-share", type=float, default=0.1)
    parser.add_argument("--no-classes", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="FERRY_X=Y", help="for both")
    parser.add_argument("--save", type=Path, help="keeps the JSON there")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 1, min(options.seconds, QUICK_SECONDS)
    if options.kv_tokens < options.max_model_len:
        parser.error("--kv-tokens: an engine must hold a request of --max-model-len")
    for name in ("rounds", "seconds", "load", "rate", "prompt_factor", "output_factor"):
        if (value := getattr(options, name)) is not None and value <= 0:
            parser.error(f"--{name.replace('_', '-')}: a number above 0 is expected")
    if bad := [pair for pair in options.set if not pair.startswith("FERRY_") or "=" not in pair]:
        parser.error(f"--set {bad[0]}: FERRY_NAME=value is expected")
    return options


def temporary_model(stack: ExitStack, max_model_len: int) -> Path:
    """Writes a model that lasts as long as the stack."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ferry-model-")))
    return random_model(folder, replace(LARGER, max_model_len=max_model_len))


def measure(options: argparse.Namespace, rows: Sequence[TraceRow]) -> dict[str, Any]:
    """Starts both installations, plays all rounds, returns what came out."""
    scale = Scale(
        LEAST_REQUESTS,
        options.rate or 1.0,
        options.prompt_factor,
        options.output_factor,
        options.max_model_len,
        options.high_share,
    )
    common = dict(pair.split("=", 1) for pair in options.set)
    with ExitStack() as stack:
        model: Path = options.model or temporary_model(stack, options.max_model_len)
        gib = options.kv_tokens * bytes_per_kv_token(model) / GIB
        if gib < LEAST_GIB:
            least = math.ceil(LEAST_GIB * GIB / bytes_per_kv_token(model))
            raise RuntimeError(f"--kv-tokens: an engine of {model.name} has at least {least}")
        sizes = Sizes(model, gib, options.max_model_len, options.max_running, options.instances)
        pools = []
        for name in (OFF, ON):
            print(f"starting an installation with FERRY_REBALANCE={name}", flush=True)
            settings = common | {"FERRY_REBALANCE": name}
            pools.append(stack.enter_context(started(f"rebalance-{name}", sizes, **settings)))
        bench = Bench(pools[0], pools[1], rows, scale)
        bench.warm_up()
        rate = options.rate or options.load * bench.served_per_s()
        requests = max(LEAST_REQUESTS, round(rate * options.seconds))
        scale = bench.scale = replace(scale, requests=requests, rate_per_s=rate)
        print(f"{requests} requests a run, {rate:.2f} a second", flush=True)
        found = bench.run(options.rounds, with_classes=not options.no_classes)
    high = [
        {a.index for a in arrivals_of(rows, n, scale) if a.priority_class is PriorityClass.HIGH}
        for n in range(options.rounds)
    ]
    problems = failures_of(one for rounds in found.values() for one in rounds)
    return {
        **result_of(found, high),
        "problems": problems[:20],
        "scale": asdict(scale) | {"kv_tokens": options.kv_tokens, "model": model.name},
    }


def main() -> int:
    options = read_options()

    def measured() -> dict[str, Any]:
        try:
            rows = read_trace(options.trace)
        except TraceError as error:
            raise RuntimeError(str(error)) from error
        return measure(options, rows)

    return session.run(measured, problems="problems", table=table, save=options.save)


if __name__ == "__main__":
    sys.exit(main())
