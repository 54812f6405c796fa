"""Reproduces the paper's evaluation in the simulator, on the product's own policy.

    python -m benchmarks.paper [--quick] [--seeds N] [--save FILE] [--table FILE]
                               [--only PART] [--mixes S-S,M-M] [--add FILE]

Every comparison is paired: the same arrivals and lengths under both policies, seed by seed, with
the same in-flight ledger. Five mixes of lengths around each one's knee, then two classes among
bursts, then a number of instances that follows the load, and what that costs at equal P99. One set
of defaults for "ours" in every row; the paper's own settings beside it. Prints the rows, the
summary against its goals, and JSON last. About half an hour on two cores; --quick takes a minute
and says nothing about the goals.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from tqdm import tqdm

from benchmarks.paper_cases import MIXES, REQUESTS, SEEDS, Job, Run, all_jobs
from benchmarks.paper_stats import as_json
from benchmarks.paper_table import cost_curve, markdown, rows, summary, verdict
from engine_pool.simulator.run import run as simulate
from engine_pool.simulator.scenario import scenario_of

QUICK_SEEDS: Final = 2
QUICK_REQUESTS: Final = 400


def carry_out(job: Job) -> Run:
    """Simulates one job, in a process of its own."""
    report = simulate(scenario_of(job.scenario))
    found: dict[str, float] = {k: v for k, v in report.summary.items() if v is not None}
    for name, numbers in report.by_class.items():
        found |= {f"{name}_{k}": v for k, v in numbers.items() if v is not None}
    found["moves"] = float(str(report.moves["committed"]))
    return replace(job.run, summary=found, wall_s=report.wall_s)


def carry_out_all(jobs: Sequence[Job]) -> list[Run]:
    """Simulates all jobs, one process a core; the order of the results is the jobs'."""
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        done = processes.map(carry_out, jobs, chunksize=1)
        return list(tqdm(done, total=len(jobs), unit="run", disable=not sys.stderr.isatty()))


def _case(run: Run) -> tuple[object, ...]:
    """Tells a run from all others, whatever came out."""
    r = run
    return (r.experiment, r.mix, r.rate, r.cv, r.policy, r.seed, r.band_low, r.band_high)


def result(runs: Sequence[Run], wall_s: float) -> dict[str, Any]:
    """Returns everything for the last line."""
    made = rows(runs)
    return {
        "rows": [as_json(row) for row in made],
        "summary": summary(runs, made),
        "cost_curve": {p: cost_curve(runs, p) for p in ("baseline", "ours")},
        "runs": len(runs),
        "wall_s": round(wall_s, 1),
    }


def show(found: dict[str, Any], table: str) -> None:
    """Prints the table and the summary for people."""
    print(table)
    print()
    for name, value in found["summary"].items():
        print(f"{name:28} {'-' if value is None else f'{value:10.4g}'}  {verdict(name, value)}")
    print()


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="only to see that it works")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--only", choices=("serving", "priorities", "scaling"), help="a part of it")
    parser.add_argument("--mixes", default=",".join(MIXES), help="some of them, with commas")
    parser.add_argument("--add", type=Path, help="other runs that --save has kept")
    parser.add_argument("--save", type=Path, help="all runs as JSON, for benchmarks.paper_plot")
    parser.add_argument("--table", type=Path, help="the table as Markdown")
    parsed = parser.parse_args(arguments)
    if parsed.quick:
        parsed.seeds, parsed.requests = QUICK_SEEDS, QUICK_REQUESTS
    parsed.mixes = parsed.mixes.split(",")
    if unknown := set(parsed.mixes) - set(MIXES):
        parser.error(f"--mixes: {', '.join(sorted(unknown))}: expected some of {', '.join(MIXES)}")
    if parsed.seeds < 1 or parsed.requests < 1:
        parser.error("--seeds and --requests: at least 1")
    return parsed


def main(arguments: Sequence[str]) -> int:
    wanted = parse(arguments)
    began_s = time.monotonic()
    jobs = all_jobs(wanted.seeds, wanted.requests, wanted.only, wanted.mixes)
    runs = carry_out_all(jobs)
    if wanted.add:
        kept = [Run(**run) for run in json.loads(wanted.add.read_text())["runs"]]
        new = {_case(run) for run in runs}
        runs += [run for run in kept if _case(run) not in new]
    if wanted.save:
        wanted.save.write_text(json.dumps({"runs": [asdict(r) for r in runs]}))
    found = result(runs, time.monotonic() - began_s)
    table = markdown(rows(runs))
    if wanted.table:
        wanted.table.write_text(table + "\n")
    show(found, table)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
