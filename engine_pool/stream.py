"""One engine request as its reader sees it, and the port to the front end that takes its tokens."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from engine_pool.errors import PoolError
from engine_pool.token_log import TokenFrame
from engine_pool.types import InstanceName

Position = tuple[int, int]
"""Of a log entry: (epoch, output tokens after it); ordered as the store orders its entries."""


class FrameSink(Protocol):
    """Where frames go. Every call is made in the event loop and must return at once."""

    def deliver(self, frames: Sequence[TokenFrame]) -> None:
        """Takes frames of any streams; those of one stream in order, without gap or repeat."""

    def fail(self, request_id: str, error: PoolError) -> None:
        """Ends a stream with an error; nothing follows for it."""


@dataclass(slots=True, eq=False)
class Stream:
    """One engine request that this process reads."""

    request_id: str
    unread: Callable[[], int]
    """Outputs that the consumer has not taken yet."""
    instance: InstanceName = InstanceName("")  # noqa: RUF009 - a NewType call makes a plain string
    incarnation: str = ""
    """Of the instance that the request was sent to; empty before it was sent."""
    actor: str = ""
    """Name of its actor; empty before the request was sent, and when the instance is gone."""
    end: int = 0
    """Output tokens delivered."""
    at: Position = (0, 0)
    """The last log entry delivered or passed."""
    is_behind: bool = False
    missed: Position = (0, 0)
    """While behind: the furthest live frame that was dropped; the log must hold it."""
    room: asyncio.Event = field(default_factory=asyncio.Event)
    """While behind: set when the consumer has room again."""
    absent_ticks: int = 0
    """Successive looks at the instance's reports that did not show the request."""

    @property
    def at_entry(self) -> str | None:
        """Entry id of `at`, None before the first."""
        return f"{self.at[0]}-{self.at[1]}" if self.at != (0, 0) else None


def position(frame: TokenFrame) -> Position:
    """Returns the place of a frame in its log."""
    return frame.epoch, int(frame.entry_id.partition("-")[2])
