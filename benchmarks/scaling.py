"""What the scaling loop does to loads that go up and down: live, and in the simulator.

Six traces (spike, step, zero, flat, sawtooth, and reports that are no numbers). First in a whole
installation with simulated engines, where the real worker checks once a second; then in the
simulator, half an hour each, beside a fixed pool of the most instances and beside queue-length
scaling as KEDA does it, with and without moves of running requests. Figures of the simulator are
medians over repeats, with least and most.

    python -m benchmarks.scaling [--only live|simulated] [--trace NAME] [--repeats 3] [--save FILE]

Live five and a half minutes, simulated two on an idle core. The last line is JSON. Exit code 1: a
request failed, fewer instances served than the least, or two decisions were stored for one check.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks import scaling_live, scaling_simulated, session
from benchmarks.scaling_figures import table
from benchmarks.scaling_traces import TRACES

SIMULATED, LIVE = "simulated", "live"


def measure(only: str, trace: str, repeats: int) -> dict[str, Any]:
    result: dict[str, Any] = {"problems": []}
    if only != SIMULATED:
        figures, problems, words = scaling_live.measure(trace)
        result |= {"live": figures, "problems": problems, "decisions": words}
    if only != LIVE:
        simulated = scaling_simulated.measure(repeats, trace)
        result |= {"simulated": simulated, "repeats": repeats}
    return result


def in_words(result: dict[str, Any]) -> str:
    return table(result["simulated"]) if "simulated" in result else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=(LIVE, SIMULATED), default="")
    parser.add_argument("--trace", choices=[t.name for t in TRACES], default="")
    parser.add_argument("--repeats", type=int, default=3, help="of the simulator, other seeds each")
    parser.add_argument("--save", type=Path, help="the last line, into a file too")
    options = parser.parse_args()
    return session.run(
        lambda: measure(options.only, options.trace, options.repeats),
        problems="problems",
        table=in_words,
        save=options.save,
    )


if __name__ == "__main__":
    sys.exit(main())
