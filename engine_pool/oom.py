"""Whether the kernel ends processes for want of memory, by its own counters.

They say that it did, not whom: a caller that saw an engine die compares them with before.
"""

import contextlib
from pathlib import Path
from typing import Final

COUNTERS: Final = (Path("/sys/fs/cgroup/memory.events"), Path("/proc/vmstat"))
"""Of this container's own memory limit (cgroup v2), and of the whole machine."""


def oom_kills(counters: tuple[Path, ...] = COUNTERS) -> int:
    """Returns how many processes the kernel has ended so far; 0 where it does not say."""
    found = 0
    for path in counters:
        with contextlib.suppress(OSError, ValueError):
            lines = (line.split() for line in path.read_text().splitlines())
            found += sum(int(line[1]) for line in lines if line[0] == "oom_kill")
    return found
