"""What did not work is left alone for a while: twice as long each time, and never for ever.

For requests that could not move, pairs that did not reach each other, and instances that did not
answer. Pure: times are the caller's, monotonic seconds. Lost with the process, which costs one
more try each.
"""

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

FIRST_S: Final = 1.0
"""After the first failure: ten reports, so that the picture is another one."""
LONGEST_S: Final = 60.0
"""A peer that comes back is noticed within a minute."""
KEPT: Final = 4096
"""Entries; beyond it the oldest are forgotten, long since free again."""

K = TypeVar("K", bound=Hashable)


class Backoff(Generic[K]):
    """One for each kind of thing that fails."""

    def __init__(self, first_s: float = FIRST_S, longest_s: float = LONGEST_S) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._failed: dict[K, tuple[float, float]] = {}
        """Until when it is held back, and for how long that is; oldest failure first."""

    def note_failure(self, key: K, now_s: float, at_least_s: float = 0.0) -> float:
        """Holds `key` back; returns for how long, in seconds."""
        until_s, last_s = self._failed.pop(key, (now_s, 0.0))
        # Left alone for as long again without a failure, it counts as new.
        was_recent = now_s - until_s <= self._longest_s
        held_s = min(self._longest_s, 2 * last_s) if last_s and was_recent else self._first_s
        held_s = max(held_s, at_least_s)
        self._failed[key] = (now_s + held_s, held_s)
        while len(self._failed) > KEPT:
            del self._failed[next(iter(self._failed))]
        return held_s

    def forget(self, key: K) -> None:
        """What worked begins anew."""
        self._failed.pop(key, None)

    def is_held(self, key: K, now_s: float) -> bool:
        found = self._failed.get(key)
        return found is not None and now_s < found[0]

    def held(self, now_s: float) -> frozenset[K]:
        """Returns everything that is held back."""
        return frozenset(key for key, (until_s, _) in self._failed.items() if now_s < until_s)
