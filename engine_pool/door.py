"""Whether an engine takes new requests, and what has left since it does not.

The engine keeps this, not the pool process: a door that was closed stays closed while the pool
process is away, and one that comes anew finds it as it is.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from engine_pool.load_book import LoadBook


@dataclass(frozen=True, slots=True)
class Closing:
    """What was so when the door was closed."""

    why: str
    """"cordoned" or "draining"."""
    at_unix_s: float
    requests: int
    moved_total: int
    ended_total: int


class Door:
    """One an engine. Any thread: what counts is one assignment."""

    def __init__(self, book: LoadBook, wall_clock: Callable[[], float] = time.time) -> None:
        self._book = book
        self._wall_clock = wall_clock
        self._closing: Closing | None = None

    @property
    def closing(self) -> Closing | None:
        """None: it is open."""
        return self._closing

    def close(self, why: str) -> None:
        """Takes nothing new from now on; counts anew only where `why` is another one."""
        if self._closing is not None and self._closing.why == why:
            return
        moved, ended = self._book.gone_totals()
        requests = sum(self._book.request_counts())
        self._closing = Closing(why, self._wall_clock(), requests, moved, ended)

    def open(self) -> None:
        """Takes requests again."""
        self._closing = None

    def gone(self) -> tuple[int, int]:
        """Returns how many have moved away and how many have ended since the door was closed."""
        if self._closing is None:
            return 0, 0
        moved, ended = self._book.gone_totals()
        return moved - self._closing.moved_total, ended - self._closing.ended_total
