"""The six numbers of a move. Pure. A value that nobody measured is a dash."""

from typing import NamedTuple

from controlplane.fleet.tiles import DASH, number
from migration.report import MoveReport, MoveState
from web.move_spans import elapsed_ms, usual_gap_ms
from web.move_units import MINUS, megabytes, milliseconds, plural


class Tile(NamedTuple):
    label: str
    value: str
    unit: str
    context: str


def tiles_of(report: MoveReport) -> tuple[Tile, ...]:
    """Returns the six numbers of a move."""
    copies = [s for s in report.stages if not s.is_last]
    last = len(report.stages) - len(copies)
    ending = "from asked to committed"
    if report.state is MoveState.ABORTED:
        ending = "from asked to aborted"
    elif not report.state.is_end:
        ending = "so far"
    total = milliseconds(elapsed_ms(report)).rpartition(" ")
    return (
        _waited(report),
        Tile("Total", total[0], total[2], ending),
        Tile("Stages", _stage_count(report, len(copies), last), "", _stage_context(report)),
        Tile("Sent", megabytes(report.sent_bytes), "MB", _sent_context(report)),
        _slowed(report),
        _tokens(report),
    )


def _waited(report: MoveReport) -> Tile:
    label = "Reader waited"
    if report.downtime_ms is None:
        why = "not told"
        if report.is_queued:
            why = "it was in the queue"
        elif report.state is MoveState.ABORTED:
            why = "it did not move"
        elif not report.state.is_end:
            why = "it decodes at its source"
        return Tile(label, DASH, "ms", why)
    usual = usual_gap_ms(report)
    value, _, unit = milliseconds(report.downtime_ms).rpartition(" ")
    if not usual:
        return Tile(label, value, unit, "from token to token")
    times = report.downtime_ms / usual
    return Tile(label, value, unit, f"{times:.1f} of its usual gaps of {milliseconds(usual)}")


def _stage_count(report: MoveReport, copies: int, last: int) -> str:
    if report.is_queued:
        return "0"
    if not report.stages and not report.state.is_end:
        return DASH
    return f"{copies} + {last}" if last else str(copies)


def _stage_context(report: MoveReport) -> str:
    if report.is_queued:
        return "queued: nothing to copy"
    if report.blocks_left is not None and not report.state.is_end:
        return f"{plural(report.blocks_left, 'complete block')} left"
    return "copies and the last blocks"


def _sent_context(report: MoveReport) -> str:
    if not report.block_bytes:
        return "no block yet" if not report.state.is_end else "no block"
    words = plural(report.sent_bytes // report.block_bytes, "block")
    if report.cached_blocks:
        return f"{words}, {number(report.cached_blocks)} more were cached"
    if report.tokens_at_pause is not None:
        return f"{words}, {plural(report.tokens_at_pause, 'token')}"
    return words


def _slowed(report: MoveReport) -> Tile:
    label, now, before = "Source slowed by", report.source_step_ms, report.source_step_before_ms
    if now is None or not before:
        return Tile(label, DASH, "%", "no steps to compare")
    share = f"{100 * (now / before - 1) + 0.0:.1f}".replace("-0.0", "0.0").replace("-", MINUS)
    return Tile(label, share, "%", f"step {milliseconds(before)} before, {milliseconds(now)} now")


def _tokens(report: MoveReport) -> Tile:
    at_pause = report.output_tokens_at_pause
    if at_pause is None:
        return Tile("Output tokens", DASH, "", "counted at the pause")
    return Tile("Output tokens", number(at_pause), "", "produced before the pause")
