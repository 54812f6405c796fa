"""What every benchmark of a whole installation does around its measuring."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.migration_rig import Interrupted, end_on_signals

BAD_INPUT = 2
INTERRUPTED = 130


def run(
    measure: Callable[[], dict[str, Any]],
    *,
    problems: str,
    table: Callable[[dict[str, Any]], str] | None = None,
    save: Path | None = None,
) -> int:
    """Measures, prints what came out with one JSON line last, and returns the exit code.

    `problems`: key of the result that lists what went wrong in words; any makes the exit code 1. A
    RuntimeError of `measure` is said in its own words.
    """
    end_on_signals()
    busy_before = os.getloadavg()[0]
    began_s = time.monotonic()
    try:
        result = measure()
    except RuntimeError as error:
        print(error)
        return BAD_INPUT
    except (KeyboardInterrupt, Interrupted) as error:
        print(f"interrupted: {type(error).__name__}", flush=True)
        return INTERRUPTED
    result |= {
        "machine_load_before": round(busy_before, 2),
        "took_s": round(time.monotonic() - began_s),
    }
    for problem in result[problems]:
        print(problem)
    if table is not None:
        print(table(result))
    line = json.dumps(result)
    if save is not None:
        save.write_text(line + "\n")
    print(line)
    return int(bool(result[problems]))
