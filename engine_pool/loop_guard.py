"""Ends a process whose event loop stands still, with the stacks of all its threads in its log.

Whoever runs the process starts it again; one that hangs for ever is started by nobody. The timer is
faulthandler's: its thread needs neither the event loop nor the interpreter's lock, so it also sees
what a library has locked up.
"""

import asyncio
import faulthandler
import sys
from typing import Final

TICK_S: Final = 1.0
LIMIT_S: Final = 30.0
"""Far above what a busy machine keeps a loop from running, or an engine's launch takes of it."""


async def guard_loop(limit_s: float = LIMIT_S) -> None:
    """Lets the process go on as long as this task gets its turn; one a process, until it is
    cancelled. The exit code is 1."""
    try:
        while True:
            faulthandler.dump_traceback_later(limit_s, exit=True, file=sys.stderr)
            await asyncio.sleep(TICK_S)
    finally:
        faulthandler.cancel_dump_traceback_later()
