"""A short form of the chaos run (benchmarks/chaos.py): parts die under load, nothing is lost."""

import json
import subprocess
import sys

import pytest

from tests.tiny_model import ROOT

FAULTS = 6
TIMEOUT_S = 1200
"""It takes two to three minutes on two quiet cores; each of its own waits is bounded."""
pytestmark = pytest.mark.timeout(TIMEOUT_S + 60)


def test_killed_and_stopped_processes_lose_and_change_nothing() -> None:
    command = [sys.executable, "-m", "benchmarks.chaos", "--short", "--faults", str(FAULTS)]
    run = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert run.stdout, run.stderr[-3000:]
    figures = json.loads(run.stdout.splitlines()[-1])
    assert figures["problems"] == [], run.stdout[-5000:]
    assert run.returncode == 0
    assert figures["faults"] == FAULTS
    assert figures["streams_started"] > 0
    assert figures["completed"] > 0
    assert (figures["wrong"], figures["hung"]) == (0, 0)
    # Of a request whose web process died while the store lost its memory nobody knows.
    del figures["left"]["records_lost_with_store"]
    assert not any(figures["left"].values()), figures["left"]
