"""Simulations in a process of their own: the real simulator, and processes that misbehave."""

import json
import sys
from pathlib import Path

import pytest

from controlplane.whatif.apart import simulate_apart
from controlplane.whatif.values import RunFailed, RunStopped

SMALL = {"pool": {"instances": 2}, "workload": {"requests": 60, "rate_per_s": 2.0}}
TIMEOUT_S = 60


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def test_a_small_scenario_comes_back_as_the_simulators_report() -> None:
    shares: list[float] = []

    def go_on(share: float) -> bool:
        shares.append(share)
        return True

    report = simulate_apart(SMALL, go_on)
    assert report["summary"]["requests"] == 60
    assert report["scenario"]["pool"]["instances"] == 2
    assert set(report) == {"scenario", "summary", "by_class", "series", "moves", "wall_s"}
    assert shares == sorted(shares)
    assert 0 < shares[-1] <= 1


def test_a_file_that_has_gone_is_the_reason(tmp_path: Path) -> None:
    gone = {"workload": {"kind": "trace", "file": str(tmp_path / "gone.csv")}}
    with pytest.raises(RunFailed, match=r"^workload\.file: .*gone\.csv: No such file"):
        simulate_apart(gone, lambda share: True)


def test_a_run_that_is_to_stop_is_killed_in_the_middle() -> None:
    endless = python("import sys, time\nprint('{\"share\": 0.25}', flush=True)\ntime.sleep(600)")
    seen: list[float] = []

    def until_told(share: float) -> bool:
        seen.append(share)
        return len(seen) < 2

    with pytest.raises(RunStopped):
        simulate_apart(SMALL, until_told, command=endless)
    # It was asked again although the process said nothing more.
    assert seen == [0.25, 0.25]


def test_a_run_that_takes_too_long_is_ended_with_words() -> None:
    slow = python("import time; time.sleep(600)")
    with pytest.raises(RunFailed, match="longer than 0 s and was ended at 0%"):
        simulate_apart(SMALL, lambda share: True, limit_s=0.1, command=slow)


def test_what_a_broken_simulator_wrote_is_the_reason() -> None:
    broken = python("raise SystemExit('the heap is inside out')")
    with pytest.raises(RunFailed, match=r"\(exit code 1\).*the heap is inside out"):
        simulate_apart(SMALL, lambda share: True, command=broken)


def test_the_simulating_process_yields_to_serving() -> None:
    nice = python(
        "import json, os, sys\n"
        "from controlplane.whatif import child\n"
        "from engine_pool.simulator.report import Report\n"
        "child.run = lambda scenario, on_progress: "
        "Report({}, {'nice': os.nice(0)}, {}, {}, {}, 0.0)\n"
        "sys.exit(child.main())"
    )
    report = simulate_apart(SMALL, lambda share: True, command=nice)
    assert report["summary"] == {"nice": 19}
    assert json.dumps(report)
