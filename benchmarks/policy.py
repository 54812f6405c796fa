"""How long the pool's decisions take, and how fast a simulated run is. No engine, no store.

- dispatch: `Ranking.choose`, and `put` of the chosen instance with the request in its queue;
  beside it the plain `choose`, which looks at every instance
- report: one instance's report and ledger summed up and put into the ranking
- pairing: `pair` over all instances, a fifth of them sources
- selection: the request that moves, out of 60, for one pair; each source does it by itself
- simulator: 10,000 requests on 16 instances near the knee of each mix

    python -m benchmarks.policy [--quick]

The last line is JSON: `dispatch_us`, `choose_us`, `report_us`, `pairing_ms`, `selection_us` with
`p50` and `p99` by number of instances, `simulator` by mix, `goals`. Everything uses one core; times
are CPU seconds of it, so that what else runs on the machine does not count.
"""

import argparse
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from random import Random
from typing import Final

from benchmarks import policy_pools as pools
from engine_pool.policy.dispatch import Choice, RequestDemand, choose
from engine_pool.policy.pairing import pair
from engine_pool.policy.ranking import Ranking
from engine_pool.policy.selection import select
from engine_pool.policy.settings import DispatchRule, HeadroomRule, RebalanceRule
from engine_pool.policy.standing import Standing, add_queued, standing_of
from engine_pool.simulator.run import run
from engine_pool.simulator.scenario import scenario_of
from engine_pool.types import InstanceName, InstanceState

COUNTS: Final = (16, 256, 1000, 4000)
GOAL_COUNT: Final = 1000
DISPATCH_GOAL_US: Final = 50.0
PAIRING_GOAL_MS: Final = 5.0
RUN_GOAL_S: Final = 30.0
LINEAR_EVERY: Final = 20
"""Requests for which the plain choice is measured, too: it takes milliseconds."""
CANDIDATES: Final = 60
MIXES: Final = {"S-S": 36.0, "M-M": 7.3, "L-L": 2.7}
"""Requests a second of the whole pool at each mix's knee, steps as long as the paper's."""
TIME_SCALE: Final = 1.2
SEED: Final = 1

Figures = dict[str, float]
ByCount = dict[str, dict[str, Figures]]
"""Figures by what was measured and number of instances."""


@dataclass(frozen=True, slots=True)
class Goal:
    goal: str
    at_most: float
    value: float
    is_met: bool


def summary(values: Sequence[float], scale: float) -> Figures:
    """Returns median and 99th percentile, from seconds into the unit of `scale` a second."""
    cuts = statistics.quantiles(values, n=100) if len(values) > 1 else [values[0]] * 99
    return {"p50": cuts[49] * scale, "p99": cuts[98] * scale}


def timed(act: Callable[[], object]) -> float:
    """Returns the CPU seconds that a call takes: a shared machine's turns do not count."""
    began_s = time.thread_time()
    act()
    return time.thread_time() - began_s


def dispatch(count: int, rounds: int, requests: int) -> dict[str, Figures]:
    """Measures choices and reports in turns, so that the pool stays as busy as it was: whoever got
    a request reports next, and is as some other instance was."""
    random, rule = Random(SEED), DispatchRule()
    ranking_s: list[float] = []
    linear_s: list[float] = []
    report_s: list[float] = []
    for _ in range(rounds):
        ranking = Ranking(rule)
        pool: dict[InstanceName, Standing] = {}
        instances = pools.names(count)
        for name in instances:
            load = pools.report(name, random)
            pool[name] = standing_of(load, InstanceState.SERVING)
            ranking.put(pool[name])
        for n in range(requests):
            request = pools.request(n, instances, random)
            if n % LINEAR_EVERY == 0:
                standings = list(pool.values())
                linear_s.append(timed(partial(choose, standings, request, rule)))
            began_s = time.thread_time()
            chosen = send(ranking, pool, request)
            ranking_s.append(time.thread_time() - began_s)
            load = replace(pools.report(random.choice(instances), random), instance=chosen)
            sent = pools.ledger(load, random)
            began_s = time.thread_time()
            pool[chosen] = standing_of(load, InstanceState.SERVING, sent)
            ranking.put(pool[chosen])
            report_s.append(time.thread_time() - began_s)
    return {
        "dispatch_us": summary(ranking_s, 1e6),
        "choose_us": summary(linear_s, 1e6),
        "report_us": summary(report_s, 1e6),
    }


def send(
    ranking: Ranking, pool: dict[InstanceName, Standing], request: RequestDemand
) -> InstanceName:
    """Chooses, and notes the request at the chosen instance, as a dispatcher with a ledger does."""
    found = ranking.choose(request)
    assert isinstance(found, Choice), "every instance is open and larger than every request"
    chosen = pool[found.instance]
    add_queued(chosen, request.priority_class.rank, request.demand_tokens)
    ranking.put(chosen)
    return chosen.instance


def pairing(count: int, rounds: int) -> dict[str, Figures]:
    """Measures rounds of pairs, each with those of the round before, and the choice of a request
    for each pair."""
    random = Random(SEED)
    rule, headroom = RebalanceRule(), HeadroomRule()
    pair_s: list[float] = []
    select_s: list[float] = []
    requests = [pools.candidates(CANDIDATES, random) for _ in range(16)]
    for _ in range(rounds):
        standings = pools.to_pair(count, random)
        found = pair(standings, rule, headroom)
        before = {p.source: p.destination for p in found[::2]}
        pair_s.append(timed(partial(pair, standings, rule, headroom, before)))
        by_name = {s.instance: s for s in standings}
        for p in found[:100]:
            own = random.choice(requests)
            ends = by_name[p.source], by_name[p.destination]
            select_s.append(timed(partial(select, own, *ends, rule, headroom)))
    return {"pairing_ms": summary(pair_s, 1e3), "selection_us": summary(select_s, 1e6)}


def simulate(mix: str, requests: int) -> Figures:
    """Runs one mix with the product's defaults."""
    lengths = mix.split("-")
    scenario = scenario_of(
        {
            "name": mix,
            "seed": SEED,
            "workload": {
                "requests": requests,
                "rate_per_s": MIXES[mix],
                "input": lengths[0],
                "output": lengths[1],
            },
            "costs": {"time_scale": TIME_SCALE},
        }
    )
    began_s, cpu_began_s = time.perf_counter(), time.process_time()
    run(scenario)
    wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_began_s
    return {
        "requests": requests,
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "requests_per_s": requests / cpu_s,
    }


def goals(by_count: ByCount, runs: dict[str, Figures]) -> list[Goal]:
    """Compares with what was wanted; runs of fewer requests are scaled up."""
    wanted = [
        (f"dispatch among {GOAL_COUNT}, us", by_count["dispatch_us"], DISPATCH_GOAL_US),
        (f"pairing of {GOAL_COUNT}, ms", by_count["pairing_ms"], PAIRING_GOAL_MS),
    ]
    rows: list[tuple[str, float, float]] = [
        (name, figures[str(GOAL_COUNT)]["p50"], most) for name, figures, most in wanted
    ]
    for mix, figures in runs.items():
        per_run_s = figures["cpu_s"] * 10_000 / figures["requests"]
        rows.append((f"10,000 requests {mix}, s", per_run_s, RUN_GOAL_S))
    return [Goal(name, most, value, value <= most) for name, value, most in rows]


def show(by_count: ByCount, runs: dict[str, Figures], reached: list[Goal]) -> None:
    """Prints tables."""
    titles = [f"{count:,}" for count in COUNTS]
    print(f"{'p50 / p99 among':<18}" + "".join(f"{title:>20}" for title in titles))
    for name, figures in by_count.items():
        cells = [f"{f['p50']:,.1f} / {f['p99']:,.1f}" for f in figures.values()]
        print(f"{name:<18}" + "".join(f"{cell:>20}" for cell in cells))
    print()
    for mix, f in runs.items():
        print(
            f"simulator {mix}: {f['requests']:,.0f} requests in {f['cpu_s']:.1f} s of CPU"
            f" ({f['wall_s']:.1f} s on the clock), {f['requests_per_s']:,.0f} requests/s"
        )
    print()
    for row in reached:
        is_met = "met" if row.is_met else "missed"
        print(f"{row.goal}: {row.value:.2f}, at most {row.at_most:g}: {is_met}")


def main(arguments: list[str] | None = None) -> int:
    """Measures, prints tables, then JSON in the last line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.policy", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    options = parser.parse_args(arguments)
    share = 10 if options.quick else 1
    by_count: ByCount = {}
    # What the benchmark itself holds would be walked again and again by the collector.
    gc.freeze()
    for count in COUNTS:
        rounds, requests = max(1, 5 // share), 400 // share
        measured = {
            **dispatch(count, rounds, requests),
            **pairing(count, rounds=max(4, 40 // share)),
        }
        for name, figures in measured.items():
            by_count.setdefault(name, {})[str(count)] = figures
    runs = {mix: simulate(mix, 10_000 // share) for mix in MIXES}
    reached = goals(by_count, runs)
    show(by_count, runs, reached)
    whole = {**by_count, "simulator": runs, "goals": [asdict(g) for g in reached]}
    print(json.dumps({**whole, "cores": os.cpu_count()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
