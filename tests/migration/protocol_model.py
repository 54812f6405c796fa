"""All that may happen to a move in a world (protocol_world.py).

Two links: the one the move began on and the one that ASK opens. A lost link delivers some of what
was under way, never more than was sent, then PEER_LOST to each side; what is sent later is dropped.
"""

from collections.abc import Iterator

from migration.protocol import Command as C
from migration.protocol import DestinationEvent as DE
from migration.protocol import DestinationState as D
from migration.protocol import SourceEvent as SE
from tests.migration.protocol_world import (
    PREPARE,
    AtDestination,
    AtSource,
    Gone,
    Kind,
    Link,
    Log,
    Step,
    Violation,
    World,
    does_source_decode,
    is_destination_accepted,
    is_living,
    is_source_accepted,
    tell_destination,
    tell_source,
)

COPIES_MAX = 2


def _messages_to_destination(w: World) -> Iterator[Step]:
    if w.to_destination:
        message = w.to_destination[0]
        yield (
            f"D gets {message}",
            Kind.INSIDE,
            _hear(w._replace(to_destination=w.to_destination[1:]), message),
        )
    if w.ask_to_destination:
        message = w.ask_to_destination[0]
        rest = w._replace(ask_to_destination=w.ask_to_destination[1:])
        label = f"D gets {message} on the second link"
        if w.destination is Gone.DEAD:
            if message == DE.ASK:
                yield (
                    "D is dead: asked in vain",
                    Kind.INSIDE,
                    rest._replace(
                        ask_link=Link.DOWN, ask_to_source=(SE.PEER_LOST,), ask_to_destination=()
                    ),
                )
                if w.ask_link is Link.UP:
                    # A new incarnation knows nothing of the move.
                    refused = rest._replace(ask_to_source=(*w.ask_to_source, SE.REFUSED))
                    yield "D's successor refuses", Kind.INSIDE, refused
            else:
                yield label, Kind.INSIDE, rest
        else:
            if message == DE.ASK:
                rest = rest._replace(is_answered_on_ask=True)
            yield label, Kind.INSIDE, _hear(rest, message)


def _hear(w: World, message: str) -> World:
    if message == PREPARE:
        return w._replace(destination=D.HOLDING, destination_jobs=(C.RESERVE,))
    if w.destination is Gone.UNBORN:
        assert message != DE.ASK
        return w
    return tell_destination(w, DE(message))


def _messages_to_source(w: World) -> Iterator[Step]:
    if w.to_source:
        message = SE(w.to_source[0])
        rest = w._replace(to_source=w.to_source[1:])
        yield f"S gets {message}", Kind.INSIDE, tell_source(rest, message)
    if w.ask_to_source:
        message = SE(w.ask_to_source[0])
        rest = w._replace(ask_to_source=w.ask_to_source[1:])
        yield f"S gets {message} on the second link", Kind.INSIDE, tell_source(rest, message)


def _source_thread(w: World) -> Iterator[Step]:
    if w.source_answers:
        event = w.source_answers[0]
        rest = w._replace(source_answers=w.source_answers[1:])
        yield f"S hears {event}", Kind.INSIDE, tell_source(rest, event)
    if not w.source_jobs:
        return
    job = w.source_jobs[0]
    w = w._replace(source_jobs=w.source_jobs[1:])
    label = f"S does {job}"
    if job is C.LOOK:
        for answer in _look_answers(w):
            after = w._replace(
                source_answers=(*w.source_answers, answer),
                copies=w.copies + (answer is SE.MORE),
            )
            yield f"{label}: {answer}", Kind.INSIDE, after
    elif job is C.PARK:
        is_parked = w.at_source is AtSource.DECODING
        answer = SE.PARKED if is_parked else SE.GONE
        after = w._replace(source_answers=(*w.source_answers, answer))
        if is_parked:
            after = after._replace(at_source=AtSource.PARKED)
        yield f"{label}: {answer}", Kind.INSIDE, after
    elif job is C.UNPARK:
        if w.at_source is AtSource.PARKED:
            w = w._replace(at_source=AtSource.DECODING)
        yield label, Kind.INSIDE, w
    else:
        if job is C.RELEASE and w.at_source is not AtSource.PARKED:
            raise Violation("a request is released that is not parked")
        yield label, Kind.INSIDE, w._replace(at_source=AtSource.NOT_THERE)


def _look_answers(w: World) -> tuple[SE, ...]:
    if w.at_source is not AtSource.DECODING:
        return (SE.GONE,)
    return (SE.BUSY, SE.LITTLE, *((SE.MORE,) if w.copies < COPIES_MAX else ()))


def _destination_thread(w: World) -> Iterator[Step]:
    if w.destination_answers:
        event = w.destination_answers[0]
        rest = w._replace(destination_answers=w.destination_answers[1:])
        yield f"D hears {event}", Kind.INSIDE, tell_destination(rest, event)
    if not w.destination_jobs:
        return
    job = w.destination_jobs[0]
    w = w._replace(destination_jobs=w.destination_jobs[1:])
    label = f"D does {job}"
    if job is C.RESERVE:
        held = w._replace(at_destination=AtDestination.HELD)
        yield f"{label}: room", Kind.INSIDE, _answered(held, DE.ROOM)
        yield f"{label}: no room", Kind.INSIDE, _answered(w, DE.NO_ROOM)
    elif job is C.ADOPT:
        if w.at_destination is not AtDestination.HELD or w.is_receiving:
            raise Violation("a request is adopted that is not there")
        adopted = w._replace(at_destination=AtDestination.ADOPTED)
        yield f"{label}: adopted", Kind.INSIDE, _answered(adopted, DE.ADOPTED)
        yield f"{label}: not adopted", Kind.INSIDE, _answered(w, DE.NOT_ADOPTED)
    elif job is C.DISCARD:
        if w.is_receiving:
            raise Violation("blocks are freed while a transfer may still write to them")
        if w.at_destination is AtDestination.HELD:
            w = w._replace(at_destination=AtDestination.NOTHING)
        yield label, Kind.INSIDE, w
    else:
        if w.at_destination is AtDestination.ADOPTED:
            w = w._replace(at_destination=AtDestination.NOTHING)
        yield label, Kind.INSIDE, w


def _answered(w: World, event: DE) -> World:
    return w._replace(destination_answers=(*w.destination_answers, event))


def _transfer(w: World) -> Iterator[Step]:
    if w.can_send_fail and is_living(w.source):
        failed = w._replace(can_send_fail=False)
        yield "S's transfer fails", Kind.FAULT, tell_source(failed, SE.TRANSFER_FAILED)
    if w.is_receiving:
        if w.is_sent:
            written = w._replace(is_receiving=False, is_sent=False, received=DE.WRITTEN)
            yield "D has written", Kind.INSIDE, written
        failed = w._replace(is_receiving=False, is_sent=False, received=DE.TRANSFER_FAILED)
        # A stopped transfer ends by itself; another one may break.
        kind = Kind.INSIDE if w.is_stopping else Kind.FAULT
        yield "D's transfer fails", kind, failed
    if w.received is not None:
        heard = tell_destination(w._replace(received=None), w.received)
        yield f"D hears {w.received}", Kind.INSIDE, heard
    if w.is_stopping and not w.is_receiving:
        yield "D is quiet", Kind.INSIDE, tell_destination(w._replace(is_stopping=False), DE.QUIET)


def _store(w: World) -> Iterator[Step]:
    if w.is_logging:
        logged = tell_source(w._replace(is_logging=False), SE.LOGGED)
        yield "S's tokens are logged", Kind.INSIDE, logged
    if w.is_waiting_to_look:
        later = tell_source(w._replace(is_waiting_to_look=False), SE.LATER)
        yield "S has waited", Kind.INSIDE, later
    if w.is_reclaiming:
        asked = w._replace(is_reclaiming=False)
        fenced = asked._replace(log=Log.FENCED)
        if w.log is Log.DESTINATION:
            yield "log: theirs", Kind.INSIDE, asked._replace(log_answer=SE.THEIRS)
        else:
            yield "log: mine", Kind.INSIDE, fenced._replace(log_answer=SE.MINE)
            yield "log: mine, but no answer", Kind.FAULT, fenced._replace(log_answer=SE.UNKNOWN)
        yield "log: no answer", Kind.FAULT, asked._replace(log_answer=SE.UNKNOWN)
    if w.log_answer is not None:
        heard = tell_source(w._replace(log_answer=None), w.log_answer)
        yield f"S hears {w.log_answer} from the log", Kind.INSIDE, heard
    if does_source_decode(w) and not is_source_accepted(w):
        shut_out = w._replace(at_source=AtSource.NOT_THERE)
        yield "S's tokens are refused", Kind.INSIDE, shut_out
    if w.at_destination is AtDestination.ADOPTED:
        if not is_destination_accepted(w):
            shut_out = w._replace(at_destination=AtDestination.NOTHING)
            yield "D's tokens are refused", Kind.INSIDE, shut_out
        elif w.log is Log.SOURCE:
            yield "D appends", Kind.INSIDE, w._replace(log=Log.DESTINATION)


def _timers(w: World) -> Iterator[Step]:
    if is_living(w.source):
        yield "S times out", Kind.TIMER, tell_source(w, SE.TIMEOUT)
    if is_living(w.destination):
        yield "D times out", Kind.TIMER, tell_destination(w, DE.TIMEOUT)


def _wishes(w: World) -> Iterator[Step]:
    if w.can_cancel:
        yield "cancelled", Kind.WISH, tell_source(w._replace(can_cancel=False), SE.CANCEL)
    if not w.has_client_left and not w.is_finished:
        left = w._replace(has_client_left=True)
        if w.source is not Gone.DEAD:
            told = tell_source(left, SE.CLIENT_LEFT)
            if not is_living(w.source) and w.at_source is not AtSource.NOT_THERE:
                told = told._replace(source_jobs=(*told.source_jobs, C.END_REQUEST))
            yield "client leaves, S is told", Kind.WISH, told
        # The frames in the log say where the request is.
        if w.at_destination is AtDestination.ADOPTED and w.log is Log.DESTINATION:
            told = left._replace(at_destination=AtDestination.NOTHING)
            yield "client leaves, D is told", Kind.WISH, told
    if does_source_decode(w) and is_living(w.source):
        finished = w._replace(at_source=AtSource.NOT_THERE, is_finished=True)
        yield "finishes unseen", Kind.WISH, finished
        seen = finished._replace(source_answers=(*w.source_answers, SE.GONE))
        yield "finishes", Kind.WISH, seen
        if w.at_source is AtSource.DECODING:
            preempted = w._replace(at_source=AtSource.BLOCKS_LOST)
            yield "preempted", Kind.WISH, preempted


def _faults(w: World) -> Iterator[Step]:
    if w.link is Link.UP:
        for there in range(len(w.to_destination) + 1):
            for back in range(len(w.to_source) + 1):
                lost = w._replace(
                    link=Link.DOWN,
                    to_destination=(*w.to_destination[:there], DE.PEER_LOST),
                    to_source=(*w.to_source[:back], SE.PEER_LOST),
                )
                yield f"link lost after {there} and {back}", Kind.FAULT, lost
    if w.ask_link is Link.UP:
        for there in range(len(w.ask_to_destination) + 1):
            for back in range(len(w.ask_to_source) + 1):
                lost = w._replace(
                    ask_link=Link.DOWN,
                    ask_to_destination=(*w.ask_to_destination[:there], DE.PEER_LOST),
                    ask_to_source=(*w.ask_to_source[:back], SE.PEER_LOST),
                )
                yield f"second link lost after {there} and {back}", Kind.FAULT, lost
    if not w.is_anyone_killed:
        yield from _kills(w)


def _kills(w: World) -> Iterator[Step]:
    # What a dead source has asked of the store may still be done there.
    may_fence = w.is_reclaiming and w.log is Log.SOURCE
    is_at_destination = w.at_destination is AtDestination.ADOPTED and w.log is not Log.FENCED
    for there in range(len(w.to_destination) + 1):
        dead = w._replace(
            source=Gone.DEAD,
            is_anyone_killed=True,
            is_owner_killed=may_fence or not is_at_destination,
            at_source=AtSource.NOT_THERE,
            source_jobs=(),
            link=Link.DOWN,
        )
        if w.link is Link.UP:
            dead = dead._replace(to_destination=(*w.to_destination[:there], DE.PEER_LOST))
        if w.ask_link is Link.UP:
            queue = (*w.ask_to_destination, DE.PEER_LOST)
            dead = dead._replace(ask_link=Link.DOWN, ask_to_destination=queue)
        yield f"S killed after {there}", Kind.FAULT, dead
    if w.destination is Gone.UNBORN:
        return
    for back in range(len(w.to_source) + 1):
        dead = w._replace(
            destination=Gone.DEAD,
            is_anyone_killed=True,
            is_owner_killed=w.destination in (D.ADOPTING, D.ADOPTED),
            at_destination=AtDestination.NOTHING,
            destination_jobs=(),
            is_receiving=False,
            is_stopping=False,
            received=None,
            to_destination=(),
            link=Link.DOWN,
        )
        if w.link is Link.UP:
            dead = dead._replace(to_source=(*w.to_source[:back], SE.PEER_LOST))
        if w.ask_link is Link.UP and w.is_answered_on_ask:
            queue = (*w.ask_to_source, SE.PEER_LOST)
            dead = dead._replace(ask_link=Link.DOWN, ask_to_source=queue)
        yield f"D killed after {back}", Kind.FAULT, dead


_PARTS = (
    _messages_to_destination,
    _messages_to_source,
    _source_thread,
    _destination_thread,
    _transfer,
    _store,
    _timers,
    _wishes,
    _faults,
)


def next_steps(w: World) -> Iterator[Step]:
    """Yields all that may happen in a world."""
    for part in _PARTS:
        yield from part(w)
