"""Where a request is that may have moved: what reports and moves say beside its frames.

A frame is the best witness (stream.py), but a queued request has none, and between the commit of a
move and the destination's first frame there is a short while. Reads the live view only.
"""

from engine_pool.live_view import DEAD_STATES, LiveView
from engine_pool.stream import Stream
from engine_pool.types import InstanceName, InstanceStatus
from migration.report import MoveReport, MoveState


def is_alive(status: InstanceStatus | None, incarnation: str) -> bool:
    """Says whether an instance still is the one that a request was sent to."""
    if status is None or status.state in DEAD_STATES:
        return False
    return not incarnation or status.incarnation in ("", incarnation)


def newest_move(live: LiveView, request_id: str) -> MoveReport | None:
    """Returns the last move of a request that is known, None when there is none."""
    found = [m for m in live.moves.values() if m.request_id == request_id]
    return max(found, key=lambda m: m.started_unix_s, default=None)


def other_place(live: LiveView, stream: Stream) -> InstanceStatus | None:
    """Returns the living instance that has the request, if that is not where it was thought to be.

    Its report shows the request, or the move to it is committed.
    """
    move = newest_move(live, stream.request_id)
    for holder in live.holders(stream.request_id):
        is_other = _is_other(stream, holder.instance, holder.incarnation)
        if is_other and not _is_left(live, holder.instance, move):
            return holder
    if move is None or move.state is not MoveState.COMMITTED or not is_from(move, stream):
        return None
    return _destination(live, move)


def may_arrive(live: LiveView, stream: Stream) -> bool:
    """Says whether a move of the request to a living instance goes on: it may be there already,
    and its source has just not said so, or could not any more."""
    move = newest_move(live, stream.request_id)
    if move is None or move.state is MoveState.ABORTED or not is_from(move, stream):
        return False
    return _destination(live, move) is not None


def is_from(move: MoveReport, stream: Stream) -> bool:
    """Says whether a move begins where a stream's request is thought to be, and is not older than
    the stream's newest frame."""
    if _is_other(stream, InstanceName(move.source), move.source_incarnation):
        return False
    # Tokens beyond the pause were produced after it, and their frames know better.
    return move.output_tokens_at_pause is None or stream.end <= move.output_tokens_at_pause


def _is_left(live: LiveView, holder: InstanceName, move: MoveReport | None) -> bool:
    """Says whether a report that shows the request was made before it left that instance."""
    if move is None or move.state is not MoveState.COMMITTED or move.source != holder:
        return False
    # The source makes both: one clock.
    return live.loads[holder].at_unix_s <= move.at_unix_s


def _is_other(stream: Stream, instance: InstanceName, incarnation: str) -> bool:
    if stream.instance != instance:
        return True
    return bool(stream.incarnation and incarnation) and stream.incarnation != incarnation


def _destination(live: LiveView, move: MoveReport) -> InstanceStatus | None:
    status = live.statuses.get(InstanceName(move.destination))
    return status if is_alive(status, move.destination_incarnation) else None
