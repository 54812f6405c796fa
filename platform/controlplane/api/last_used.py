"""When keys were last used here: written at most once a minute each."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from django.utils import timezone

from controlplane.tenants.services import keys_note_used

EVERY_S: Final = 60.0
"""How exact `last_used_at` is; as at the gateway."""
ENTRIES_MAX: Final = 10_000


class LastUsed:
    """One a web process; called by its threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._written_s: OrderedDict[int, float] = OrderedDict()

    def note(self, key_id: int) -> None:
        """Writes the time, unless it was written a short while ago. Raises: DatabaseError."""
        now_s = self._clock()
        with self._lock:
            if now_s - self._written_s.get(key_id, float("-inf")) < EVERY_S:
                return
            self._written_s[key_id] = now_s
            self._written_s.move_to_end(key_id)
            while len(self._written_s) > ENTRIES_MAX:
                self._written_s.popitem(last=False)
        keys_note_used(used={key_id: timezone.now()})
