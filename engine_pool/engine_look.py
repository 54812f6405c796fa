"""What the looks at one engine add up to: its progress, since when it is empty, what was done.

One an engine, from its start to its end; nothing of it is needed by its successor.
"""

from dataclasses import dataclass

from engine_pool.drain_progress import is_empty
from engine_pool.policy import health
from engine_pool.policy.wishes import InstanceWish, Leftover, WantedState
from engine_pool.ports import Pong

SIGTERM_BY = "SIGTERM"
"""Who wants an engine drained whose process was told to end."""


@dataclass(slots=True)
class EngineLook:
    """Mutable; times of `now_s` are monotonic, of `now_unix_s` wall-clock seconds."""

    pong: Pong | None = None
    """The last answer."""
    progress: health.Progress | None = None
    empty_since_unix_s: float | None = None
    verified_unix_s: float | None = None
    leftover_done_unix_s: float | None = None
    oom_kills: int = 0
    """As counted with the last answer."""

    def note(self, pong: Pong, now_s: float, now_unix_s: float) -> float:
        """Takes an answer in; returns for how long the engine has had work and done nothing, s."""
        self.pong = pong
        self.progress = health.advance(
            self.progress, steps_total=pong.steps_total, running=pong.running, now_s=now_s
        )
        if not is_empty(pong):
            self.empty_since_unix_s = self.verified_unix_s = None
        elif self.empty_since_unix_s is None:
            self.empty_since_unix_s = now_unix_s
        return health.stalled_s(self.progress, now_s)

    def note_open(self) -> None:
        """Its drain is over, or taken back."""
        self.empty_since_unix_s = self.verified_unix_s = self.leftover_done_unix_s = None

    @property
    def own_wish(self) -> InstanceWish | None:
        """What follows for the engine, and not for its successor, from SIGTERM to its process."""
        if self.pong is None or self.pong.leaving_since_unix_s is None:
            return None
        return InstanceWish(
            WantedState.STOPPED,
            by=SIGTERM_BY,
            reason="its process was told to end",
            since_unix_s=self.pong.leaving_since_unix_s,
            deadline_unix_s=self.pong.leave_deadline_unix_s,
            leftover=Leftover.REPLAY,
        )
