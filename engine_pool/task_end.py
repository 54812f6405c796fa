"""The end of an event loop's own tasks."""

import asyncio
import logging
from collections.abc import Collection

logger = logging.getLogger(__name__)

END_WITHIN_S = 5.0
"""A task that is cancelled ends within milliseconds, one that still writes what it has in 2 s."""


async def end_tasks(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancels tasks and waits until they have ended; gives up on one that does not, and says so.

    How each ended is the caller's to look at.
    """
    for task in tasks:
        task.cancel()
    if not tasks:
        return
    ended, pending = await asyncio.wait(tasks, timeout=END_WITHIN_S)
    for task in ended:
        if not task.cancelled():
            # Asked for, so that asyncio does not tell of it as of one that nobody has looked at.
            task.exception()
    if pending:
        logger.error("did not end: %s", ", ".join(sorted(task.get_name() for task in pending)))
