"""What becomes of an engine's process whose parent is gone, or that is told to end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from engine_pool.oom import oom_kills
from tests.engine_pool.pool_process import is_alive, until
from tests.tiny_model import ROOT

GUARDED = """
import os, sys, time
from engine_pool import process_guard, sigterm
sigterm.asked_unix_s = lambda: 1.0 if os.path.exists(sys.argv[1]) else None
def told(): print("told", flush=True)
def end(): print("ended", flush=True); os._exit(0)
process_guard.ProcessGuard(told, end, 0.1).start()
print(os.getpid(), flush=True)
time.sleep(3600)
"""
PARENT = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]])
time.sleep(3600)
"""


def test_a_process_without_its_parent_ends(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, GUARDED, str(tmp_path / "never")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert is_alive(child)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    until(lambda: not is_alive(child))
    parent.stdout.close()


def test_sigterm_is_told_at_once_and_ends_the_process_after_its_grace(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    child = subprocess.Popen(
        [sys.executable, "-c", GUARDED, str(asked)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert int(child.stdout.readline()) == child.pid
    asked.touch()
    assert child.stdout.read().split() == ["told", "ended"]
    assert child.wait() == os.EX_OK
    child.stdout.close()


def test_the_kernels_counters_are_added_up(tmp_path: Path) -> None:
    cgroup, machine = tmp_path / "memory.events", tmp_path / "vmstat"
    cgroup.write_text("low 0\nhigh 0\noom 3\noom_kill 2\n")
    machine.write_text("pgfault 17\noom_kill 5\n")
    assert oom_kills((cgroup, machine)) == 7
    assert oom_kills((tmp_path / "none",)) == 0
