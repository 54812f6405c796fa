"""What a page says of one move, in words: title, sentence, tables. Pure.

Nothing is claimed that the report does not hold: a value that nobody measured is a dash.
"""

from typing import Final, NamedTuple

from controlplane.fleet.live_moves import ENDED_FIRST, abort_words, went_on
from controlplane.fleet.tiles import DASH, number
from migration.report import MoveReport, MoveState, StageReport
from web.move_spans import elapsed_ms, is_done, usual_gap_ms
from web.move_units import megabytes, milliseconds, plural, rate, short_ms, steps

STALE_AFTER_S: Final = 5.0
"""A move that goes on and was not reported for so long may have lost its source."""
CANCEL_STATES: Final = (MoveState.ASKED, MoveState.RESERVING, MoveState.COPYING)


class Words(NamedTuple):
    """A title in parts, so that ids can stand in their own font."""

    verb: str
    places: tuple[str, ...]
    """Instances: one for what stayed, two for what moved."""
    between: str
    state: str
    sentence: str


class StageRow(NamedTuple):
    name: str
    start: str
    took: str
    blocks: str
    mb: str
    gb_per_s: str
    note: str


class Fact(NamedTuple):
    name: str
    lines: tuple[str, ...]


def words_of(report: MoveReport, now_unix_s: float) -> Words:
    """Returns title, state and the one sentence that answers the question."""
    source, destination = report.source, report.destination
    state = report.state.value.capitalize()
    if report.state is MoveState.COMMITTED:
        places = (source, destination)
        return Words("moved from", places, "to", state, _committed(report))
    if report.state is MoveState.ABORTED:
        if report.abort_code in ENDED_FIRST:
            return Words("ended on", (source,), "", state, _aborted(report))
        verb = "stayed on" if went_on(report) else "did not move from"
        return Words(verb, (source,), "", state, _aborted(report))
    return Words("moves from", (source, destination), "to", state, _going_on(report, now_unix_s))


def is_silent(report: MoveReport, now_unix_s: float) -> bool:
    """Says whether a move that should go on is not reported any more."""
    return not report.state.is_end and now_unix_s - report.at_unix_s > STALE_AFTER_S


def can_cancel(report: MoveReport) -> bool:
    """Says whether a cancel can still have its effect: before the pause."""
    return report.state in CANCEL_STATES


def stage_rows(report: MoveReport) -> tuple[StageRow, ...]:
    """Returns the copies, and the pause as the time in which nobody decoded."""
    rows = [
        StageRow(
            "Last blocks" if s.is_last else f"Copy {s.number}",
            short_ms(s.started_ms),
            short_ms(s.took_ms),
            number(s.blocks),
            megabytes(s.bytes),
            rate(s.bytes, s.took_ms) if is_done(report, s) else DASH,
            _stage_note(report, s),
        )
        for s in report.stages
    ]
    if report.paused_ms is not None and not report.is_queued:
        end_ms = report.committed_ms if report.committed_ms is not None else report.ended_ms
        took = DASH if end_ms is None else short_ms(end_ms - report.paused_ms)
        rows.append(_event_row("Pause", report.paused_ms, took, _pause_note(report)))
    if report.committed_ms is not None:
        note = f"{report.destination} owns the request"
        rows.append(_event_row("Committed", report.committed_ms, DASH, note))
    if report.state is MoveState.ABORTED:
        note = f"stays on {report.source}" if went_on(report) else ""
        rows.append(_event_row("Aborted", elapsed_ms(report), DASH, note))
    return tuple(rows)


def why_facts(report: MoveReport) -> tuple[Fact, ...]:
    """Returns why it moved, in the words and numbers of whoever decided."""
    freeness = tuple(
        f"{name} {steps(value)}"
        for name, value in (
            (report.source, report.source_freeness),
            (report.destination, report.destination_freeness),
        )
        if value is not None
    )
    held = plural(report.tokens_at_start, "token")
    cached = "none"
    if report.cached_blocks:
        cached = (
            f"{plural(report.cached_blocks, 'block')} of {report.destination}'s cache, not sent"
        )
    return (
        Fact("Why", (report.reason or "no reason was given",)),
        Fact("Decided by", (report.asked_by or DASH,)),
        Fact("Freeness then", freeness or (DASH,)),
        Fact("It held", ("nothing yet, it was queued" if report.is_queued else held,)),
        Fact("Reused", (cached,)),
    )


def freed(report: MoveReport) -> str:
    """Says what became of what the destination held for a move that was given up."""
    if report.state is not MoveState.ABORTED or report.ended_ms is None:
        return ""
    if report.abort_code == "peer_lost":
        return f"What {report.destination} held for it went with {report.destination}."
    if not report.reserved_blocks:
        return f"{report.destination} held nothing for it."
    blocks = plural(report.reserved_blocks, "block")
    return f"{report.destination} freed the {blocks} that it held for it."


def _committed(report: MoveReport) -> str:
    if report.is_queued:
        return "It was waiting in the queue, so it moved without a copy."
    if report.downtime_ms is None:
        return "How long its reader waited was not told."
    usual = usual_gap_ms(report)
    waited = milliseconds(report.downtime_ms)
    if usual is None:
        return f"The reader waited {waited} for the next token."
    return f"The reader waited {waited} for the next token; {milliseconds(usual)} is usual."


def _aborted(report: MoveReport) -> str:
    reason = abort_words(report)
    if not went_on(report):
        return f"Not moved: {reason}. {freed(report)}".rstrip()
    noticed = "its reader noticed nothing"
    if report.paused_ms is not None:
        noticed = f"it stood still for {milliseconds(elapsed_ms(report) - report.paused_ms)}"
    return f"Not moved: {reason}. It went on at {report.source}; {noticed}. {freed(report)}"


def _going_on(report: MoveReport, now_unix_s: float) -> str:
    if is_silent(report, now_unix_s):
        age_s = now_unix_s - report.at_unix_s
        return f"No report of it for {age_s:.0f} s: what became of it is not known here."
    if report.state in (MoveState.PAUSED, MoveState.COMMITTING):
        return "Nobody decodes it for this moment: the last blocks go over."
    return f"It goes on decoding at {report.source} meanwhile."


def _pause_note(report: MoveReport) -> str:
    if report.output_tokens_at_pause is None:
        return "nobody decodes"
    return f"nobody decodes, after token {report.output_tokens_at_pause}"


def _stage_note(report: MoveReport, stage: StageReport) -> str:
    if not is_done(report, stage):
        return "not complete" if report.state.is_end else "going on"
    return f"{short_ms(stage.gather_ms)} ms of it fusing blocks" if stage.gather_ms else ""


def _event_row(name: str, at_ms: float, took: str, note: str) -> StageRow:
    return StageRow(name, short_ms(at_ms), took, DASH, DASH, DASH, note)
