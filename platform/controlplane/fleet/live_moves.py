"""What the cluster page shows of the moves: rows of those in flight, counts, and events. Pure.

All of it comes from the live view, which holds the moves that go on and the last that ended.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from controlplane.fleet.captions import Tone, short_id
from controlplane.fleet.picture import EventRow
from migration.report import MoveReport, MoveState

WINDOW_S: Final = 300.0
ENDED_SHOWN_S: Final = 5.0
"""An ended row stays so long with its result."""
SILENT_AFTER_S: Final = 5.0
"""A move is reported several times a second while it goes on."""
ROWS_MAX: Final = 12
"""Rows that the page may know of; as many arcs can be told apart."""
GROUP_GAP_S: Final = 60.0
"""Moves between the same two instances that follow each other so closely are one event."""
ENDED_FIRST: Final = ("request_finished", "client_cancelled")
"""Abort codes of a request that was over before it moved."""
COPIES_DRAWN: Final = 2
"""Two are the rule; more are drawn when they come."""


class MoveRow(NamedTuple):
    """One move in flight. The fields' order is the socket's (web/messages.py)."""

    request_id: str
    priority_class: str
    state: str
    source: str
    destination: str
    started_unix_s: float
    took_s: float | None
    """None while it goes on."""
    pips: str
    """A letter a step (reserve, copies, pause, commit): done, now, ahead or x for broken off."""
    line: str
    tone: Tone


@dataclass(frozen=True, slots=True)
class MoveCounts:
    """The moves of the last five minutes, as far as this process has watched."""

    committed: int = 0
    aborted: int = 0
    going_on: int = 0
    waits_ms: tuple[float, ...] = ()
    """Downtimes, ascending."""
    into: Counter[str] | None = None
    out_of: Counter[str] | None = None

    def moves_in(self, instance: str) -> int:
        return self.into[instance] if self.into else 0

    def moves_out(self, instance: str) -> int:
        return self.out_of[instance] if self.out_of else 0


def went_on(move: MoveReport) -> bool:
    """Says whether a request whose move was aborted went on at its source.

    Without the time of the end somebody else told it, after the source was lost.
    """
    is_told = move.state is MoveState.ABORTED and move.ended_ms is not None
    return is_told and move.abort_code not in ENDED_FIRST


def abort_words(move: MoveReport) -> str:
    """Returns why a move was aborted, naming who had no room."""
    reason = (move.abort_reason or move.abort_code.replace("_", " ") or "no reason given").rstrip(
        "."
    )
    if move.abort_code == "no_blocks" and move.destination not in reason:
        return f"{move.destination} had no room: {reason}"
    return reason


def move_rows(moves: Iterable[MoveReport], now_unix_s: float) -> dict[str, MoveRow]:
    """Returns the moves in flight and those that ended just now by id, the oldest first."""
    shown = sorted(
        (m for m in moves if not m.state.is_end or now_unix_s - m.at_unix_s < ENDED_SHOWN_S),
        key=lambda m: (m.started_unix_s, m.migration_id),
    )
    return {m.migration_id: move_row(m, now_unix_s) for m in islice(shown, ROWS_MAX)}


def move_row(move: MoveReport, now_unix_s: float) -> MoveRow:
    """Describes one move."""
    line, tone = _line(move, now_unix_s)
    took_s = None
    if move.state.is_end:
        took_s = move.at_unix_s - move.started_unix_s
        if move.ended_ms is not None:
            took_s = move.ended_ms / 1000
    return MoveRow(
        request_id=move.request_id,
        priority_class=move.priority_class,
        state=move.state.value,
        source=move.source,
        destination=move.destination,
        started_unix_s=round(move.started_unix_s, 2),
        took_s=None if took_s is None else round(took_s, 2),
        pips=_pips(move),
        line=line,
        tone=tone,
    )


def counts_of(moves: Iterable[MoveReport], now_unix_s: float) -> MoveCounts:
    """Counts the moves that ended in the last five minutes, and those that go on."""
    known = list(moves)
    recent = [m for m in known if m.state.is_end and now_unix_s - m.at_unix_s <= WINDOW_S]
    committed = [m for m in recent if m.state is MoveState.COMMITTED]
    return MoveCounts(
        committed=len(committed),
        aborted=len(recent) - len(committed),
        going_on=sum(not m.state.is_end for m in known),
        waits_ms=tuple(sorted(m.downtime_ms for m in committed if m.downtime_ms is not None)),
        into=Counter(m.destination for m in committed),
        out_of=Counter(m.source for m in committed),
    )


def move_events(moves: Iterable[MoveReport]) -> dict[str, EventRow]:
    """Returns ended moves as events by key, newest first: one event for moves that belong together.

    The key is of the first move of a group, so that an event grows instead of being replaced.
    """
    groups: list[list[MoveReport]] = []
    open_groups: dict[tuple[str, str, str], list[MoveReport]] = {}
    for move in sorted((m for m in moves if m.state.is_end), key=lambda m: m.at_unix_s):
        if move.state is MoveState.ABORTED:
            groups.append([move])
            continue
        key = (move.source, move.destination, move.asked_by)
        group = open_groups.get(key)
        if group is None or move.at_unix_s - group[-1].at_unix_s > GROUP_GAP_S:
            group = open_groups[key] = []
            groups.append(group)
        group.append(move)
    groups.sort(key=lambda group: group[-1].at_unix_s, reverse=True)
    return {f"move/{group[0].migration_id}": _event(group) for group in groups}


def merged_events(
    events: dict[str, EventRow], moves: dict[str, EventRow], limit: int
) -> dict[str, EventRow]:
    """Returns both as one list, newest first."""
    every = sorted(
        (*events.items(), *moves.items()), key=lambda item: item[1].at_unix_s, reverse=True
    )
    return dict(every[:limit])


def _event(group: Sequence[MoveReport]) -> EventRow:
    last = group[-1]
    at_unix_s = round(last.at_unix_s, 3)
    if last.state is MoveState.ABORTED:
        detail = f"{abort_words(last)}."
        if went_on(last):
            noticed = "; its reader saw nothing" if last.paused_ms is None else ""
            detail += f" It went on at {last.source}{noticed}."
        headline = f"Move of {short_id(last.request_id)} aborted"
        link = f"/migrations/{last.migration_id}/"
        return EventRow(at_unix_s, "move_aborted", headline, detail, last.source, "info", link)
    waits = [m.downtime_ms for m in group if m.downtime_ms is not None]
    waited = f" Readers waited {max(waits):.0f} ms at most." if waits else ""
    why = last.reason.rstrip(".") or f"Asked for by {last.asked_by}"
    if len(group) == 1:
        name = short_id(last.request_id)
        headline = f"{name} moved from {last.source} to {last.destination}"
        waited = f" Its reader waited {waits[0]:.0f} ms." if waits else ""
        link = f"/migrations/{last.migration_id}/"
    else:
        headline = f"{last.source} → {last.destination}: {len(group)} moves"
        link = f"/migrations/?instance={last.source}"
    return EventRow(at_unix_s, "moved", headline, f"{why}.{waited}", last.source, "info", link)


def _pips(move: MoveReport) -> str:
    copies = sum(not s.is_last for s in move.stages)
    drawn = 0 if move.is_queued else max(COPIES_DRAWN, copies)
    total = drawn + 3
    if move.state is MoveState.COMMITTED:
        return "d" * total
    if move.paused_ms is not None:
        at = drawn + (2 if move.state is MoveState.COMMITTING else 1)
    elif move.state is MoveState.COPYING or copies:
        at = max(1, copies)
    else:
        at = 0
    here = "x" if move.state is MoveState.ABORTED else "n"
    return "d" * at + here + "a" * (total - at - 1)


def _line(move: MoveReport, now_unix_s: float) -> tuple[str, Tone]:
    age_s = now_unix_s - move.at_unix_s
    if not move.state.is_end and age_s > SILENT_AFTER_S:
        return f"{move.state.value.capitalize()} · no report for {age_s:.0f} s", "warn"
    sent = f"{move.sent_bytes / 1e6:,.0f} MB sent"
    match move.state:
        case MoveState.ASKED:
            return f"Asked {move.source}", "plain"
        case MoveState.RESERVING:
            return f"Reserve · {move.destination} is asked for room", "plain"
        case MoveState.COPYING:
            copies = max(1, sum(not s.is_last for s in move.stages))
            left = "" if move.blocks_left is None else f" · {_blocks(move.blocks_left)} left"
            return f"Copy {copies} · {sent}{left}", "plain"
        case MoveState.PAUSED:
            return f"Paused · last blocks · {sent}", "plain"
        case MoveState.COMMITTING:
            return f"Commit · {sent}", "plain"
        case MoveState.COMMITTED:
            waited = f", {move.downtime_ms:.0f} ms" if move.downtime_ms is not None else ""
            return f"moved{waited}", "info"
        case MoveState.ABORTED:
            after = f"; went on at {move.source}" if went_on(move) else ""
            return f"aborted: {abort_words(move)}{after}", "plain"


def _blocks(count: int) -> str:
    return f"{count:,} block{'' if count == 1 else 's'}"
