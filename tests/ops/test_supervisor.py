"""The supervisor with real processes: restarts, order, and nothing left behind."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from circus.process import DEAD_OR_ZOMBIE, RUNNING

from ops.parts import Part
from ops.processes import find_marked, kill_marked
from ops.supervisor import SupervisedPart, backoff_s
from ops.terminal import PartLog

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120.0
SLEEP = [sys.executable, "-c", "import time; print('runs', flush=True); time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)",
]
DEAF = [
    *STUBBORN[:2],
    STUBBORN[2].replace("time.sleep", "print('hears nothing', flush=True); time.sleep"),
]
WITH_GRANDCHILD = [
    sys.executable,
    "-c",
    "import subprocess, sys, time;"
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
    " start_new_session=True); print('runs', flush=True); time.sleep(600)",
]


def wait_for(what: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not what():
        assert time.monotonic() < deadline_s, "what was waited for did not happen"
        time.sleep(0.05)


class Run:
    """One supervisor process over `parts`."""

    def __init__(self, folder: Path, parts: list[dict[str, object]]) -> None:
        self.folder = folder
        self.output = folder / "output"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.ops.supervised", str(folder), json.dumps(parts)],
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def text(self) -> str:
        return self.output.read_text()

    def marked(self, part: str | None = None) -> list[psutil.Process]:
        return find_marked(self.folder, part)

    def only(self, part: str) -> psutil.Process:
        """Waits for the part's process, and until it is the only one: a look can miss a process
        that is just being replaced by its program, or see its parent's copy."""
        seen: list[psutil.Process] = []

        def one_twice() -> bool:
            nonlocal seen
            before, seen = seen, self.marked(part)
            return len(seen) == 1 and seen == before

        wait_for(one_twice)
        return seen[0]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def begin(*parts: dict[str, object]) -> Run:
        runs.append(Run(tmp_path, list(parts)))
        return runs[-1]

    yield begin
    for run in runs:
        run.process.kill()
        run.process.wait(DEADLINE_S)
    kill_marked(tmp_path)


def test_the_wait_before_a_restart_doubles_up_to_a_minute() -> None:
    assert [backoff_s(quick_ends) for quick_ends in (1, 2, 3, 7, 30)] == [1, 2, 4, 60, 60]


def test_a_killed_part_comes_back_and_the_log_says_why(start: Callable[..., Run]) -> None:
    run = start({"name": "web", "command": SLEEP})
    first = run.only("web")
    wait_for(lambda: "runs" in run.text())
    first.kill()
    wait_for(lambda: any(other.pid != first.pid for other in run.marked("web")))
    assert re.search(r"web ended: killed by SIGKILL; restart in 1 s", run.text())


def test_a_part_that_keeps_failing_waits_longer_each_time(start: Callable[..., Run]) -> None:
    run = start({"name": "pool", "command": [sys.executable, "-c", "raise SystemExit(3)"]})
    wait_for(lambda: "restart in 4 s" in run.text())
    waits = re.findall(r"ferry  \| pool ended: exit code 3; restart in (\d) s", run.text())
    assert waits == ["1", "2", "4"]


def test_grandchildren_of_a_killed_part_end_before_it_comes_back(
    start: Callable[..., Run],
) -> None:
    run = start({"name": "ray", "command": WITH_GRANDCHILD})
    wait_for(lambda: len(run.marked("ray")) == 2)
    parent, child = sorted(run.marked("ray"), key=lambda process: process.pid)
    parent.kill()
    wait_for(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    wait_for(lambda: len(run.marked("ray")) == 2)


def test_parts_that_die_together_all_come_back_each_time(start: Callable[..., Run]) -> None:
    # Their grandchildren hold their pipes open, so that the supervisor never reads an end of file.
    parts = ({"name": name, "command": WITH_GRANDCHILD} for name in ("first", "second"))
    run = start(*parts)
    for ends in (1, 2):
        wait_for(lambda ends=ends: run.text().count("| runs") == 2 * ends)
        first, second = (min(run.marked(n), key=_age) for n in ("first", "second"))
        # Who dies first starts first, and gets the lowest number of a pipe: the other one's.
        for process, name in ((second, "second"), (first, "first")):
            process.kill()
            wait_for(lambda name=name, ends=ends: run.text().count(f"| {name} ended") == ends)
    wait_for(lambda: run.text().count("| runs") == 6)
    assert "added twice" not in run.text()


def _age(process: psutil.Process) -> float:
    return float(process.create_time())


def test_a_stop_leaves_nothing_even_of_stubborn_parts(start: Callable[..., Run]) -> None:
    run = start(
        {"name": "ray", "command": WITH_GRANDCHILD, "stop_rank": 1, "stop_timeout_s": 1.0},
        {"name": "web", "command": STUBBORN, "stop_timeout_s": 1.0},
    )
    wait_for(lambda: "all started" in run.text() and len(run.marked()) == 3)
    run.process.terminate()
    assert run.process.wait(DEADLINE_S) == 0
    assert run.marked() == []


def test_parts_end_when_the_supervisor_is_killed(start: Callable[..., Run]) -> None:
    run = start({"name": "web", "command": SLEEP})
    wait_for(lambda: "runs" in run.text())
    os.kill(run.process.pid, signal.SIGKILL)
    wait_for(lambda: run.marked() == [])


def test_a_part_starts_only_after_what_it_needs(start: Callable[..., Run]) -> None:
    slow = [
        sys.executable,
        "-c",
        "import time; time.sleep(1); print('I answer', flush=True); time.sleep(600)",
    ]
    run = start(
        {"name": "pool", "command": SLEEP, "needs": ["store"]},
        {"name": "store", "command": slow, "ready_line": "I answer"},
    )
    wait_for(lambda: "all started" in run.text())
    wait_for(lambda: "runs" in run.text())
    assert run.text().index("I answer") < run.text().index("runs")


def test_a_part_restarts_with_the_one_it_cannot_live_without(start: Callable[..., Run]) -> None:
    run = start(
        {"name": "ray", "command": SLEEP},
        {"name": "pool", "command": SLEEP, "needs": ["ray"], "restarts_with": ["ray"]},
    )
    pool = run.only("pool")
    wait_for(lambda: run.text().count("runs") == 2)
    run.only("ray").kill()
    wait_for(lambda: any(other.pid != pool.pid for other in run.marked("pool")))


def test_a_part_that_does_not_go_is_killed_before_its_restart(start: Callable[..., Run]) -> None:
    """A web server whose Ray is gone may wait for it for ever while it shuts down."""
    run = start(
        {"name": "ray", "command": SLEEP},
        {
            "name": "web",
            "command": DEAF,
            "needs": ["ray"],
            "restarts_with": ["ray"],
            "stop_timeout_s": 0.5,
        },
    )
    web = run.only("web")
    wait_for(lambda: "hears nothing" in run.text())
    run.only("ray").kill()
    wait_for(lambda: any(other.pid != web.pid for other in run.marked("web")))
    wait_for(lambda: "web ended: killed by SIGKILL" in run.text())


class DyingProcess:
    """A process that lives when it is looked at first and is dead at the second look."""

    pid = 1
    started = 0.0

    def __init__(self) -> None:
        self._states = iter([RUNNING])

    def is_alive(self) -> bool:
        return True

    @property
    def status(self) -> object:
        return next(self._states, DEAD_OR_ZOMBIE)


def test_a_part_that_dies_while_it_is_looked_at_is_not_dropped_unseen(tmp_path: Path) -> None:
    part = Part("web", tuple(SLEEP))
    log = PartLog("web", tmp_path, show_all=False, on_line=lambda line: None)
    watched = SupervisedPart(part, {}, tmp_path, log)
    watched._status = "active"
    dying = DyingProcess()
    watched.processes[dying.pid] = dying
    asyncio.run(watched.manage_processes())
    assert watched.processes == {dying.pid: dying}


def test_a_failed_setup_ends_the_start(start: Callable[..., Run]) -> None:
    failing = [sys.executable, "-c", "raise SystemExit(7)"]
    run = start(
        {"name": "setup", "command": failing, "once": True},
        {"name": "pool", "command": SLEEP, "needs": ["setup"]},
    )
    assert run.process.wait(DEADLINE_S) == 1
    assert "setup failed: exit code 7" in run.text()
    assert run.marked() == []
