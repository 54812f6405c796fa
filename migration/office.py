"""What both roles of a move need of their agent: a thread, links, channels, engine, reports."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from migration.engine_side import EngineSide
from migration.links import Invitation
from migration.messages import Message
from migration.ports import KvPlane, KvShape
from migration.report import MoveEnd, MoveReport
from migration.stages import StageLimits


class PeerLink(Protocol):
    """A connection to another engine's agent (links.Link)."""

    def send(self, blob: bytes) -> None:
        """Raises: OSError when the link is broken."""

    def close(self) -> None: ...


Connect = Callable[
    [
        Invitation,
        float,
        Callable[[PeerLink, bytes], None],
        Callable[[PeerLink], None],
    ],
    PeerLink,
]
"""(invitation, timeout_s, on_message, on_closed) -> link. Waits. Raises: OSError."""


class LogDoor(Protocol):
    """The token log, as a move needs it (publisher.py, token_log.py)."""

    def when_logged(self, tell: Callable[[], None]) -> None:
        """Calls `tell` once all tokens produced so far are in the log; not while the store is
        away."""

    def reclaim(self, request_id: str, epoch: int) -> int | None:
        """Returns the epoch in which this side may go on, None when the stream is the other's.

        Waits for the store. Raises: redis.RedisError.
        """


class Reports(Protocol):
    """Where reports go. Both calls return at once."""

    def report_move(self, move: MoveReport) -> None: ...

    def report_move_end(self, end: MoveEnd) -> None: ...


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """The parts of PoolConfig and EngineSpec that moves follow. Times in seconds."""

    instance: str
    incarnation: str
    is_on: bool
    at_once: int
    limits: StageLimits
    stage_timeout_s: float
    pause_timeout_s: float
    commit_timeout_s: float


@dataclass(frozen=True, slots=True)
class Office:
    """Shared by an agent's moves. All but `side` and `plane` is used in the agent's thread only."""

    settings: AgentSettings
    side: EngineSide
    plane: KvPlane
    shape: KvShape
    log: LogDoor
    reports: Reports
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    post: Callable[[Callable[[], None]], None]
    """Runs something in the agent's thread, after what it does now. Any thread."""
    apart: Callable[[Callable[[], None]], None]
    """Runs something that waits in a thread of its own."""
    pause: Callable[[float], None]
    """Sleeps so many seconds; for what runs apart."""
    send: Callable[[PeerLink, Message], None]
    """Sends, and treats a broken link as closed."""
    take_channel: Callable[[PeerLink], str]
    """Returns an idle channel over which nothing is under way; "" when there is none."""
    give_channel: Callable[[PeerLink, str], None]
    """Keeps an open channel for the next move to the same peer."""
    connect: Callable[[Invitation], PeerLink]
    """Connects anew. Waits. Raises: OSError."""
