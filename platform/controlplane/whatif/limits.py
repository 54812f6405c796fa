"""How much may be simulated. Serving has priority: a run is a guest on the pool's machine."""

from typing import Final

REQUESTS_MAX: Final = 50_000
"""Five runs of the paper's size; minutes of one core."""
INSTANCES_MAX: Final = 256
"""The simulated pool is looked at in one loop; more than any pool this machine can plan for."""
QUEUED_MAX: Final = 20
"""Runs that wait. One runs at a time, so the last of them starts within hours, not days."""
RUN_LIMIT_S: Final = 1800.0
"""A scenario that takes longer is ended: 10,000 requests take 10 to 30 s of an idle core, so the
largest that is allowed ends in minutes, even beside busy engines."""
HEARTBEAT_EVERY_S: Final = 1.0
HEARTBEAT_LIMIT_S: Final = 30.0
"""A run whose worker was silent this long is failed. A busy machine delays a heartbeat by seconds,
and a worker that is started again is back sooner."""
KEPT_RUNS: Final = 200
"""Ended runs that are kept, the newest; each takes some 100 kB."""
NICENESS: Final = 19
"""Of the process that simulates: it gets what serving leaves."""
NAME_MAX_CHARS: Final = 80
