"""One request in words: its sentence, where its time went, what is kept of it. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from controlplane.fleet.models import MigrationRecord
from controlplane.fleet.tiles import DASH, number
from controlplane.gateway.models import RequestRecord, RequestStatus
from migration.report import MoveState
from web.ledger_words import lasts, percent
from web.move_units import plural
from web.request_lanes import moved_words, offset_ms, replayed_words

REST_FROM_MS: Final = 1.0
"""What is left over is shown from here on: below it is rounding."""


class Part(NamedTuple):
    """One row of "where the time went"."""

    name: str
    kind: str
    """Its colour."""
    took: str
    share: str
    share_percent: float
    against: str
    """What it means for the target."""
    tone: str = ""
    is_sum: bool = False


class Moment(NamedTuple):
    """One line of the log of events."""

    offset: str
    what: str
    detail: str
    migration_id: str = ""


def sentence(record: RequestRecord) -> str:
    """Says what came of a request that has ended."""
    took = lasts(record.duration_ms)
    tokens = plural(record.output_tokens, "token")
    if record.status == RequestStatus.COMPLETED:
        return f"Finished: {tokens} in {took}, {_where(record)}."
    produced = f"{tokens} produced by then count" if record.output_tokens else "no token produced"
    if record.status == RequestStatus.CANCELLED:
        return f"Cancelled by its client after {took}: {produced}."
    if record.status == RequestStatus.DETACHED:
        return f"Its client left after {took}; its engine went on to the end: {produced}."
    why = (record.error_code or "no reason told").replace("_", " ")
    return f"Failed after {took}: {why}; {produced}."


def _where(record: RequestRecord) -> str:
    visited = list(dict.fromkeys(record.instances or [record.instance]))
    places = plural(len(visited), "instance")
    if not (record.migrations or record.replays):
        return f"{places}, never moved"
    told = [moved_words(record.migrations)] if record.migrations else []
    told += [replayed_words(record.replays)] if record.replays else []
    return f"{places}, {', '.join(told)}, waited {lasts(record.migration_ms)} for it"


def parts(record: RequestRecord) -> list[Part]:
    """Returns where the time went. Without the times of its stages: only what is known."""
    rows = []
    ttft, target = record.ttft_ms, record.ttft_target_ms
    for name, kind, took_ms in (
        ("Queue", "queued", record.queue_ms),
        ("Prefill", "prefill", record.prefill_ms),
    ):
        of_target = ""
        if took_ms is not None and target:
            of_target = f"{percent(took_ms / target)} of the TTFT target"
        rows.append(_part(record, name, kind, took_ms, of_target))
    rows.append(
        _part(record, "To the first token", "", ttft, *against(ttft, target, record.is_ttft_met))
        ._replace(is_sum=True)
    )  # fmt: skip
    decode_words, decode_tone = against(
        record.tpot_ms, record.tpot_target_ms, record.is_tpot_met, " a token"
    )
    rows.append(_part(record, "Decode", "decode", record.decode_ms, decode_words, decode_tone))
    waits = "Moves and replays" if record.replays else "Moves"
    rows.append(_part(record, waits, "move", record.migration_ms, "the reader's waits"))
    rest_ms = _rest_ms(record)
    if rest_ms is not None and rest_ms >= REST_FROM_MS:
        rows.append(_part(record, "Rest", "rest", rest_ms, "gateway and network"))
    return [*rows, _part(record, "Total", "", record.duration_ms, "")._replace(is_sum=True)]


def against(
    value_ms: float | None, target_ms: float | None, is_met: bool | None, unit: str = ""
) -> tuple[str, str]:
    """Returns a value beside its target in words, and the tone: `bad` only when it was missed."""
    if target_ms is None:
        told = "" if value_ms is None or not unit else f"{lasts(value_ms)}{unit}; "
        return f"{told}no target", ""
    if is_met is None:
        return f"target {lasts(target_ms)}{unit}: not judged", ""
    words = "met" if is_met else "missed"
    return f"{lasts(value_ms)}{unit} of {lasts(target_ms)}: {words}", "" if is_met else "bad"


def slo_mark(record: RequestRecord) -> tuple[str, str]:
    """Returns the SLO's mark in a list: words, and `met`, `missed` or nothing."""
    missed = [
        name
        for name, is_met in (("TTFT", record.is_ttft_met), ("TPOT", record.is_tpot_met))
        if is_met is False
    ]
    if missed:
        return f"missed {' and '.join(missed)}", "missed"
    is_judged = record.is_ttft_met is not None or record.is_tpot_met is not None
    return ("met", "met") if is_judged else (DASH, "")


def moments(record: RequestRecord, moves: Sequence[MigrationRecord]) -> list[Moment]:
    """Returns the log of a request that has ended."""
    found: list[tuple[float, str, str, str]] = [
        (0.0, "Arrived", f"{record.endpoint}, {plural(record.prompt_tokens, 'prompt token')}", "")
    ]
    if record.instance:
        at_ms = 0.0 if record.queue_ms is None else record.queue_ms
        what = "Sent" if record.queue_ms is None else "First step"
        found.append((at_ms, f"{what} at {record.instance}", record.dispatch_reason, ""))
    if record.ttft_ms is not None:
        found.append((record.ttft_ms, "First token", "", ""))
    for move in moves:
        found.append(_moved(record, move))
    for note in record.replay_notes:
        at_ms = note["at_ms"]
        way = f"{note['from']} → {note['to']}, after token {note['at_token']}"
        known_ms = (record.ttft_ms or 0.0) if at_ms is None else at_ms
        found.append((known_ms, f"Replayed {way}", str(note["reason"]), ""))
    ended = RequestStatus(record.status).value.capitalize()
    found.append((record.duration_ms, ended, record.error_code.replace("_", " "), ""))
    return [Moment(lasts(at), what, detail, link) for at, what, detail, link in sorted(found)]


def _moved(record: RequestRecord, move: MigrationRecord) -> tuple[float, str, str, str]:
    way = f"{move.source} → {move.destination}"
    at_ms = max(0.0, offset_ms(record.arrived_at, move.started_at))
    if move.state == MoveState.COMMITTED:
        waited = "waited in the queue" if move.is_queued else f"waited {lasts(move.downtime_ms)}"
        return at_ms, f"Moved {way}", waited, move.migration_id
    why = move.abort_reason or move.abort_code.replace("_", " ")
    return at_ms, f"Stayed: {way} {move.state}", why, move.migration_id


def _rest_ms(record: RequestRecord) -> float | None:
    known = (record.queue_ms, record.prefill_ms, record.decode_ms)
    if any(part is None for part in known):
        return None
    return record.duration_ms - sum(part or 0.0 for part in known) - record.migration_ms


def _part(
    record: RequestRecord,
    name: str,
    kind: str,
    took_ms: float | None,
    words: str,
    tone: str = "",
) -> Part:
    share = None if took_ms is None or not record.duration_ms else took_ms / record.duration_ms
    return Part(
        name=name,
        kind=kind,
        took=lasts(took_ms),
        share=percent(share),
        share_percent=0.0 if share is None else round(min(100.0, share * 100), 2),
        against=words,
        tone=tone,
    )


def facts(record: RequestRecord, key_name: str) -> list[tuple[str, str]]:
    """Returns what is kept besides times: usage, cost, parameters, headers."""
    cached = f", {number(record.cached_tokens)} of them cached" if record.cached_tokens else ""
    partial = " (partial: it did not come to its end)" if record.is_partial else ""
    return [
        ("Prompt", f"{plural(record.prompt_tokens, 'token')}{cached}"),
        ("Output", f"{plural(record.output_tokens, 'token')}{partial}"),
        ("Model", record.model or DASH),
        ("Pool", record.pool),
        ("Endpoint", record.endpoint),
        ("Class", record.priority_class),
        ("Key", key_name),
        ("Targets", _targets(record)),
        ("X-Request-Id", record.client_request_id or DASH),
        ("Arrived", _moment(record.arrived_at)),
        ("Ended", _moment(record.ended_at)),
    ]


def _targets(record: RequestRecord) -> str:
    told = [
        f"{name} {lasts(target)}"
        for name, target in (("TTFT", record.ttft_target_ms), ("TPOT", record.tpot_target_ms))
        if target is not None
    ]
    return ", ".join(told) or "none"


def _moment(at: datetime | None) -> str:
    return DASH if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
