"""What a web process keeps in memory of the database and reads again and again."""

import logging
import threading
from typing import Final

from django.db import DatabaseError, close_old_connections

logger = logging.getLogger(__name__)

REFRESH_EVERY_S: Final = 0.5
"""With the query's own time still below the second after which a change must hold everywhere."""


class Follower:
    """Reads in a thread of its own every REFRESH_EVERY_S, so that no request waits for a query.

    While the database is away what was read last counts. A subclass says what is read.
    """

    what = ""
    """In words, for the log and the thread's name: prices."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._is_away = False

    def read(self) -> None:
        """Replaces what is known by what the database says now. Raises: DatabaseError."""
        raise NotImplementedError

    def start(self) -> None:
        """Begins to follow the database. Safe to call again."""
        with self._lock:
            if self._thread is None:
                self._stop.clear()
                self._thread = threading.Thread(target=self._follow, name=self.what, daemon=True)
                self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Ends what `start` began."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._stop.set()
            thread.join(timeout_s)

    def refresh(self) -> None:
        """Reads once; what is not read leaves the known as it is."""
        try:
            close_old_connections()
            self.read()
        except DatabaseError as error:
            if not self._is_away:
                logger.warning("%s are not read: %s", self.what, type(error).__name__)
            self._is_away = True
        else:
            self._is_away = False

    def _follow(self) -> None:
        while True:
            self.refresh()
            if self._stop.wait(REFRESH_EVERY_S):
                return
