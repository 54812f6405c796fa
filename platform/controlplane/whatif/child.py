"""The process that simulates: a scenario comes on standard input, lines of JSON go out.

    {"share": 0.42}      so much is done
    {"report": {...}}    the end
    {"error": "..."}     the end, without a result

It knows nothing of Django, so it starts in a tenth of a second, and it ends when nobody reads it.
"""

import json
import os
import sys
import time
from typing import Final

from controlplane.whatif.limits import NICENESS
from engine_pool.simulator.run import run
from engine_pool.simulator.scenario import scenario_of
from engine_pool.simulator.scenario_fields import ScenarioError

TELL_EVERY_S: Final = 0.25


class _Teller:
    """Writes how far the run is, not more often than anybody looks."""

    def __init__(self) -> None:
        self._told_s = 0.0

    def __call__(self, share: float) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s >= TELL_EVERY_S:
            self._told_s = now_s
            _write({"share": share})


def main() -> int:
    """Simulates one scenario; returns the exit code."""
    os.nice(NICENESS)
    values = json.loads(sys.stdin.readline())
    try:
        report = run(scenario_of(values), on_progress=_Teller())
    except ScenarioError as error:
        # It was checked when it was asked for; a file may have gone since.
        _write({"error": str(error)})
    else:
        _write({"report": report.to_dict()})
    return 0


def _write(message: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(message, allow_nan=False) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
