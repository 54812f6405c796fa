"""Simulates in a process of its own, which can be slowed down, watched and ended.

The worker is one process with two threads (ops/parts.py): a simulation in a thread would take the
interpreter from the other tasks, could not be nice to the engines alone, and nothing could end it.
"""

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from controlplane.whatif.limits import HEARTBEAT_EVERY_S, RUN_LIMIT_S
from controlplane.whatif.values import GoOn, Report, RunFailed, RunStopped, Scenario

CHILD: Final = (sys.executable, "-m", "controlplane.whatif.child")
ROOT: Final = Path(__file__).resolve().parents[3]
ERROR_MAX_CHARS: Final = 2000
"""Of the end of what a broken simulator wrote."""
READ_BYTES: Final = 1 << 16
END_TIMEOUT_S: Final = 5.0


def simulate_apart(
    scenario: Scenario,
    go_on: GoOn,
    *,
    limit_s: float = RUN_LIMIT_S,
    command: tuple[str, ...] = CHILD,
) -> Report:
    """Carries out one scenario, files by their paths, in a child process.

    Raises: RunStopped, RunFailed, OSError.
    """
    with tempfile.TemporaryFile() as words, _child(command, words) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        # Short: a scenario is far smaller than a pipe's buffer.
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(json.dumps(scenario).encode() + b"\n")
            child.stdin.close()
        share, until_s = 0.0, time.monotonic() + limit_s
        for line in _lines(child.stdout):
            if line is not None:
                told = json.loads(line)
                if "report" in told:
                    report: Report = told["report"]
                    return report
                if "error" in told:
                    raise RunFailed(str(told["error"]))
                share = float(told["share"])
            if not go_on(share):
                raise RunStopped
            if time.monotonic() > until_s:
                raise RunFailed(
                    f"It took longer than {limit_s:.0f} s and was ended at {share:.0%}. Ask for "
                    "fewer requests or instances, or a load that the pool can serve."
                )
        raise RunFailed(_last_words(child, words))


@contextlib.contextmanager
def _child(command: tuple[str, ...], words: IO[bytes]) -> Iterator["subprocess.Popen[bytes]"]:
    """Starts the process; it is gone afterwards, whatever happens."""
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}"}
    child = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # A file: nobody empties a pipe while it runs, and a full one would hold it up.
        stderr=words,
    )
    with child:
        try:
            yield child
        finally:
            child.kill()
            child.wait(END_TIMEOUT_S)


def _lines(stdout: IO[bytes]) -> Iterator[bytes | None]:
    """Gives each line, and None when a second brought none; ends with the process's output."""
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(HEARTBEAT_EVERY_S):
                yield None
                continue
            data = os.read(stdout.fileno(), READ_BYTES)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            yield from lines


def _last_words(child: "subprocess.Popen[bytes]", words: IO[bytes]) -> str:
    code = child.wait(END_TIMEOUT_S)
    words.seek(0)
    wrote = words.read().decode(errors="replace").strip()[-ERROR_MAX_CHARS:]
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return f"The simulator ended without a result ({how}). It wrote: {wrote or 'nothing'}"
