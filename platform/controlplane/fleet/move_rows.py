"""Between a move's report and its row, and the tasks that bring ended moves into the database."""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
import redis

from controlplane.fleet.models import MigrationRecord
from engine_pool.view import MOVES, MOVES_ENDED, Bulletin, decode_move
from migration.report import MoveReport, MoveState

logger = logging.getLogger(__name__)

COPIED_TO: Final = "ferry:moves-copied-to"
"""Store key: the last entry that is in the database; it goes with the store's memory."""
BATCH_MOVES: Final = 500
SILENT_AFTER_S: Final = 120.0
"""A move that nothing was heard of for this long has no engine any more: above all timeouts of a
move together (PoolConfig)."""
PEER_LOST: Final = "peer_lost"
GOING_ON: Final = [s.value for s in MoveState if not s.is_end]
_LOOKED_AT: Final = 200
"""Rows that go on, looked at in one round."""
_UPDATED: Final = [
    f.attname
    for f in MigrationRecord._meta.concrete_fields
    if f.attname not in ("id", "migration_id")
]


def migrations_copy(*, store: "redis.Redis[bytes]", pool: str) -> int:
    """Copies moves that have ended, oldest first; returns how many. Safe to repeat and to run twice
    at once.

    Raises: redis.RedisError, DatabaseError; nothing is lost then.
    """
    last = store.get(COPIED_TO)
    low = f"({last.decode()}" if last else "-"
    entries = store.xrange(MOVES_ENDED, low, "+", count=BATCH_MOVES)
    if entries:
        now = datetime.now(UTC)
        moves = newest_of(_decoded(fields[b"m"] for _, fields in entries))
        MigrationRecord.objects.bulk_create(
            [row_of(move, pool, now) for move in moves],
            update_conflicts=True,
            unique_fields=["migration_id"],
            update_fields=_UPDATED,
        )
        store.set(COPIED_TO, entries[-1][0])
    return len(entries)


def migrations_give_up(*, store: "redis.Redis[bytes]", now: datetime) -> int:
    """Ends what nobody reports about any more: its engine died. Returns how many rows it ended.

    A row that is wrong about it is put right by the move's own end, should that still come.
    Raises: redis.RedisError, DatabaseError.
    """
    silent_since_unix_s = now.timestamp() - SILENT_AFTER_S
    heard = {m.migration_id: m for m in _decoded(store.hvals(MOVES))}
    bulletin = Bulletin(store)
    for move in heard.values():
        if move.at_unix_s < silent_since_unix_s:
            # The pages learn it from here; the row, with the next round, from the stream.
            bulletin.report_move(given_up(move, now.timestamp()))
    rows = MigrationRecord.objects.filter(
        state__in=GOING_ON, started_at__lt=now - timedelta(seconds=SILENT_AFTER_S)
    ).exclude(migration_id__in=list(heard))
    return sum(_give_up_row(row, now) for row in rows[:_LOOKED_AT])


def newest_of(moves: Iterable[MoveReport]) -> list[MoveReport]:
    """Returns the report with the highest number of each move."""
    newest: dict[str, MoveReport] = {}
    for move in moves:
        known = newest.get(move.migration_id)
        if known is None or known.seq <= move.seq:
            newest[move.migration_id] = move
    return list(newest.values())


def given_up(move: MoveReport, now_unix_s: float) -> MoveReport:
    """Returns the end of a move that its source can no longer tell."""
    silent_s = now_unix_s - move.at_unix_s
    return replace(
        move,
        seq=move.seq + 1,
        state=MoveState.ABORTED,
        at_unix_s=now_unix_s,
        ended_ms=(now_unix_s - move.started_unix_s) * 1000,
        abort_code=PEER_LOST,
        abort_reason=f"{move.source} said nothing about it for {silent_s:.0f} s, last that it was"
        f" {move.state.value}",
    )


def row_of(move: MoveReport, pool: str, now: datetime) -> MigrationRecord:
    """Returns the row of a report, not saved. `now`: the end, where the report does not say it."""
    return MigrationRecord(
        migration_id=move.migration_id,
        request_id=move.request_id[:128],
        pool=pool,
        source=move.source,
        destination=move.destination,
        state=move.state.value,
        asked_by=move.asked_by[:200],
        reason=move.reason,
        abort_code=move.abort_code[:32],
        abort_reason=move.abort_reason,
        tenant=move.tenant[:64],
        priority_class=move.priority_class,
        is_queued=move.is_queued,
        started_at=datetime.fromtimestamp(move.started_unix_s, UTC),
        ended_at=ended_at(move, now),
        downtime_ms=move.downtime_ms,
        total_ms=move.ended_ms,
        tokens_at_start=move.tokens_at_start,
        sent_bytes=move.sent_bytes,
        stages=len(move.stages),
        report=msgspec.to_builtins(move),
    )


def report_of(row: MigrationRecord) -> MoveReport:
    """Returns the report that a row keeps."""
    return msgspec.convert(row.report, MoveReport)


def ended_at(move: MoveReport, now: datetime) -> datetime | None:
    """Returns when a move ended; None while it goes on."""
    if not move.state.is_end:
        return None
    if move.ended_ms is None:
        return now
    started_at = datetime.fromtimestamp(move.started_unix_s, UTC)
    return started_at + timedelta(milliseconds=move.ended_ms)


def _decoded(blobs: Iterable[bytes]) -> Iterator[MoveReport]:
    for blob in blobs:
        try:
            yield decode_move(blob)
        except ValueError as error:
            # Another version wrote it; it must not hold up all that come after it.
            logger.error("ignored a report of a move: %s", error)


def _give_up_row(row: MigrationRecord, now: datetime) -> int:
    # Its number stays below the one of the real end, should that come.
    move = replace(given_up(report_of(row), now.timestamp()), seq=row.report["seq"])
    return MigrationRecord.objects.filter(pk=row.pk, state=row.state).update(
        state=move.state.value,
        abort_code=move.abort_code,
        abort_reason=move.abort_reason,
        ended_at=now,
        total_ms=move.ended_ms,
        report=msgspec.to_builtins(move),
    )
