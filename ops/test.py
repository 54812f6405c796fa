"""`make test`: installs what the tests need and the machine lacks, then lints and tests.

    python -m ops.test [PYTEST_ARGUMENT...]

Without arguments every test runs, in LANES (2 unless the environment says otherwise) lanes beside
each other; what uses the database runs a second time, on a real PostgreSQL server. With a path
or an expression (`tests/web`, `-k moves`) pytest runs once, with just that. Options alone
(`--durations=20`) go to every run.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from ops import lint
from ops.postgresql import running_postgresql
from ops.settings import ROOT

PROGRAMS = {"chromium": "chromium", "node": "nodejs", "pg_ctlcluster": "postgresql"}
"""Program -> Debian package. The page tests drive a real browser and run the browser's modules
without one; the database's tests run on a real PostgreSQL (its server is not on the path, its
control program is)."""
DATABASE_VARIABLE = "FERRY_TEST_DATABASE_URL"
"""Of a server on which the tests may make databases; tests/conftest.py reads it."""
LANES_ALLOWED = ("1", "2", "3")
LANES_DEFAULT = "2"
"""A third makes use of what two cores have left, and everything slower: for machines with more."""
RUN_TIMEOUT_S = 3600.0
"""Of one pytest process: three times what all tests take on a slow machine."""
END_TIMEOUT_S = 10.0
"""For a killed process to be gone, and for the last lines of one that has ended."""
TAIL_LINES = 400
"""Kept of a run's output, so that what failed stands at the end again."""
SUMMARY = "short test summary info"


@dataclass(frozen=True, slots=True)
class Run:
    """One pytest process."""

    name: str
    arguments: tuple[str, ...]
    is_on_postgresql: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """How a run ended."""

    run: Run
    code: int
    took_s: float
    summary: tuple[str, ...]


ENGINES = ("tests/engine_pool", "tests/migration", "tests/simulator", "tests/parity")
RUNS = (
    # Installations wait for processes to start and to die for half of their time, the rest
    # computes. The longest begins first.
    Run("installations", ("tests/integration",)),
    Run("parts", ("tests", *(f"--ignore={f}" for f in ("tests/integration", *ENGINES)))),
    Run("engines", ENGINES),
    Run("postgresql", ("tests", "--database-only"), is_on_postgresql=True),
)
"""All tests. Each lane that is free takes the next."""


def main() -> int:
    arguments = sys.argv[1:]
    packages = [package for program, package in PROGRAMS.items() if not shutil.which(program)]
    if packages and not _install(packages):
        return 1
    if lint.main():
        return 1
    if any(not argument.startswith("-") for argument in arguments):
        command = [sys.executable, "-m", "pytest", *arguments]
        return subprocess.run(command, cwd=ROOT, check=False).returncode
    count = os.environ.get("LANES") or LANES_DEFAULT
    if count not in LANES_ALLOWED:
        print(f"ferry  | LANES={count!r}: expected one of {', '.join(LANES_ALLOWED)}")
        return 2
    return run_all(RUNS, int(count), arguments)


def run_all(runs: Sequence[Run], lanes: int, options: Sequence[str]) -> int:
    """Does all runs, so many beside each other, whatever fails. Returns the exit code."""
    with ThreadPoolExecutor(max_workers=lanes) as threads:
        results = list(threads.map(lambda run: _run(run, options), runs))
    for result in results:
        print("\n".join(("", *result.summary)) if result.code else "", flush=True)
    for result in results:
        word = "passed" if result.code == 0 else f"FAILED ({result.code})"
        print(f"ferry  | {result.run.name}: {word} in {result.took_s:.0f} s", flush=True)
    return max(int(result.code != 0) for result in results)


def _run(run: Run, options: Sequence[str]) -> Result:
    began_s = time.monotonic()
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    # Runs beside each other must not overwrite each other's list of what failed last.
    cache = f"cache_dir=.pytest_cache/{run.name}"
    command = [sys.executable, "-m", "pytest", *run.arguments, "-o", cache, *options]
    with _database(run) as environ:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        reader = Thread(target=_show, args=(process, run.name, tail), daemon=True)
        reader.start()
        try:
            code = process.wait(RUN_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait(END_TIMEOUT_S)
        # A process that a test has left behind may hold the pipe open: nobody waits for that.
        reader.join(END_TIMEOUT_S)
    return Result(run, code, time.monotonic() - began_s, _summary_of(tail))


def _show(process: "subprocess.Popen[str]", name: str, tail: deque[str]) -> None:
    """Shows a run's output under its name, and keeps the end of it."""
    assert process.stdout is not None
    for line in process.stdout:
        print(f"{name:13} | {line}", end="", flush=True)
        tail.append(f"{name:13} | {line.rstrip()}")


@contextlib.contextmanager
def _database(run: Run) -> Iterator[dict[str, str]]:
    """Gives the run's environment; of one on PostgreSQL, while a server runs for it."""
    if not run.is_on_postgresql:
        yield dict(os.environ)
        return
    with (
        tempfile.TemporaryDirectory(prefix="ferry-postgresql-") as folder,
        running_postgresql(Path(folder)) as url,
    ):
        yield {**os.environ, DATABASE_VARIABLE: url}


def _summary_of(tail: Sequence[str]) -> tuple[str, ...]:
    """Returns the lines from pytest's summary on, or the last few where it has none."""
    lines = tuple(tail)
    begins = [n for n, line in enumerate(lines) if SUMMARY in line]
    return lines[begins[-1] :] if begins else lines[-20:]


def _install(packages: list[str]) -> bool:
    """Installs Debian packages. Returns whether they are there; says what to do if not."""
    names = " ".join(packages)
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        print(f"ferry  | the tests need {names}; install with: sudo apt-get install {names}")
        return False
    print(f"ferry  | installing {names}", flush=True)
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    quiet = ["-qq", "-o", "Dpkg::Use-Pty=0"]
    install = ["apt-get", "install", *quiet, "-y", "--no-install-recommends", *packages]
    for command in (["apt-get", "update", *quiet], install):
        if subprocess.run(command, env=environ, check=False, stdout=subprocess.DEVNULL).returncode:
            print(f"ferry  | failed: {' '.join(command)}")
            return False
    return True


if __name__ == "__main__":
    sys.exit(main())
