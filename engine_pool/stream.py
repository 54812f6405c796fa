"""One engine request as its reader sees it, and the port to the front end that takes its tokens."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from engine_pool.errors import PoolError
from engine_pool.log_marks import Lost, Marked
from engine_pool.replay_rules import is_same_life
from engine_pool.submission import Submission
from engine_pool.token_log import TokenFrame
from engine_pool.types import InstanceName, InstanceStatus

Position = tuple[int, int]
"""Of a log entry: (epoch, output tokens after it); ordered as the store orders its entries."""


class FrameSink(Protocol):
    """Where frames go. Every call is made in the event loop and must return at once."""

    def deliver(self, frames: Sequence[TokenFrame]) -> None:
        """Takes frames of any streams; those of one stream in order, without gap or repeat."""

    def moved(self, request_id: str, visit: "Visit") -> None:
        """Says that the stream's next frame comes from another instance than the one before."""

    def fail(self, request_id: str, error: PoolError) -> None:
        """Ends a stream with an error; nothing follows for it."""


@dataclass(frozen=True, slots=True)
class Visit:
    """A request's coming to another instance, as its reader saw it."""

    origin: InstanceName
    """Where its tokens came from before; it was sent there when there are none."""
    instance: InstanceName
    at_token: int
    """Output tokens before its first one there."""
    gap_ms: float | None
    """Between its last frame from the origin and the first one from here. None when there is none
    from the origin, or when one of the two was read from the log: nobody saw then when it came."""
    lost: tuple[Lost, ...] = ()
    """Not a move: the lives that the request had lost since its last token, oldest first. It was
    sent again after each."""

    @property
    def is_replay(self) -> bool:
        return bool(self.lost)


@dataclass(slots=True, eq=False)
class Stream:
    """One engine request that this process reads."""

    request_id: str
    unread: Callable[[], int]
    """Outputs that the consumer has not taken yet."""
    instance: InstanceName = InstanceName("")  # noqa: RUF009 - a NewType call makes a plain string
    """Where the request is, as far as anybody here knows; empty before it was sent."""
    incarnation: str = ""
    """Of that instance; empty while its status is unknown here."""
    actor: str = ""
    """Name of its actor; empty before the request was sent, and when the instance is gone."""
    producer: InstanceName = InstanceName("")  # noqa: RUF009
    """Where the newest frame came from; before the first, where the request was sent to."""
    visits: list[Visit] = field(default_factory=list)
    """In the order of the tokens; not the instance that the request was sent to."""
    heard_s: float | None = None
    """When the newest frame came, on the monotonic clock; None when it was read from the log."""
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
    is_being_sent: bool = False
    """It is offered to instances, and whoever does that sees to it when one of them dies."""
    order: Submission | None = None
    """What it takes to send this request alone again; None: it cannot be sent again."""
    why_no_replay: str = ""
    """Why it cannot, in words; "": it can, where there is an order."""
    losses: list[Marked] = field(default_factory=list)
    """What the log says of lives that were lost since the newest frame, oldest first."""
    known_epoch: int = 0
    """Of the newest of all those."""

    @property
    def at_entry(self) -> str | None:
        """Entry id of `at`, None before the first."""
        return f"{self.at[0]}-{self.at[1]}" if self.at != (0, 0) else None

    def send_to(self, status: InstanceStatus) -> None:
        """Notes where the request is sent to."""
        self.producer = status.instance
        self.place_at(status.instance, status)

    def place_at(self, instance: InstanceName, status: InstanceStatus | None) -> None:
        """Notes where the request is. `status`: of that instance, None when it is unknown here."""
        self.instance = instance
        self.incarnation = status.incarnation if status else ""
        self.actor = status.actor if status else ""
        self.absent_ticks = 0

    def note_lost(self, mark: Marked) -> None:
        """Takes a mark of the log; one that is known already changes nothing."""
        if mark.epoch <= self.known_epoch:
            return
        self.known_epoch = mark.epoch
        if not (self.losses and is_same_life(self.losses[-1].lost, mark.lost)):
            self.losses.append(mark)

    def advance(self, frame: TokenFrame, heard_s: float | None) -> Visit | None:
        """Takes the next frame. Returns the visit that begins with it, None mostly.

        `heard_s`: when it came, None when it is read from the log.
        """
        visit = None
        # An error may be appended by anybody, in the name of an instance that is gone.
        lost = tuple(m.lost for m in self.losses if m.epoch <= frame.epoch)
        if frame.error is None and (lost or frame.instance != self.producer):
            instance = InstanceName(frame.instance)
            if self.producer:
                gap_ms = self._gap_ms(heard_s)
                visit = Visit(self.producer, instance, frame.start, gap_ms, lost)
                self.visits.append(visit)
            self.producer = instance
            self.losses = self.losses[len(lost) :]
        self.end = frame.end
        self.at = position(frame)
        self.heard_s = heard_s
        self.absent_ticks = 0
        return visit

    def _gap_ms(self, heard_s: float | None) -> float | None:
        if self.heard_s is None or heard_s is None:
            return None
        return (heard_s - self.heard_s) * 1000


def position(frame: TokenFrame) -> Position:
    """Returns the place of a frame in its log."""
    return frame.epoch, int(frame.entry_id.partition("-")[2])
