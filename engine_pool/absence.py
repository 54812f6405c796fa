"""How long the store, or a stream's reader, has been away. Pure: time is monotonic seconds,
passed in."""

from collections.abc import Iterable
from dataclasses import dataclass, field

RETRY_FIRST_S = 0.05
RETRY_MAX_S = 1.0
"""Wait between two tries while the store is away; doubles from the first to the longest."""


@dataclass(slots=True)
class StoreAbsence:
    """Whether the store is away, since when, and when to try again."""

    since_s: float | None = None
    retry_at_s: float = 0.0
    _retry_wait_s: float = RETRY_FIRST_S

    @property
    def is_away(self) -> bool:
        return self.since_s is not None

    def failed(self, began_s: float, now_s: float) -> float:
        """Notes a try that failed; returns for how long the store has been away."""
        if self.since_s is None:
            # A store that hangs was away already when the try began.
            self.since_s = began_s
        self.retry_at_s = now_s + self._retry_wait_s
        self._retry_wait_s = min(RETRY_MAX_S, self._retry_wait_s * 2)
        return now_s - self.since_s

    def succeeded(self, now_s: float) -> float | None:
        """Notes an answer; returns for how long the store was away, None if it was not."""
        away_s = None if self.since_s is None else now_s - self.since_s
        self.since_s, self._retry_wait_s = None, RETRY_FIRST_S
        return away_s


@dataclass(slots=True)
class Unheard:
    """Streams that no web process listens to, each since when."""

    _since_s: dict[str, float] = field(default_factory=dict)

    def note(self, request_id: str, now_s: float, *, is_heard: bool) -> None:
        if is_heard:
            self._since_s.pop(request_id, None)
        else:
            self._since_s.setdefault(request_id, now_s)

    def take_older(self, grace_s: float, now_s: float) -> list[str]:
        """Removes and returns the streams that nobody has heard for `grace_s`."""
        old = [i for i, since_s in self._since_s.items() if since_s <= now_s - grace_s]
        self.forget(old)
        return old

    def forget(self, request_ids: Iterable[str] | None = None) -> None:
        """Removes streams; None: all."""
        for request_id in list(self._since_s) if request_ids is None else request_ids:
            self._since_s.pop(request_id, None)
