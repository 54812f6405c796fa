"""Moves at random between real engines: a short run of the soak (benchmarks/migration_soak.py)."""

import json
import subprocess
import sys

from tests.tiny_model import ROOT

MOVES = 60
TIMEOUT_S = 280
"""Four engines start, requests of nine kinds run twice: a minute on two quiet cores."""


def test_random_moves_lose_and_change_nothing():
    command = [sys.executable, "-m", "benchmarks.migration_soak", "--moves", str(MOVES)]
    run = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert run.stdout, run.stderr[-3000:]
    figures = json.loads(run.stdout.splitlines()[-1])
    assert figures["problems"] == []
    assert run.returncode == 0
    assert figures["right"] == figures["requests"] > 0
    assert figures["ends"]["committed"] > 0
    assert figures["moves"] >= MOVES
