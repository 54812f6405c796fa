"""Finds and ends all processes of an installation, however deep, by a mark in their environment.

Process groups do not do: Ray's workers have their own, and outlive a killed parent.
"""

import ctypes
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

MARK = "FERRY_RUN_DIR"
"""Environment variable of every process that the supervisor starts: which installation's it is."""
PART_MARK = "FERRY_PART"
"""Environment variable: which part of the installation it belongs to."""

_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.05
_KERNEL_PARENTS = (0, 2)
"""Parents of kernel threads, which never have an environment."""
_EXEC_LOOKS = 5
_EXEC_WAIT_S = 0.002
"""An exec swaps the memory within microseconds; a zombie stays without an environment."""


def adopt_orphans() -> None:
    """Makes this process the parent of its grandchildren whose parents die. No-op off Linux."""
    if os.uname().sysname == "Linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def find_marked(run_dir: Path, part: str | None = None) -> list[psutil.Process]:
    """Returns the living processes of an installation, or of one part; never the caller itself."""
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        try:
            environ = _environ(process)
            if environ.get(MARK) != str(run_dir) or process.status() == psutil.STATUS_ZOMBIE:
                continue
        except psutil.Error:
            continue
        if part is None or environ.get(PART_MARK) == part:
            found.append(process)
    return found


def _environ(process: psutil.Process) -> dict[str, str]:
    """Returns the environment; looks again where it is empty, as it is for a moment in each exec.

    Raises psutil.Error if the process is gone or another user's.
    """
    for _ in range(_EXEC_LOOKS):
        if environ := process.environ():
            return environ
        if process.ppid() in _KERNEL_PARENTS:
            break
        time.sleep(_EXEC_WAIT_S)
    return {}


def kill_marked(run_dir: Path, part: str | None = None, timeout_s: float = 5.0) -> int:
    """Kills them all and waits until none is left. Returns how many there were.

    Looks again until a look finds none, because a process may start another while it is killed.
    """
    deadline_s = time.monotonic() + timeout_s
    seen: set[int] = set()
    while left := find_marked(run_dir, part):
        seen.update(process.pid for process in left)
        send(left, signal.SIGKILL)
        if time.monotonic() > deadline_s:
            break
        psutil.wait_procs(left, timeout=_POLL_S)
    return len(seen)


def send(processes: Sequence[psutil.Process], signal_number: int) -> None:
    for process in processes:
        try:
            process.send_signal(signal_number)
        except psutil.Error:
            continue
