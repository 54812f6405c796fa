"""One request's time as lanes: queue, prefill, decoding by instance, pauses. Pure.

Times are milliseconds since its arrival. What nobody measured is not drawn.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from controlplane.fleet.models import MigrationRecord
from controlplane.gateway.models import RequestRecord
from migration.report import MoveState
from web.gantt import PLOT_MIN_PX, Axis, Dot, Lane, Plot, bars, ticks
from web.ledger_words import lasts
from web.move_spans import Span
from web.move_units import plural

LANES_MAX: Final = 8
"""Instances with a lane of their own; further visits share the last one."""


class Visit(NamedTuple):
    """A stay at one instance while it decoded."""

    instance: str
    start_ms: float
    end_ms: float


class Pause(NamedTuple):
    """What the reader waited for one move, or for a replay after a loss."""

    at_ms: float
    lasts_ms: float
    source: str
    destination: str
    migration_id: str
    """Empty: a replay."""


def timeline(record: RequestRecord, moves: Sequence[MigrationRecord]) -> Plot:
    """Draws a request that has ended. The axis is its whole life."""
    axis = Axis(0.0, max(record.duration_ms * 1.02, 1.0), PLOT_MIN_PX)
    stops = pauses(record, moves)
    lanes = [Lane(name, bars(spans, axis)) for name, spans in _before(record)]
    by_instance: dict[str, list[Span]] = {}
    for number, visit in enumerate(visits(record, stops)):
        is_room = visit.instance in by_instance or len(by_instance) < LANES_MAX
        name = visit.instance if is_room else list(by_instance)[-1]
        by_instance.setdefault(name, []).append(_stay(visit, number))
    lanes += [Lane(f"Decode {name}", bars(spans, axis)) for name, spans in by_instance.items()]
    if stops:
        dots = tuple(Dot("pause", axis.x(p.at_ms), _pause_words(p)) for p in stops)
        lanes.append(Lane("Pauses", bars([_pause_span(p) for p in stops], axis), dots))
    return Plot(tuple(lanes), ticks(axis), None)


def pauses(record: RequestRecord, moves: Sequence[MigrationRecord]) -> list[Pause]:
    """Returns the waits for moves that were carried out while it decoded, first to last."""
    found = []
    for move in moves:
        if move.state != MoveState.COMMITTED or move.is_queued or move.downtime_ms is None:
            continue
        begun_ms = offset_ms(record.arrived_at, move.started_at)
        paused_ms = begun_ms + float(move.report.get("paused_ms") or 0.0)
        # Clocks of two machines differ by some ms: a pause lies within the request's life.
        at_ms = min(max(paused_ms, record.ttft_ms or 0.0), record.duration_ms)
        found.append(
            Pause(at_ms, move.downtime_ms, move.source, move.destination, move.migration_id)
        )
    return sorted([*found, *replay_pauses(record)])


def replay_pauses(record: RequestRecord) -> list[Pause]:
    """Returns the waits for replays in mid answer, as far as somebody saw when they were."""
    return [
        Pause(
            max(0.0, note["at_ms"] - note["gap_ms"]), note["gap_ms"], note["from"], note["to"], ""
        )
        for note in record.replay_notes
        if note["at_ms"] is not None and note["gap_ms"] is not None
    ]


def visits(record: RequestRecord, stops: Sequence[Pause]) -> list[Visit]:
    """Returns where it decoded, and when. Without a first token nowhere."""
    if record.ttft_ms is None:
        return []
    end_ms = record.duration_ms
    if record.decode_ms is not None:
        end_ms = min(end_ms, record.ttft_ms + record.decode_ms + record.migration_ms)
    at, start_ms = record.instance or "not told", record.ttft_ms
    if stops:
        at = stops[0].source
    found = []
    for stop in stops:
        found.append(Visit(at, start_ms, max(start_ms, stop.at_ms)))
        at, start_ms = stop.destination, stop.at_ms + stop.lasts_ms
    found.append(Visit(at, start_ms, max(start_ms, end_ms)))
    return found


def offset_ms(start: datetime, at: datetime) -> float:
    return (at - start) / timedelta(milliseconds=1)


def _before(record: RequestRecord) -> list[tuple[str, list[Span]]]:
    """Returns what was before the first token, or all of it when there was none."""
    until_ms = record.duration_ms if record.ttft_ms is None else record.ttft_ms
    if record.queue_ms is None:
        return [("Before", [_span("queued", 0.0, until_ms, "queue and prefill, not told apart")])]
    queue_ms = min(record.queue_ms, until_ms)
    lanes = [("Queued", [_span("queued", 0.0, queue_ms, "waited")])]
    if record.ttft_ms is not None or record.prefill_ms is not None:
        lanes.append(("Prefill", [_span("copy", queue_ms, until_ms, "prompt")]))
    return lanes


def _stay(visit: Visit, number: int) -> Span:
    kind = "source" if number % 2 == 0 else "destination"
    return _span(kind, visit.start_ms, visit.end_ms, visit.instance)


def _span(kind: str, start_ms: float, end_ms: float, words: str) -> Span:
    long = f"{words}, {lasts(end_ms - start_ms)}"
    return Span(kind, start_ms, end_ms, (long, lasts(end_ms - start_ms)), long)


def _pause_span(pause: Pause) -> Span:
    words = ("" if pause.migration_id else "replay ") + lasts(pause.lasts_ms)
    end_ms = pause.at_ms + pause.lasts_ms
    return Span("abort", pause.at_ms, end_ms, (words,), _pause_words(pause))


def _pause_words(pause: Pause) -> str:
    if not pause.migration_id:
        lost = f"{pause.source} was lost, replayed at {pause.destination}"
        return f"{lost}: the reader waited {lasts(pause.lasts_ms)}"
    return f"{pause.source} → {pause.destination}: the reader waited {lasts(pause.lasts_ms)}"


def moved_words(count: int) -> str:
    """Returns "moved once", "moved 3 times"."""
    return "moved once" if count == 1 else f"moved {plural(count, 'time')}"


def replayed_words(count: int) -> str:
    """Returns "replayed once", "replayed 3 times"."""
    return "replayed once" if count == 1 else f"replayed {plural(count, 'time')}"
