"""A process whose event loop stands still ends, and says where it stood."""

import subprocess
import sys

from tests.tiny_model import ROOT

PROGRAM = """
import asyncio, time
from engine_pool.loop_guard import guard_loop

async def main():
    guard = asyncio.create_task(guard_loop({limit_s}))
    await asyncio.sleep(0.1)
    {work}
    guard.cancel()
    await asyncio.wait({{guard}})
    time.sleep({limit_s} + 0.2)  # nobody is guarded any more
    print("went on")

asyncio.run(main())
"""
LIMIT_S = 1.5
"""Above the guard's own tick."""


def run(work: str) -> "subprocess.CompletedProcess[str]":
    program = PROGRAM.format(limit_s=LIMIT_S, work=work)
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_loop_that_stands_still_ends_its_process_and_tells_where() -> None:
    ended = run("time.sleep(100)")
    assert ended.returncode == 1
    assert "Timeout" in ended.stderr
    assert "in main" in ended.stderr
    assert "went on" not in ended.stdout


def test_a_loop_that_runs_is_left_alone() -> None:
    ended = run(f"await asyncio.sleep({2 * LIMIT_S})")
    assert (ended.returncode, ended.stdout) == (0, "went on\n")
