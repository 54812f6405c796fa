"""The protocol of a live move: two state machines, one table, no effects.

`step(state, event) -> (state, commands)`. The source's machine drives, the destination's answers;
shells (agent.py) turn messages, timers and the engine's answers into events and carry commands
out in order. This file knows neither engines nor sockets. From Llumnix (OSDI 2024, section 4.2):
stages, each with PRE-ALLOC -> ACK or ABORT, then COMMIT.

What the table promises, for any order of events and any loss (tests/migration/test_protocol.py
walks the whole product of both machines):

- at most one side decodes at any time, and at every end exactly one does, unless the client left,
  the request finished, or the side that owned it died;
- whatever happens before the commit is answered by going on at the source;
- a source that does not know whether its commit arrived asks; if nobody answers, it asks the log of
  the request's tokens (token_log.py), which refuses one of the two for good;
- at every end both sides have freed what they held for the move.

An event that an end state gets is late and changes nothing; a few are answered. An event that a
living state has no row for is a bug of the shell: ProtocolError.
"""

from enum import StrEnum
from typing import Final


class SourceState(StrEnum):
    RESERVING = "reserving"
    """The destination was asked for room."""
    COPYING = "copying"
    """Complete blocks are copied, stage after stage; the request decodes here."""
    PAUSING = "pausing"
    """The step thread was asked to take the request out of its batch."""
    PAUSED = "paused"
    """Out of the batch; the last blocks are on their way and the last tokens go to the log."""
    PAUSED_RECEIVED = "paused, blocks received"
    PAUSED_LOGGED = "paused, tokens logged"
    COMMITTING = "committing"
    ASKING = "asking"
    """Nobody knows here whether the commit arrived: the destination is asked anew."""
    RECLAIMING = "reclaiming"
    """The destination does not answer: the log decides whose the request is."""
    COMMITTED = "committed"
    ABORTED = "aborted"


class DestinationState(StrEnum):
    HOLDING = "holding"
    """The step thread was asked for room."""
    HELD = "held"
    """Room is there; stages arrive."""
    LOADING = "loading"
    """The last stage arrives."""
    LOADED = "loaded"
    """Everything is there; only the source's commit is missing."""
    ADOPTING = "adopting"
    DISCARDING = "discarding"
    """Over, but a transfer may still write: the blocks are freed when it has stopped."""
    ADOPTED = "adopted"
    DISCARDED = "discarded"


class SourceEvent(StrEnum):
    ACK = "ack"
    """The destination has room for the stage."""
    MORE = "more"
    """A look found enough complete blocks for another stage."""
    LITTLE = "little"
    """A look found so few that the rest goes with the pause; also a queued request."""
    BUSY = "busy"
    """A look found the request computing its prompt."""
    LATER = "later"
    """The wait after BUSY is over."""
    RECEIVED = "received"
    """The destination has written the stage."""
    PARKED = "parked"
    LOGGED = "logged"
    """All tokens that were produced here are in the log."""
    COMMITTED = "committed"
    REFUSED = "refused"
    """The destination will never decode this request."""
    GONE = "gone"
    """The request finished, lost its blocks or was ended before it was parked."""
    CLIENT_LEFT = "client left"
    """The request is to be ended, at whichever side it is."""
    CANCEL = "cancel"
    """Somebody does not want the move any more."""
    TRANSFER_FAILED = "transfer failed"
    PEER_LOST = "peer lost"
    TIMEOUT = "timeout"
    MINE = "mine"
    """The log has shut the destination out."""
    THEIRS = "theirs"
    """The log holds a token of the destination."""
    UNKNOWN = "unknown"
    """The store did not answer."""


class DestinationEvent(StrEnum):
    ROOM = "room"
    NO_ROOM = "no room"
    STAGE = "stage"
    """The source announces a stage that is not the last."""
    LAST = "last"
    WRITTEN = "written"
    COMMIT = "commit"
    ADOPTED = "adopted"
    NOT_ADOPTED = "not adopted"
    ABORT = "abort"
    ASK = "ask"
    TRANSFER_FAILED = "transfer failed"
    QUIET = "quiet"
    """No transfer touches the blocks any more."""
    PEER_LOST = "peer lost"
    TIMEOUT = "timeout"


class Command(StrEnum):
    """What a shell does, in the order of the list."""

    # source
    LOOK = "look"
    LOOK_LATER = "look later"
    SEND_STAGE = "send stage"
    """Announces the stage that the look has planned."""
    SEND_BLOCKS = "send blocks"
    PARK = "park"
    SEND_LAST = "send last"
    """Announces the last stage and sends its blocks."""
    AWAIT_LOG = "await log"
    SEND_COMMIT = "send commit"
    SEND_ABORT = "send abort"
    UNPARK = "unpark"
    RELEASE = "release"
    """Frees the request here: it is the destination's."""
    END_REQUEST = "end request"
    """Ends the request at this side as its client wanted; nothing when it is not here."""
    ASK = "ask"
    RECLAIM = "reclaim"
    # destination
    RESERVE = "reserve"
    SEND_ACK = "send ack"
    RECEIVE = "receive"
    SEND_RECEIVED = "send received"
    ADOPT = "adopt"
    SEND_COMMITTED = "send committed"
    SEND_REFUSED = "send refused"
    STOP_RECEIVING = "stop receiving"
    """Answers QUIET, at once when nothing is being received."""
    DISCARD = "discard"
    """Frees the held blocks."""


class ProtocolError(AssertionError):
    """A shell told a machine something that cannot have happened: a bug of the shell."""


State = SourceState | DestinationState
Event = SourceEvent | DestinationEvent
Commands = tuple[Command, ...]

S, D, SE, DE, C = SourceState, DestinationState, SourceEvent, DestinationEvent, Command

_Row = dict[Event, tuple[State, Commands]]


def _ends(state: State, commands: Commands, *events: Event) -> _Row:
    return dict.fromkeys(events, (state, commands))


def _stays(state: State, *events: Event) -> _Row:
    return _ends(state, (), *events)


_DECODING: Final[_Row] = {
    # The request decodes here: an abort only has to be told.
    **_ends(
        S.ABORTED, (C.SEND_ABORT,), SE.GONE, SE.CANCEL, SE.TRANSFER_FAILED, SE.TIMEOUT, SE.PEER_LOST
    ),
    SE.REFUSED: (S.ABORTED, ()),
    SE.CLIENT_LEFT: (S.ABORTED, (C.SEND_ABORT, C.END_REQUEST)),
}
_PARKED: Final[_Row] = {
    # The request stands still here: whatever goes wrong, it goes on.
    **_ends(
        S.ABORTED,
        (C.SEND_ABORT, C.UNPARK),
        SE.CANCEL,
        SE.TRANSFER_FAILED,
        SE.TIMEOUT,
        SE.PEER_LOST,
    ),
    SE.REFUSED: (S.ABORTED, (C.UNPARK,)),
    SE.CLIENT_LEFT: (S.ABORTED, (C.SEND_ABORT, C.END_REQUEST)),
}
_DOUBT: Final[_Row] = {
    SE.COMMITTED: (S.COMMITTED, (C.RELEASE,)),
    SE.REFUSED: (S.ABORTED, (C.UNPARK,)),
    SE.CLIENT_LEFT: (S.ABORTED, (C.SEND_ABORT, C.END_REQUEST)),
}

_SOURCE: Final[dict[State, _Row]] = {
    S.RESERVING: {**_DECODING, SE.ACK: (S.COPYING, (C.LOOK,))},
    S.COPYING: {
        **_DECODING,
        SE.MORE: (S.COPYING, (C.SEND_STAGE,)),
        SE.ACK: (S.COPYING, (C.SEND_BLOCKS,)),
        SE.RECEIVED: (S.COPYING, (C.LOOK,)),
        SE.BUSY: (S.COPYING, (C.LOOK_LATER,)),
        SE.LATER: (S.COPYING, (C.LOOK,)),
        SE.LITTLE: (S.PAUSING, (C.PARK,)),
    },
    # The step thread may have parked it already: UNPARK after PARK undoes either.
    S.PAUSING: {
        **_PARKED,
        SE.GONE: (S.ABORTED, (C.SEND_ABORT,)),
        SE.PARKED: (S.PAUSED, (C.SEND_LAST, C.AWAIT_LOG)),
    },
    S.PAUSED: {
        **_PARKED,
        SE.RECEIVED: (S.PAUSED_RECEIVED, ()),
        SE.LOGGED: (S.PAUSED_LOGGED, ()),
    },
    S.PAUSED_RECEIVED: {**_PARKED, SE.LOGGED: (S.COMMITTING, (C.SEND_COMMIT,))},
    S.PAUSED_LOGGED: {**_PARKED, SE.RECEIVED: (S.COMMITTING, (C.SEND_COMMIT,))},
    S.COMMITTING: {
        **_DOUBT,
        **_stays(S.COMMITTING, SE.CANCEL, SE.TRANSFER_FAILED),
        **_ends(S.ASKING, (C.ASK,), SE.TIMEOUT, SE.PEER_LOST),
    },
    S.ASKING: {
        **_DOUBT,
        **_stays(S.ASKING, SE.CANCEL, SE.TRANSFER_FAILED),
        **_ends(S.RECLAIMING, (C.RECLAIM,), SE.TIMEOUT, SE.PEER_LOST),
    },
    # The log has the last word, even over a late answer of the destination: the reclaim may have
    # shut out either of the two already. A store that did not answer may have done it all the same.
    S.RECLAIMING: {
        **_stays(S.RECLAIMING, SE.CANCEL, SE.TRANSFER_FAILED, SE.TIMEOUT, SE.PEER_LOST),
        **_stays(S.RECLAIMING, SE.COMMITTED, SE.REFUSED),
        SE.CLIENT_LEFT: _DOUBT[SE.CLIENT_LEFT],
        SE.MINE: (S.ABORTED, (C.SEND_ABORT, C.UNPARK)),
        SE.THEIRS: (S.COMMITTED, (C.RELEASE,)),
        SE.UNKNOWN: (S.RECLAIMING, (C.RECLAIM,)),
    },
    # Who ends a request may not know yet where it went.
    S.COMMITTED: {SE.CLIENT_LEFT: (S.COMMITTED, (C.SEND_ABORT,))},
    S.ABORTED: {},
}

_GIVEN_UP: Final = (DE.ABORT, DE.PEER_LOST, DE.TIMEOUT)
_REFUSE: Final = (C.DISCARD, C.SEND_REFUSED)

_DESTINATION: Final[dict[State, _Row]] = {
    # The step thread does HOLD and DISCARD in the order in which they were asked for.
    D.HOLDING: {
        DE.ROOM: (D.HELD, (C.SEND_ACK,)),
        DE.NO_ROOM: (D.DISCARDED, (C.SEND_REFUSED,)),
        DE.ASK: (D.DISCARDED, _REFUSE),
        **_ends(D.DISCARDED, (C.DISCARD,), *_GIVEN_UP),
    },
    D.HELD: {
        DE.STAGE: (D.HELD, (C.RESERVE,)),
        # RECEIVE before the ACK, which lets the blocks come.
        DE.ROOM: (D.HELD, (C.RECEIVE, C.SEND_ACK)),
        DE.NO_ROOM: (D.DISCARDED, _REFUSE),
        DE.WRITTEN: (D.HELD, (C.SEND_RECEIVED,)),
        DE.LAST: (D.LOADING, (C.RECEIVE,)),
        DE.TRANSFER_FAILED: (D.DISCARDED, _REFUSE),
        DE.ASK: (D.DISCARDING, (C.SEND_REFUSED, C.STOP_RECEIVING)),
        **_ends(D.DISCARDING, (C.STOP_RECEIVING,), *_GIVEN_UP),
    },
    D.LOADING: {
        DE.WRITTEN: (D.LOADED, (C.SEND_RECEIVED,)),
        DE.TRANSFER_FAILED: (D.DISCARDED, _REFUSE),
        DE.ASK: (D.DISCARDING, (C.SEND_REFUSED, C.STOP_RECEIVING)),
        **_ends(D.DISCARDING, (C.STOP_RECEIVING,), *_GIVEN_UP),
    },
    D.LOADED: {
        DE.COMMIT: (D.ADOPTING, (C.ADOPT,)),
        DE.ASK: (D.DISCARDED, _REFUSE),
        **_ends(D.DISCARDED, (C.DISCARD,), *_GIVEN_UP),
    },
    D.ADOPTING: {
        DE.ADOPTED: (D.ADOPTED, (C.SEND_COMMITTED,)),
        DE.NOT_ADOPTED: (D.DISCARDED, _REFUSE),
        # The step thread adopts first and ends it then.
        DE.ABORT: (D.DISCARDED, (C.END_REQUEST, C.DISCARD)),
        # The commit arrived: the request is this side's, whoever goes.
        **_stays(D.ADOPTING, DE.ASK, DE.PEER_LOST, DE.TIMEOUT),
    },
    D.DISCARDING: {
        DE.QUIET: (D.DISCARDED, (C.DISCARD,)),
        DE.ASK: (D.DISCARDING, (C.SEND_REFUSED,)),
        **_stays(
            D.DISCARDING,
            *_GIVEN_UP,
            DE.ROOM,
            DE.NO_ROOM,
            DE.WRITTEN,
            DE.TRANSFER_FAILED,
            DE.STAGE,
            DE.LAST,
            DE.COMMIT,
        ),
    },
    D.ADOPTED: {DE.ASK: (D.ADOPTED, (C.SEND_COMMITTED,)), DE.ABORT: (D.ADOPTED, (C.END_REQUEST,))},
    # A commit that comes too late is answered, so that the source need not wait to ask.
    D.DISCARDED: _ends(D.DISCARDED, (C.SEND_REFUSED,), DE.ASK, DE.COMMIT),
}

TABLE: Final[dict[State, _Row]] = _SOURCE | _DESTINATION
ENDS: Final = frozenset((S.COMMITTED, S.ABORTED, D.ADOPTED, D.DISCARDED))


def step(state: State, event: Event) -> tuple[State, Commands]:
    """Returns the next state and what is to be done. Raises: ProtocolError (see above)."""
    row = TABLE[state]
    if event in row and _same_side(state, event):
        return row[event]
    if state in ENDS and _same_side(state, event):
        return state, ()
    side = "source" if isinstance(state, SourceState) else "destination"
    raise ProtocolError(f"{side} in state '{state}' cannot get '{event}'")


def _same_side(state: State, event: Event) -> bool:
    return isinstance(state, SourceState) == isinstance(event, SourceEvent)
