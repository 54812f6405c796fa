"""The pool as it will be when the moves that go on have ended: so that a round starts no more.

Changes reports, decides nothing. A request on its way is left out at its source, with its KV
tokens; at its destination it runs, in as much room as it will need. What the destination has
reserved for it already is in the report's used tokens and is not counted again. A move that has
just been committed counts likewise in reports that are older than its end.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from engine_pool.policy.standing import need_tokens
from engine_pool.types import (
    InstanceLoad,
    InstanceName,
    PoolView,
    PriorityClass,
    RequestId,
    RequestLoad,
)
from migration.report import MoveReport, MoveState


@dataclass(frozen=True, slots=True)
class Transit:
    """A view with what is on its way."""

    view: PoolView
    """Its loads are as they will be."""
    leaving: frozenset[str]
    """Requests of moves that go on."""
    going_on: Mapping[InstanceName, int]
    """Moves that go on, by instance, at either end."""


def with_moves(view: PoolView, moves: Iterable[MoveReport]) -> Transit:
    """Counts moves in. Those that have ended long ago, or that a dead instance made, change
    nothing."""
    loads = {load.instance: load for load in view.loads}
    leaving: set[str] = set()
    going_on: dict[InstanceName, int] = {}
    for move in moves:
        if move.state is MoveState.ABORTED:
            continue
        source, destination = InstanceName(move.source), InstanceName(move.destination)
        if not move.state.is_end:
            leaving.add(move.request_id)
            for end in (source, destination):
                going_on[end] = going_on.get(end, 0) + 1
        here = loads.get(source)
        moved = None
        if here is not None and here.incarnation == move.source_incarnation:
            loads[source], moved = _left(here, move)
        there = loads.get(destination)
        if there is not None and there.incarnation == move.destination_incarnation:
            loads[destination] = _come(there, move, moved or _as_told(move))
    changed = replace(view, loads=tuple(loads.values()))
    return Transit(changed, frozenset(leaving), going_on)


def _counts(load: InstanceLoad, move: MoveReport) -> bool:
    """Says whether a report is from before the move's end."""
    return not move.state.is_end or load.at_unix_s < move.at_unix_s


def _left(load: InstanceLoad, move: MoveReport) -> tuple[InstanceLoad, RequestLoad | None]:
    """Returns the source without the request, and the request where its report shows it."""
    if not _counts(load, move):
        return load, None
    request_id = RequestId(move.request_id)
    found = next((r for r in (*load.running, *load.waiting) if r.request_id == request_id), None)
    if found is None:
        # Out of the batch for its pause; it holds its blocks until the end.
        held_tokens = 0 if move.state.is_end else _as_told(move).kv_tokens
        return replace(load, used_tokens=max(0, load.used_tokens - held_tokens)), None
    left = replace(
        load,
        used_tokens=max(0, load.used_tokens - found.kv_tokens),
        running=tuple(r for r in load.running if r.request_id != request_id),
        waiting=tuple(r for r in load.waiting if r.request_id != request_id),
    )
    return left, found


def _come(load: InstanceLoad, move: MoveReport, request: RequestLoad) -> InstanceLoad:
    """Returns the destination with the request, unless its report shows it already."""
    request_id = RequestId(move.request_id)
    if not _counts(load, move) or request_id in load.ended:
        return load
    if any(r.request_id == request_id for r in (*load.running, *load.waiting)):
        return load
    room_tokens = need_tokens(request, load.block_size_tokens)
    more_tokens = max(0, room_tokens - _reserved_tokens(load, move))
    return replace(
        load,
        used_tokens=load.used_tokens + more_tokens,
        running=(*load.running, replace(request, kv_tokens=room_tokens, demand_tokens=0)),
    )


def _reserved_tokens(load: InstanceLoad, move: MoveReport) -> int:
    """Returns what the destination's report already counts as used for the move."""
    # The destination's first word is that it has reserved.
    heard_ms = next((m.at_ms for m in move.messages if m.sender == "destination"), None)
    if heard_ms is None or load.at_unix_s < move.started_unix_s + heard_ms / 1000:
        return 0
    return move.reserved_blocks * load.block_size_tokens


def _as_told(move: MoveReport) -> RequestLoad:
    """Makes the request from the move's own story, where no report shows it."""
    tokens = move.tokens_at_start if move.tokens_at_pause is None else move.tokens_at_pause
    block = max(1, move.block_size_tokens)
    held_tokens = -(-tokens // block) * block
    # One token more than the prompt, as engines report it: the first output needs its place too.
    demand_tokens = (move.prompt_tokens // block + 1) * block
    known = {c.value: c for c in PriorityClass}
    return RequestLoad(
        RequestId(move.request_id),
        known.get(move.priority_class, PriorityClass.NORMAL),
        0 if move.is_queued else held_tokens,
        move.prompt_tokens,
        1,
        demand_tokens=demand_tokens if move.is_queued else 0,
    )
