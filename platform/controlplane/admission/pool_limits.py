"""The pools' own limits in memory, read again every REFRESH_EVERY_S in a thread of its own."""

import logging
import threading
from collections.abc import Mapping
from typing import Final

from django.db import DatabaseError, close_old_connections

from controlplane.admission.verdict import NO_POOL_LIMITS, PoolLimits
from controlplane.fleet.models import Pool

logger = logging.getLogger(__name__)

REFRESH_EVERY_S: Final = 0.5
"""With the query's own time still below the second after which a change must hold everywhere."""


class PoolLimitBook:
    """One a web process. While the database is away the last known limits count."""

    def __init__(self) -> None:
        self._limits: Mapping[str, PoolLimits] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_away = False

    def of(self, pool: str) -> PoolLimits:
        """Returns a pool's limits; none for a pool that the database does not have. Never waits."""
        return self._limits.get(pool, NO_POOL_LIMITS)

    def start(self) -> None:
        """Begins to follow the database. Safe to call again."""
        if self._thread is None:
            self._stop.clear()
            self._thread = threading.Thread(target=self._follow, name="pool limits", daemon=True)
            self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Ends what `start` began."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stop.set()
            thread.join(timeout_s)

    def refresh(self) -> None:
        """Reads the limits. One query; what is not read leaves the known ones as they are."""
        try:
            close_old_connections()
            rows = Pool.objects.values_list(
                "name", "requests_per_minute", "tokens_per_minute", "concurrency"
            )
            self._limits = {name: PoolLimits(*numbers) for name, *numbers in rows}
        except DatabaseError as error:
            if not self._is_away:
                logger.warning("the pools' limits are not read: %s", type(error).__name__)
            self._is_away = True
        else:
            self._is_away = False

    def _follow(self) -> None:
        while True:
            self.refresh()
            if self._stop.wait(REFRESH_EVERY_S):
                return
