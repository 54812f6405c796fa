"""Watches over an engine's process from a thread of its own: SIGTERM, and a parent that is gone.

Neither may depend on the pool process, which may be away, nor on the step thread, which may hang.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Final

from engine_pool import sigterm

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 0.2
"""Between two looks; each costs two system calls."""
ORPHAN_EXIT_CODE: Final = 71
"""EX_OSERR of sysexits.h: the raylet that started this process is gone."""


class ProcessGuard:
    """One a process. `told`: SIGTERM has come; `deadline`: `grace_s` later, ends the process."""

    def __init__(
        self, told: Callable[[], None], deadline: Callable[[], None], grace_s: float
    ) -> None:
        self._told = told
        self._deadline = deadline
        self._grace_s = grace_s
        self._parent = os.getppid()
        self._thread = threading.Thread(target=self._run, name="guard", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        told_s: float | None = None
        while True:
            if os.getppid() != self._parent:
                # Its raylet is gone: nobody can reach it, and its successor runs elsewhere.
                log.error("the parent process is gone; this one ends")
                os._exit(ORPHAN_EXIT_CODE)
            if told_s is None and sigterm.asked_unix_s() is not None:
                told_s = time.monotonic()
                self._told()
            if told_s is not None and time.monotonic() - told_s >= self._grace_s:
                self._deadline()
                return
            time.sleep(LOOK_EVERY_S)
