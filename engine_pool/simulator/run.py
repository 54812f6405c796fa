"""Runs a scenario in virtual time: `python -m engine_pool.simulator.run scenario.toml`.

The workload depends on scenario and seed only, so that two policies meet the very same requests.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from engine_pool.simulator import report
from engine_pool.simulator.report import Report
from engine_pool.simulator.scenario import Scenario, load_scenario
from engine_pool.simulator.scenario_fields import ScenarioError
from engine_pool.simulator.sim_request import Arrival
from engine_pool.simulator.trace import TraceError, read_trace
from engine_pool.simulator.workload import MIXES, DrawnWorkload, draw, replay
from engine_pool.simulator.world import World

PROGRESS_CALLS = 100


def run(scenario: Scenario, on_progress: Callable[[float], None] | None = None) -> Report:
    """Runs a scenario to its end.

    `on_progress` gets the share of the requests that have finished, about 100 times; what it
    raises ends the run. Raises: ScenarioError when the workload cannot be had, or has a request
    that no instance could hold.
    """
    started_s = time.perf_counter()
    world = World(scenario, workload_of(scenario))
    world.run(_reporting(on_progress, len(world.requests)) if on_progress else None)
    world.check_integrity()
    instance_seconds = sum(i.seconds_until(world.last_arrival_s) for i in world.instances)
    pool = report.pool_numbers(
        world.samples, duration_s=world.last_arrival_s, instance_seconds=instance_seconds
    )
    moves = report.move_numbers(world.moves)
    return Report(
        scenario=scenario.to_dict(),
        summary={
            **report.request_numbers(world.requests),
            **pool,
            "finished_s": world.now_s,
            "requests_per_s": len(world.requests) / (time.perf_counter() - started_s),
        },
        by_class=report.by_class(world.requests),
        series=world.series.to_dict(),
        moves=moves,
        wall_s=time.perf_counter() - started_s,
    )


def _reporting(on_progress: Callable[[float], None], requests: int) -> Callable[[int], None]:
    every = max(1, requests // PROGRESS_CALLS)

    def finished(count: int) -> None:
        if count % every == 0 or count == requests:
            on_progress(count / requests)

    return finished


def workload_of(scenario: Scenario) -> list[Arrival]:
    """Draws or reads the requests of a scenario. Raises: ScenarioError."""
    w = scenario.workload
    if w.kind == "trace":
        try:
            rows = read_trace(Path(w.file), w.requests)
        except TraceError as error:
            raise ScenarioError("workload.file", str(error)) from error
        arrivals = replay(
            rows,
            rate_per_s=None if w.as_recorded else w.rate_per_s,
            input_cap_tokens=w.input_cap_tokens,
            output_cap_tokens=w.output_cap_tokens,
            high_share=w.high_share,
            seed=scenario.seed,
        )
    else:
        assert w.rate_per_s is not None, "checked when the scenario was read"
        drawn = DrawnWorkload(
            requests=w.requests,
            rate_per_s=w.rate_per_s,
            cv=w.cv,
            input_mix=MIXES[w.input],
            output_mix=MIXES[w.output],
            input_cap_tokens=w.input_cap_tokens,
            output_cap_tokens=w.output_cap_tokens,
            high_share=w.high_share,
        )
        arrivals = draw(drawn, scenario.seed)
    _check_lengths(scenario, arrivals)
    return arrivals


def _check_lengths(scenario: Scenario, arrivals: list[Arrival]) -> None:
    """Every request must fit an empty instance, or it would wait for ever."""
    pool = scenario.pool
    blocks = pool.capacity_tokens // pool.block_size_tokens
    holds = (blocks - int(blocks * pool.watermark)) * pool.block_size_tokens
    longest = max(arrivals, key=lambda a: a.prompt_tokens + a.output_tokens)
    tokens = longest.prompt_tokens + longest.output_tokens
    # The last token is computed nowhere; what comes before it may have to be computed anew.
    if (tokens // pool.block_size_tokens + 1) * pool.block_size_tokens > holds:
        raise ScenarioError(
            "pool.capacity_tokens",
            f"request {longest.index} gets {tokens} tokens long, an instance holds {holds}: "
            "raise it, or lower workload.input_cap_tokens and output_cap_tokens",
        )


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit code: 2 for a scenario that cannot be run."""
    parser = argparse.ArgumentParser(
        prog="python -m engine_pool.simulator.run", description=__doc__
    )
    parser.add_argument("scenario", type=Path, help="a TOML file, see scenarios/")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the whole report there")
    parser.add_argument("--seed", type=int, help="instead of the scenario's")
    options = parser.parse_args(arguments)
    try:
        scenario = load_scenario(options.scenario)
        if options.seed is not None:
            scenario = replace(scenario, seed=options.seed)
        with tqdm(total=100, unit="%", desc=scenario.name, leave=False) as bar:
            found = run(scenario, lambda share: _show(bar, share))
    except ScenarioError as error:
        sys.stderr.write(f"{options.scenario}: {error}\n")
        return 2
    if options.json is not None:
        try:
            options.json.write_text(json.dumps(found.to_dict(), indent=1), encoding="utf-8")
        except OSError as error:
            sys.stderr.write(f"{options.json}: {error.strerror or error}\n")
            return 2
    sys.stdout.write("\n".join((*report.readable(found), "")))
    short = {key: value for key, value in found.to_dict().items() if key != "series"}
    sys.stdout.write(json.dumps(short) + "\n")
    return 0


def _show(bar: "tqdm[object]", share: float) -> None:
    bar.update(round(share * 100) - bar.n)


if __name__ == "__main__":
    sys.exit(main())
