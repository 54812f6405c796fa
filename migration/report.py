"""What is said about one move while it goes on and after it: for the pages, the API and the rows.

Depends on nothing but the protocol. All times of a report are milliseconds since its start, on the
source's monotonic clock; what the destination does is noted when its message arrives.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from migration.protocol import SourceState


class MoveState(StrEnum):
    """Where a move is, in words for an operator."""

    ASKED = "asked"
    RESERVING = "reserving"
    COPYING = "copying"
    PAUSED = "paused"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABORTED = "aborted"

    @property
    def is_end(self) -> bool:
        return self in (MoveState.COMMITTED, MoveState.ABORTED)


SHOWN: Final = {
    SourceState.RESERVING: MoveState.RESERVING,
    SourceState.COPYING: MoveState.COPYING,
    SourceState.PAUSING: MoveState.COPYING,
    SourceState.PAUSED: MoveState.PAUSED,
    SourceState.PAUSED_RECEIVED: MoveState.PAUSED,
    SourceState.PAUSED_LOGGED: MoveState.PAUSED,
    SourceState.COMMITTING: MoveState.COMMITTING,
    SourceState.ASKING: MoveState.COMMITTING,
    SourceState.RECLAIMING: MoveState.COMMITTING,
    SourceState.COMMITTED: MoveState.COMMITTED,
    SourceState.ABORTED: MoveState.ABORTED,
}
"""What each state of the protocol is called in reports."""


ABORT_CODES: Final = (
    "no_blocks",
    "request_finished",
    "request_preempted",
    "client_cancelled",
    "peer_lost",
    "timed_out",
    "cancelled",
    "refused",
    "transfer_failed",
    "disabled",
    "too_many",
    "request_started",
)
"""Slugs of why a move was aborted or refused; docs/operate.md says what each means."""


@dataclass(frozen=True, slots=True)
class StageReport:
    """One copy of blocks. The last one happens while the request is paused."""

    number: int
    """From 1."""
    is_last: bool
    started_ms: float
    took_ms: float
    """Until the destination had written the blocks; grows while the stage goes on."""
    blocks: int
    bytes: int
    gather_ms: float = 0.0
    """Part of it that went into fusing the blocks into one buffer."""


@dataclass(frozen=True, slots=True)
class MessageReport:
    """One message of the handshake."""

    at_ms: float
    sender: str
    """source or destination."""
    name: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class MoveReport:
    """One move of one request. `seq` grows with each report of the move; the newest one counts."""

    migration_id: str
    request_id: str
    seq: int
    state: MoveState
    source: str
    source_incarnation: str
    destination: str
    destination_incarnation: str
    started_unix_s: float
    at_unix_s: float
    """When this report was made."""
    asked_by: str
    """Who wanted the move: "operator olga", "rebalancer", "drain", "self-test"."""
    reason: str
    """Why, in words, with the numbers that made the decision."""
    priority_class: str = ""
    tenant: str = ""
    is_queued: bool = False
    """The request was waiting: it moved without a copy."""
    prompt_tokens: int = 0
    tokens_at_start: int = 0
    """Tokens with KV when the move began."""
    tokens_at_pause: int | None = None
    output_tokens_at_pause: int | None = None
    block_size_tokens: int = 0
    block_bytes: int = 0
    cached_blocks: int = 0
    """Blocks that the destination found in its own prefix cache: not sent."""
    reserved_blocks: int = 0
    blocks_left: int | None = None
    """Complete blocks that are not sent yet; None before the first look."""
    sent_bytes: int = 0
    stages: tuple[StageReport, ...] = ()
    messages: tuple[MessageReport, ...] = ()
    paused_ms: float | None = None
    """When the source took the request out of its batch."""
    committed_ms: float | None = None
    first_token_ms: float | None = None
    """When the destination produced its first token, as far as the source has heard."""
    ended_ms: float | None = None
    downtime_ms: float | None = None
    """From the last token at the source to the first at the destination; None for a queued
    request and for a move that did not get that far."""
    source_token_ms: tuple[float, ...] = ()
    """Times of the source's last tokens (TOKEN_TIMES_KEPT at most); before the start: negative."""
    destination_token_ms: tuple[float, ...] = ()
    """Times of the destination's first tokens."""
    source_step_ms: float | None = None
    """Mean step of the source while the move went on."""
    source_step_before_ms: float | None = None
    """Mean step of the source before it; None without steps."""
    source_freeness: float | None = None
    destination_freeness: float | None = None
    abort_code: str = ""
    """One of ABORT_CODES; empty: it goes on, or was committed."""
    abort_reason: str = ""
    """In words: "i-03 had 12 free blocks and needed 41"."""


@dataclass(frozen=True, slots=True)
class MoveEnd:
    """How a move ended whose source cannot say so any more."""

    migration_id: str
    state: MoveState
    code: str
    why: str


TOKEN_TIMES_KEPT = 24
"""Token times a side: enough to see the pause among its neighbours, 200 bytes a report."""
