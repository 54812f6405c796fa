"""What a step loop knows of its requests and its steps. Of the step thread."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from engine_pool.ports import EngineRequest
from engine_pool.token_log import StreamError, TokenFrame


class Watcher(Protocol):
    """Hears of one request's tokens, in the step thread. Must return at once."""

    def on_tokens(self, count: int, at_s: float) -> None:
        """`count` tokens were produced; `at_s`: the loop's clock."""

    def on_ended(self) -> None:
        """The request is no longer here, whatever the reason; nothing follows."""


@dataclass(slots=True)
class Stream:
    """A request of this engine, as its log sees it. Of the step thread."""

    request: EngineRequest
    expires_at_s: float
    position: int = 0
    """Output tokens published."""
    begun_unix_s: float | None = None
    """When this engine's first step with it began, None before. One that came with tokens from
    another engine has none: its first frame is out."""
    watcher: Watcher | None = None
    end_parked: Callable[[StreamError | None], None] | None = None
    """Set while a move has taken the request out of the batch: who is asked to end it."""


@dataclass(slots=True)
class StepClock:
    """How long steps take, for the reports of moves. Written by the step thread."""

    steps: int = 0
    total_ms: float = 0.0
    mean_ms: float | None = None
    """Of the last twenty or so steps (exponential), None before the first."""

    def note(self, step_ms: float) -> None:
        self.steps += 1
        self.total_ms += step_ms
        before = step_ms if self.mean_ms is None else self.mean_ms
        self.mean_ms = before + (step_ms - before) / 20


def with_times(
    frame: TokenFrame, stream: Stream, step_unix_s: float, now_unix_s: float
) -> TokenFrame:
    """Returns a request's first frame with what the request waited for it.

    `step_unix_s`: when the step that made it began: the request's first, if none was seen before.
    The arrival is by the gateway's clock, which may go some milliseconds before this one.
    """
    begun_s = step_unix_s if stream.begun_unix_s is None else stream.begun_unix_s
    return msgspec.structs.replace(
        frame,
        queue_ms=round(max(0.0, begun_s - stream.request.arrival_unix_s) * 1000, 3),
        prefill_ms=round(max(0.0, now_unix_s - begun_s) * 1000, 3),
    )
