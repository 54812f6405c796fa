"""Calls with wrong keys, counted: guessing is hopeless anyway, but each guess costs queries.

In the memory of one web process. A pair of address and public id is held up, never the key itself:
who knows a public id cannot lock its owner out from elsewhere.
"""

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

WINDOW_S: Final = 60.0
PER_KEY_MAX: Final = 10
"""Wrong secrets for one public id from one address in a window: a wrong deployment retries."""
PER_ADDRESS_MAX: Final = 100
"""All wrong keys from one address: many machines may stand behind it."""
ENTRIES_MAX: Final = 10_000
"""About 2 MB; the oldest are forgotten beyond it."""


class Attempts:
    """One a web process; called by its threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()
        """(address, public id or ANY) -> (begin of its window, failures in it)."""

    def __len__(self) -> int:
        return len(self._failures)

    def wait_s(self, address: str, public_id: str) -> int:
        """Returns after how many whole seconds the next try is looked at; 0: now."""
        with self._lock:
            pairs = (((address, public_id), PER_KEY_MAX), ((address, _ANY), PER_ADDRESS_MAX))
            return max(self._left_s(pair, most) for pair, most in pairs)

    def note_failure(self, address: str, public_id: str) -> None:
        """Counts a wrong key."""
        now_s = self._clock()
        with self._lock:
            for pair in ((address, public_id), (address, _ANY)):
                began_s, count = self._failures.pop(pair, (now_s, 0))
                if now_s - began_s >= WINDOW_S:
                    began_s, count = now_s, 0
                self._failures[pair] = (began_s, count + 1)
            while len(self._failures) > ENTRIES_MAX:
                self._failures.popitem(last=False)

    def forget(self) -> None:
        """Drops all."""
        with self._lock:
            self._failures.clear()

    def _left_s(self, pair: tuple[str, str], most: int) -> int:
        began_s, count = self._failures.get(pair, (0.0, 0))
        left_s = began_s + WINDOW_S - self._clock()
        return math.ceil(left_s) if count >= most and left_s > 0 else 0


_ANY: Final = "*"
"""No public id: those are hexadecimal."""
