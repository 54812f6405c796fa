"""What happened when in a move, lane by lane, as spans of time with words. Pure.

A report of a move that goes on, or that broke off early, lacks most of its fields; then the spans
are not there, or end where the report ends.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from controlplane.fleet.live_moves import abort_words, went_on
from migration.report import TOKEN_TIMES_KEPT, MessageReport, MoveReport, MoveState, StageReport
from web.move_units import megabytes, milliseconds, plural, rate

ANSWERS: Final = {
    "prepare": ("ack", "refused"),
    "stage": ("ack", "refused"),
    "commit": ("committed", "refused"),
    "ask": ("committed", "refused"),
}
"""Messages of the source that the destination answers at once, and with what."""
AFTER_SHARE: Final = 0.12
"""What a drawing shows of the time after the move, as a share of the move."""
AFTER_TOKENS: Final = 2.6
JOINED_SHARE: Final = 0.003
"""Of the move, between two questions that look like one: no drawing shows less."""


class Span(NamedTuple):
    kind: str
    start_ms: float
    end_ms: float
    labels: tuple[str, ...] = ()
    """What may be written on it, the longest first."""
    title: str = ""


def elapsed_ms(report: MoveReport) -> float:
    """Returns how long the move has lasted, as of the report; at least until its last news."""
    if report.ended_ms is not None:
        return report.ended_ms
    # The clock of the day may have been set meanwhile; the times of the move are another clock's.
    told = [s.started_ms + s.took_ms for s in report.stages]
    told += [m.at_ms for m in report.messages[-1:]]
    told += [at for at in (report.paused_ms, report.committed_ms) if at is not None]
    return max(0.0, (report.at_unix_s - report.started_unix_s) * 1000, *told)


def lasts_ms(report: MoveReport) -> float:
    """Returns where a drawing of an ended move ends: some tokens after it."""
    ended_ms = elapsed_ms(report)
    step_ms = usual_gap_ms(report) or 0.0
    after_ms = max(AFTER_SHARE * ended_ms, AFTER_TOKENS * step_ms)
    later = [at for at in report.destination_token_ms if at <= ended_ms + after_ms]
    if report.state is MoveState.ABORTED:
        return ended_ms + after_ms
    return max(later, default=ended_ms)


def usual_gap_ms(report: MoveReport) -> float | None:
    """Returns the source's mean gap between two tokens of this request, else its step."""
    times = report.source_token_ms
    if len(times) > 2:
        return (times[-1] - times[0]) / (len(times) - 1)
    return report.source_step_ms or report.source_step_before_ms


def source(report: MoveReport) -> Iterator[Span]:
    """Yields when the source decoded, or held the request in its queue."""
    if report.is_queued:
        end_ms = _first(report.committed_ms, elapsed_ms(report))
        yield Span("queued", 0.0, end_ms, ("waits in the queue", "queue"), "waits in the queue")
        return
    end_ms = _first(report.paused_ms, elapsed_ms(report))
    tokens = tokens_meanwhile(report)
    words = "decodes" if tokens is None else f"decodes, {plural(tokens, 'token')} meanwhile"
    yield Span("source", 0.0, end_ms, (words, "decodes"), words)
    if went_on(report):
        yield Span("source", elapsed_ms(report), lasts_ms(report), ("goes on",), "goes on")


def tokens_meanwhile(report: MoveReport) -> int | None:
    """Returns how many tokens the source produced during the move, None when nobody counted."""
    if report.tokens_at_pause is not None:
        return max(0, report.tokens_at_pause - report.tokens_at_start)
    times = report.source_token_ms
    if len(times) < TOKEN_TIMES_KEPT or (times and times[0] <= 0):
        return sum(1 for at in times if at >= 0)
    return None


def is_done(report: MoveReport, stage: StageReport) -> bool:
    """Says whether all of a stage arrived: only then it has a rate."""
    until = sum(s.bytes for s in report.stages if s.number <= stage.number)
    return report.state is MoveState.COMMITTED or until <= report.sent_bytes


def transfer(report: MoveReport, *, is_short: bool = False) -> Iterator[Span]:
    """Yields the copies, the last one apart, and how a move that was given up ended."""
    for stage in report.stages:
        name = "last" if stage.is_last else f"Copy {stage.number}"
        labels = ("last",) if stage.is_last else (name, str(stage.number))
        words = f"{'Last blocks' if stage.is_last else name} · {_stage_words(report, stage)}"
        kind = "last" if stage.is_last else "copy"
        if not is_short and not stage.is_last:
            labels = (words, f"{name} · {plural(stage.blocks, 'block')}", *labels)
        yield Span(kind, stage.started_ms, stage.started_ms + stage.took_ms, labels, words)
    if report.state is MoveState.ABORTED and not is_short:
        at_ms = elapsed_ms(report)
        reason = f"✕ {abort_words(report)}"
        yield Span("abort", at_ms, at_ms, (reason, "✕ aborted", "✕"), reason)


def handshake(report: MoveReport, *, is_short: bool = False) -> Iterator[Span]:
    """Yields the questions of the source, from each to its answer; two at once are one."""
    before: Span | None = None
    for span in _questions(report, is_short=is_short):
        joins_ms = JOINED_SHARE * elapsed_ms(report)
        if before and span.kind == before.kind and span.start_ms - before.end_ms < joins_ms:
            before = before._replace(end_ms=span.end_ms)
            continue
        if before is not None:
            yield before
        before = span
    if before is not None:
        yield before


def _questions(report: MoveReport, *, is_short: bool) -> Iterator[Span]:
    for i, message in enumerate(report.messages):
        answers = ANSWERS.get(message.name.lower())
        if message.sender != "source" or answers is None:
            continue
        answer = _answer(report.messages[i + 1 :], answers)
        is_commit = message.name.lower() == "commit"
        word = "commit" if is_commit else "ask" if message.name.lower() == "ask" else "reserve"
        if answer is None:
            labels: tuple[str, ...] = (word,)
            if not report.state.is_end:
                labels = (f"{word}, no answer yet", word)
            end_ms = elapsed_ms(report)
        else:
            labels = (word,) if is_commit or is_short else (f"{word} → {answer.name.lower()}", word)
            end_ms = answer.at_ms
        title = f"{word}: {milliseconds(end_ms - message.at_ms)}"
        yield Span("commit" if is_commit else "handshake", message.at_ms, end_ms, labels, title)


def destination(report: MoveReport) -> Iterator[Span]:
    """Yields when the destination held room, and when it decoded."""
    held_ms = next((m.at_ms for m in report.messages if _is_ack(m)), None)
    if held_ms is None and report.stages:
        held_ms = report.stages[0].started_ms
    end_ms = _first(report.committed_ms, elapsed_ms(report))
    if held_ms is not None and not report.is_queued:
        words = "blocks reserved, filled as they come"
        yield Span("reserved", held_ms, max(held_ms, end_ms), (words, "reserved"), words)
    if report.committed_ms is not None:
        word = "in its queue" if report.is_queued else "decodes"
        last_ms = max((*report.destination_token_ms, elapsed_ms(report)))
        yield Span("destination", report.committed_ms, last_ms, (word,), word)


def unknown_tokens(report: MoveReport) -> Iterator[Span]:
    """Yields the part of the stream whose token times were not kept."""
    times = report.source_token_ms
    if len(times) >= TOKEN_TIMES_KEPT and times[0] > 0:
        words = f"only the last {len(times)} times are kept"
        yield Span("untold", 0.0, times[0], (words, "not kept"), words)


def pause_end_ms(report: MoveReport) -> float:
    """Returns when somebody decoded again, or the report's own time while nobody does."""
    return _first(report.committed_ms, elapsed_ms(report))


def pause_window(report: MoveReport) -> tuple[float, float] | None:
    """Returns from when to when the enlarged drawing goes; None before there is a pause."""
    if report.paused_ms is None or report.is_queued:
        return None
    gap_ms = usual_gap_ms(report) or (pause_end_ms(report) - report.paused_ms) or 1.0
    before = [at for at in report.source_token_ms if at < report.paused_ms - 0.2 * gap_ms]
    start_ms = max(before[-1] if before else 0.0, report.paused_ms - 1.5 * gap_ms)
    last_ms = report.destination_token_ms[0] if report.destination_token_ms else None
    end_ms = max(_first(last_ms, 0.0), pause_end_ms(report), report.paused_ms)
    margin_ms = max(0.05 * (end_ms - start_ms), 0.5)
    return start_ms - margin_ms, end_ms + margin_ms


def last_step(report: MoveReport) -> Iterator[Span]:
    """Yields the source's last step before the pause."""
    times = report.source_token_ms
    if len(times) >= 2:
        yield Span(
            "source", times[-2], times[-1], _step_labels(report, 0), "the source's last step"
        )


def first_step(report: MoveReport) -> Iterator[Span]:
    """Yields the destination's first step."""
    if report.committed_ms is None:
        return
    times = report.destination_token_ms
    end_ms = times[0] if times else elapsed_ms(report)
    labels = _step_labels(report, 1)
    yield Span("destination", report.committed_ms, end_ms, labels, "the destination's first step")


def _step_labels(report: MoveReport, after: int) -> tuple[str, ...]:
    number = report.output_tokens_at_pause
    if number is None:
        return ("step",)
    return (f"step for token {number + after}", f"token {number + after}", str(number + after))


def _stage_words(report: MoveReport, stage: StageReport) -> str:
    words = f"{plural(stage.blocks, 'block')} · {megabytes(stage.bytes)} MB"
    if not is_done(report, stage):
        return f"{words}, {'not complete' if report.state.is_end else 'going on'}"
    if stage.took_ms <= 0:
        return words
    return f"{words} in {milliseconds(stage.took_ms)} · {rate(stage.bytes, stage.took_ms)} GB/s"


def _answer(messages: tuple[MessageReport, ...], names: tuple[str, ...]) -> MessageReport | None:
    return next(
        (m for m in messages if m.sender == "destination" and m.name.lower() in names), None
    )


def _is_ack(message: MessageReport) -> bool:
    return message.sender == "destination" and message.name.lower() == "ack"


def _first(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
