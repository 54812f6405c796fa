"""The world in which the two machines of a move run, and what their commands do in it.

One move: both machines, the messages between them, each side's step thread (its jobs in order, its
answers in order), the transfer, the token log. The table is the real one; everything else is a
model. What may happen in a world: protocol_model.py.

Two links: the one the move began on and the one that ASK opens. A lost link delivers some of what
was under way, never more than was sent, then PEER_LOST to each side; what is sent later is dropped.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple, TypeVar

from migration.protocol import (
    ENDS,
    TABLE,
    Command,
    DestinationEvent,
    DestinationState,
    SourceEvent,
    SourceState,
    step,
)

C, D, DE, S, SE = Command, DestinationState, DestinationEvent, SourceState, SourceEvent


class Gone(StrEnum):
    """A side that has no machine."""

    UNBORN = "unborn"
    """The destination before Prepare."""
    DEAD = "dead"


class Link(StrEnum):
    UNOPENED = "unopened"
    UP = "up"
    DOWN = "down"


class AtSource(StrEnum):
    DECODING = "decoding"
    BLOCKS_LOST = "blocks lost"
    """Decodes, but was preempted since the move began."""
    PARKED = "parked"
    NOT_THERE = "not there"


class AtDestination(StrEnum):
    NOTHING = "nothing"
    HELD = "held"
    ADOPTED = "adopted"


class Log(StrEnum):
    """Who appended last: the source in epoch 1, the destination in 2, or the source's fence 3."""

    SOURCE = "source"
    DESTINATION = "destination"
    FENCED = "fenced"


class Kind(StrEnum):
    INSIDE = "inside"
    """Happens by itself, sooner or later."""
    TIMER = "timer"
    FAULT = "fault"
    """A link or a process is lost."""
    WISH = "wish"
    """A client, an operator, or the request itself comes to its end."""


PREPARE = "prepare"
Queue = tuple[str, ...]
E = TypeVar("E", bound=str)


class World(NamedTuple):
    source: SourceState | Gone = S.RESERVING
    destination: DestinationState | Gone = Gone.UNBORN
    link: Link = Link.UP
    to_destination: Queue = (PREPARE,)
    to_source: Queue = ()
    ask_link: Link = Link.UNOPENED
    ask_to_destination: Queue = ()
    ask_to_source: Queue = ()
    is_answered_on_ask: bool = False
    source_jobs: tuple[Command, ...] = ()
    source_answers: tuple[SourceEvent, ...] = ()
    destination_jobs: tuple[Command, ...] = ()
    destination_answers: tuple[DestinationEvent, ...] = ()
    at_source: AtSource = AtSource.DECODING
    source_epoch: int = 1
    at_destination: AtDestination = AtDestination.NOTHING
    log: Log = Log.SOURCE
    is_reclaiming: bool = False
    """A reclaim is on its way to the store."""
    log_answer: SourceEvent | None = None
    is_logging: bool = False
    is_waiting_to_look: bool = False
    copies: int = 0
    is_sent: bool = False
    """Data of the present transfer is under way."""
    can_send_fail: bool = False
    is_receiving: bool = False
    received: DestinationEvent | None = None
    """How the transfer ended, before the machine has heard of it."""
    is_stopping: bool = False
    can_cancel: bool = True
    is_finished: bool = False
    has_client_left: bool = False
    is_owner_killed: bool = False
    is_anyone_killed: bool = False


Step = tuple[str, Kind, World]


class Violation(AssertionError):
    """The table lets something happen that must not."""


def is_living(state: SourceState | DestinationState | Gone) -> bool:
    return not isinstance(state, Gone) and state not in ENDS


def does_source_decode(w: World) -> bool:
    return w.at_source in (AtSource.DECODING, AtSource.BLOCKS_LOST)


def is_source_accepted(w: World) -> bool:
    return w.log is (Log.SOURCE if w.source_epoch == 1 else Log.FENCED)


def is_destination_accepted(w: World) -> bool:
    return w.log is not Log.FENCED


def deciders(w: World) -> int:
    """Sides that decode and whose tokens the log would take."""
    source = does_source_decode(w) and is_source_accepted(w)
    destination = w.at_destination is AtDestination.ADOPTED and is_destination_accepted(w)
    return source + destination


# What commands do. Sends go over the newest link, and nowhere when that is down.


def _send_to_destination(w: World, message: str) -> World:
    if w.ask_link is not Link.UNOPENED:
        if w.ask_link is Link.DOWN:
            return w
        return w._replace(ask_to_destination=(*w.ask_to_destination, message))
    if w.link is Link.DOWN:
        return w
    return w._replace(to_destination=(*w.to_destination, message))


def _send_to_source(w: World, message: SourceEvent) -> World:
    if w.is_answered_on_ask:
        if w.ask_link is Link.DOWN:
            return w
        return w._replace(ask_to_source=(*w.ask_to_source, message))
    if w.link is Link.DOWN:
        return w
    return w._replace(to_source=(*w.to_source, message))


def _ask(w: World) -> World:
    assert w.ask_link is Link.UNOPENED
    return w._replace(ask_link=Link.UP, ask_to_destination=(DE.ASK,))


def _receive(w: World) -> World:
    if w.is_receiving or w.at_destination is not AtDestination.HELD:
        raise Violation("a transfer is received into nothing, or two at once")
    return w._replace(is_receiving=True)


SOURCE_JOBS = frozenset((C.LOOK, C.PARK, C.UNPARK, C.RELEASE, C.END_REQUEST))
SOURCE_DOES: dict[Command, Callable[[World], World]] = {
    C.LOOK_LATER: lambda w: w._replace(is_waiting_to_look=True),
    C.SEND_STAGE: lambda w: _send_to_destination(w, DE.STAGE),
    C.SEND_BLOCKS: lambda w: w._replace(is_sent=True, can_send_fail=True),
    C.SEND_LAST: lambda w: _send_to_destination(
        w._replace(is_sent=True, can_send_fail=True), DE.LAST
    ),
    C.AWAIT_LOG: lambda w: w._replace(is_logging=True),
    C.SEND_COMMIT: lambda w: _send_to_destination(w, DE.COMMIT),
    C.SEND_ABORT: lambda w: _send_to_destination(w, DE.ABORT),
    C.ASK: _ask,
    C.RECLAIM: lambda w: w._replace(is_reclaiming=True),
}
DESTINATION_JOBS = frozenset((C.RESERVE, C.ADOPT, C.DISCARD, C.END_REQUEST))
DESTINATION_DOES: dict[Command, Callable[[World], World]] = {
    C.SEND_ACK: lambda w: _send_to_source(w, SE.ACK),
    C.RECEIVE: _receive,
    C.SEND_RECEIVED: lambda w: _send_to_source(w, SE.RECEIVED),
    C.SEND_COMMITTED: lambda w: _send_to_source(w, SE.COMMITTED),
    C.SEND_REFUSED: lambda w: _send_to_source(w, SE.REFUSED),
    C.STOP_RECEIVING: lambda w: w._replace(is_stopping=True),
}


def tell_source(w: World, event: SourceEvent) -> World:
    if isinstance(w.source, Gone):
        return w
    state, commands = step(w.source, event)
    assert isinstance(state, SourceState)
    if event is SE.MINE and state is not w.source:
        w = w._replace(source_epoch=3)
    w = w._replace(source=state)
    for command in commands:
        if command in SOURCE_JOBS:
            w = w._replace(source_jobs=(*w.source_jobs, command))
        else:
            w = SOURCE_DOES[command](w)
    return w


def tell_destination(w: World, event: DestinationEvent) -> World:
    if isinstance(w.destination, Gone):
        return w
    state, commands = step(w.destination, event)
    assert isinstance(state, DestinationState)
    w = w._replace(destination=state)
    for command in commands:
        if command in DESTINATION_JOBS:
            w = w._replace(destination_jobs=(*w.destination_jobs, command))
        else:
            w = DESTINATION_DOES[command](w)
    return w


def simplify(w: World) -> World:
    """Drops what can have no effect any more, so that worlds that differ only in it are one."""
    source, destination = w.source, w.destination
    if not is_living(source):
        w = w._replace(
            source_answers=_heard(source, w.source_answers),
            to_source=_heard(source, w.to_source),
            ask_to_source=_heard(source, w.ask_to_source),
            log_answer=w.log_answer if w.log_answer and _heard(source, (w.log_answer,)) else None,
            is_logging=False,
            is_waiting_to_look=False,
            can_send_fail=False,
            can_cancel=False,
        )
    if not is_living(destination) and destination is not Gone.UNBORN:
        w = w._replace(
            destination_answers=_heard(destination, w.destination_answers),
            to_destination=_heard(destination, w.to_destination),
            received=w.received if w.received and _heard(destination, (w.received,)) else None,
            is_sent=w.is_sent and w.is_receiving,
        )
    if source not in (S.RESERVING, S.COPYING):
        w = w._replace(copies=0)
    if w.at_source is AtSource.NOT_THERE:
        w = w._replace(source_epoch=1)
    return w


def _heard(state: SourceState | DestinationState | Gone, events: tuple[E, ...]) -> tuple[E, ...]:
    """Returns the events for which an end state has a row."""
    if isinstance(state, Gone):
        return ()
    return tuple(e for e in events if e in TABLE[state])
