"""One request of the chaos run as its client saw it, and whether that is right. Pure.

A client compares nothing while it reads: it keeps what came, and `Journey.wrong` says what is not
as it must be. What it must be is the reference's: a request's tokens do not depend on what happens
to the parts that serve it.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class Door(StrEnum):
    """How the request comes in."""

    SSE = "sse"
    SOCKET = "socket"
    WHOLE = "whole"
    """Not streamed: one JSON answer."""


class End(StrEnum):
    """What became of it."""

    OPEN = "open"
    COMPLETED = "completed"
    TYPED_ERROR = "typed_error"
    """It began and then ended with an error that has a code of ours."""
    REFUSED = "refused"
    """It never began: each try was refused, with a code."""
    HUNG = "hung"


@dataclass(frozen=True, slots=True)
class Expected:
    """What an undisturbed request gives."""

    token_ids: tuple[int, ...]
    text: str


class Reference(Protocol):
    """Knows what a request must give."""

    def expected(self, journey: "Journey") -> Expected: ...


@dataclass(slots=True)
class Attempt:
    """One HTTP request or socket that may have begun a request at the server."""

    client_request_id: str
    """Sent as X-Request-Id; the request's row has it."""
    is_begun: bool = False
    """The server said that it has taken it."""


@dataclass(slots=True, eq=False)
class Journey:
    """One request, from its client's first try to its end."""

    number: int
    door: Door
    tenant: str
    prompt: int
    """Which of the reference's prompts."""
    max_tokens: int
    began_s: float
    attempts: list[Attempt] = field(default_factory=list)
    request_id: str = ""
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    ordinals: list[int] = field(default_factory=list)
    """Of the events, in the order in which they came."""
    resumes: int = 0
    """Times that its client came back and was let in."""
    breaks: list[str] = field(default_factory=list)
    """Why a connection ended before the answer did."""
    moves: int = 0
    """Moves and replays that the stream told of."""
    end: End = End.OPEN
    code: str = ""
    """Of the error that ended it."""
    oddities: list[str] = field(default_factory=list)
    """What no documented answer is: an error without a code, a status that does not fit."""
    ended_s: float = 0.0
    first_event_s: float = 0.0
    last_event_s: float = 0.0
    longest_gap_s: float = 0.0
    """Between two events."""

    @property
    def is_begun(self) -> bool:
        return any(attempt.is_begun for attempt in self.attempts)

    def note_event(self, ordinal: int, now_s: float) -> None:
        """Takes note of an event that came."""
        if self.last_event_s:
            self.longest_gap_s = max(self.longest_gap_s, now_s - self.last_event_s)
        self.first_event_s = self.first_event_s or now_s
        self.ordinals.append(ordinal)
        self.last_event_s = now_s

    def close(self, end: End, now_s: float, code: str = "") -> None:
        self.end, self.code, self.ended_s = end, code, now_s

    def wrong(self, expected: Expected) -> str:
        """Says what is lost, repeated or changed; "" when nothing is.

        What ended with an error must be the beginning of the right answer.
        """
        if self.oddities:
            return self.oddities[0]
        is_whole = self.end is End.COMPLETED
        if self.door is Door.SSE and (why := out_of_order(self.ordinals)):
            return why
        if self.door is not Door.SOCKET and (
            why := difference(self.token_ids, expected.token_ids, is_whole=is_whole)
        ):
            return why
        if self.door is Door.SOCKET and self.ordinals != sorted(set(self.ordinals)):
            return f"events out of order: {self.ordinals[:50]}"
        if is_whole and self.text != expected.text:
            return f"text {self.text[-80:]!r} where {expected.text[-80:]!r} was expected"
        if not expected.text.startswith(self.text):
            return f"text {self.text[-80:]!r} is not in the right answer"
        return ""


def out_of_order(ordinals: list[int]) -> str:
    """Says where numbers are not 1, 2, 3, ...; "" when they are."""
    for place, ordinal in enumerate(ordinals, 1):
        if ordinal != place:
            kind = "lost" if ordinal > place else "repeated"
            return f"event {ordinal} came where {place} was due: {kind}"
    return ""


def difference(got: list[int], expected: tuple[int, ...], *, is_whole: bool) -> str:
    """Says where tokens differ from the right ones; "" when they do not."""
    for place, (mine, right) in enumerate(zip(got, expected, strict=False)):
        if mine != right:
            return f"token {place} is {mine}, not {right}"
    if len(got) > len(expected):
        return f"{len(got)} tokens, {len(expected)} are right"
    if is_whole and len(got) < len(expected):
        return f"it ended after {len(got)} of {len(expected)} tokens"
    return ""
