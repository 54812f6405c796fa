"""What fair queueing does for a small tenant beside a flooding one, on real engines.

One tenant sends long prompts faster than the engine serves them; another sends one short request a
second, in the same class. In turns the short ones come from a tenant of their own (fair queueing
between the two) and from the flooding tenant itself (one tenant: first come, first served). Same
engine, same load, same run; the only difference is whose key the short requests carry.

    python -m benchmarks.fairness [--quick] [--rounds 3] [--seconds 30] [--instances 1]
        [--flood 1.5] [--model FOLDER | --random-model]

`--flood` is the long prompts' rate as a multiple of what the engine serves, which is measured
first. Times count from the moment at which a request is due. About five minutes on two cores
(`--quick`: under two); nothing else should run meanwhile. The last line is JSON. Exit code 1: a
request failed.
"""

import argparse
import asyncio
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks import session
from benchmarks.rebalance import GIB, temporary_model
from benchmarks.rebalance_load import Door, Outcome, bytes_per_kv_token, play
from benchmarks.rebalance_pool import Pool, Sizes, started
from benchmarks.servers import MODEL_DIR
from engine_pool.simulator.metrics import percentile
from engine_pool.simulator.sim_request import Arrival
from engine_pool.types import PriorityClass

LONG_PROMPT_TOKENS: Final = 900
LONG_OUTPUT_TOKENS: Final = 24
SHORT_PROMPT_TOKENS: Final = 40
SHORT_OUTPUT_TOKENS: Final = 8
SHORT_PER_S: Final = 1.0
MAX_RUNNING: Final = 8
"""Requests in a step: few, so that the flood's queue is in the engine, where turns are given."""
MAX_MODEL_LEN: Final = 1024
PROBE_REQUESTS: Final = 24
"""Three full batches tell how many long requests a second are served."""
SHORT, FLOOD = "short", "flood"
FAIR, UNFAIR = "fair", "first_come"


@dataclass(frozen=True, slots=True)
class Load:
    """Of one round."""

    seconds: float
    flood_per_s: float

    def flood(self) -> list[Arrival]:
        count = max(1, round(self.seconds * self.flood_per_s))
        return [
            _arrival(i, i / self.flood_per_s, LONG_PROMPT_TOKENS, LONG_OUTPUT_TOKENS)
            for i in range(count)
        ]

    def short(self) -> list[Arrival]:
        count = max(1, round(self.seconds * SHORT_PER_S))
        return [
            _arrival(i, (i + 0.5) / SHORT_PER_S, SHORT_PROMPT_TOKENS, SHORT_OUTPUT_TOKENS)
            for i in range(count)
        ]


def _arrival(index: int, at_s: float, prompt_tokens: int, output_tokens: int) -> Arrival:
    return Arrival(
        index=index,
        arrival_s=at_s,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        priority_class=PriorityClass.NORMAL,
    )


def served_per_s(pool: Pool) -> float:
    """Returns how many long requests a second the engine serves. Raises: RuntimeError."""
    burst = [
        _arrival(i, 0.0, LONG_PROMPT_TOKENS, LONG_OUTPUT_TOKENS) for i in range(PROBE_REQUESTS)
    ]
    outcome = asyncio.run(play(pool.door, burst, seed="probe", with_classes=False))
    if outcome.failures:
        raise RuntimeError(outcome.failures[0])
    pool.wait_idle()
    return len(burst) / outcome.wall_s


def play_round(pool: Pool, mode: str, own: Door, load: Load, number: int) -> dict[str, Outcome]:
    """Plays both tenants' requests at once; `own`: the small tenant's key."""
    short_door = own if mode == FAIR else pool.door
    seed = f"{mode}-{number}"

    async def both() -> tuple[Outcome, Outcome]:
        return await asyncio.gather(
            play(short_door, load.short(), seed=f"short-{seed}", with_classes=False),
            play(pool.door, load.flood(), seed=f"flood-{seed}", with_classes=False),
        )

    short, flood = asyncio.run(both())
    pool.wait_idle()
    found = {SHORT: short, FLOOD: flood}
    figures = " ".join(
        f"{name} TTFT p50 {_ttft_ms(o, 50):7.0f} p95 {_ttft_ms(o, 95):7.0f} ms"
        for name, o in found.items()
    )
    print(f"round {number + 1} {mode:10} {figures}", flush=True)
    return found


def _ttft_ms(outcome: Outcome, percent: float) -> float:
    """Raises: RuntimeError when no request was answered."""
    found = percentile([s.ttft_ms for s in outcome.seen], percent)
    if found is None:
        raise RuntimeError(next(iter(outcome.failures), "no request was answered"))
    return found


def figures(rounds: dict[str, list[dict[str, Outcome]]]) -> dict[str, Any]:
    """Returns medians over the rounds, and the ratios of rounds that were played side by side."""

    def values(mode: str, who: str, q: float) -> list[float]:
        return [_ttft_ms(one[who], q) for one in rounds[mode]]

    def ratio(who: str, q: float) -> dict[str, float]:
        pairs = zip(values(UNFAIR, who, q), values(FAIR, who, q), strict=True)
        found = [unfair / fair for unfair, fair in pairs]
        middle = statistics.median(found)
        return {
            "median": round(middle, 3),
            "min": round(min(found), 3),
            "max": round(max(found), 3),
        }

    return {
        mode: {
            f"{who}_ttft_{name}_ms": round(statistics.median(values(mode, who, q)), 1)
            for who in (SHORT, FLOOD)
            for name, q in (("p50", 50), ("p95", 95))
        }
        for mode in (FAIR, UNFAIR)
    } | {
        "short_p95_gain": ratio(SHORT, 95),
        "short_p50_gain": ratio(SHORT, 50),
        "flood_p50_cost": ratio(FLOOD, 50),
    }


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round of 15 s")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0, help="of arrivals in each run")
    parser.add_argument("--instances", type=int, default=1)
    parser.add_argument("--flood", type=float, default=1.5, help="of what the engine serves")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--model", type=Path, default=MODEL_DIR, help="a folder")
    which.add_argument("--random-model", dest="model", action="store_const", const=None)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 1, min(options.seconds, 15.0)
    for name in ("rounds", "seconds", "instances", "flood"):
        if getattr(options, name) <= 0:
            parser.error(f"--{name}: a number above 0 is expected")
    return options


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Starts an installation, plays all rounds in turns, returns what came out."""
    with ExitStack() as stack:
        model: Path = options.model or temporary_model(stack, MAX_MODEL_LEN)
        gib = 2 * MAX_RUNNING * MAX_MODEL_LEN * bytes_per_kv_token(model) / GIB
        sizes = Sizes(model, max(gib, 0.02), MAX_MODEL_LEN, MAX_RUNNING, options.instances)
        pool = stack.enter_context(started("fairness", sizes))
        own = replace(
            pool.door, keys={PriorityClass.NORMAL: pool.new_key("small", PriorityClass.NORMAL)}
        )
        served = served_per_s(pool)
        load = Load(options.seconds, served * options.flood)
        print(f"the engine serves {served:.2f} long requests a second", flush=True)
        rounds: dict[str, list[dict[str, Outcome]]] = {FAIR: [], UNFAIR: []}
        for number in range(options.rounds):
            modes: Sequence[str] = (FAIR, UNFAIR) if number % 2 == 0 else (UNFAIR, FAIR)
            for mode in modes:
                rounds[mode].append(play_round(pool, mode, own, load, number))
    outcomes = [o for played in rounds.values() for one in played for o in one.values()]
    return {
        "rounds": options.rounds,
        "served_per_s": round(served, 3),
        "flood_per_s": round(load.flood_per_s, 3),
        **figures(rounds),
        "problems": [f for o in outcomes for f in o.failures][:20],
        "model": model.name,
    }


def main() -> int:
    options = read_options()
    return session.run(lambda: measure(options), problems="problems")


if __name__ == "__main__":
    sys.exit(main())
