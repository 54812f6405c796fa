"""Between a move's report and its row, and the tasks that bring ended moves into the database."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
import redis

from controlplane.fleet.models import MigrationRecord
from engine_pool.pool_keys import FIRST, PoolKeys
from engine_pool.view import decode_move
from migration.report import MoveReport, MoveState

logger = logging.getLogger(__name__)

BATCH_MOVES: Final = 500
SILENT_AFTER_S: Final = 120.0
"""A row waits so long for its move's first report or its end. The pool process ends what engines
cannot (engine_pool/move_steward.py), so that only what the store lost is left."""
PEER_LOST: Final = "peer_lost"
GOING_ON: Final = [s.value for s in MoveState if not s.is_end]
_LOOKED_AT: Final = 200
"""Rows that go on, looked at in one round."""
_UPDATED: Final = [
    f.attname
    for f in MigrationRecord._meta.concrete_fields
    if f.attname not in ("id", "migration_id")
]


def migrations_copy(*, store: "redis.Redis[bytes]", pool: str, keys: PoolKeys = FIRST) -> int:
    """Copies moves that have ended, oldest first; returns how many. Safe to repeat and to run twice
    at once.

    Raises: redis.RedisError, DatabaseError; nothing is lost then.
    """
    last = store.get(keys.moves_copied_to)
    low = f"({last.decode()}" if last else "-"
    entries = store.xrange(keys.moves_ended, low, "+", count=BATCH_MOVES)
    if entries:
        moves = newest_of(_decoded(fields[b"m"] for _, fields in entries))
        MigrationRecord.objects.bulk_create(
            [row_of(move, pool) for move in _not_older(moves)],
            update_conflicts=True,
            unique_fields=["migration_id"],
            update_fields=_UPDATED,
        )
        store.set(keys.moves_copied_to, entries[-1][0])
    return len(entries)


def migrations_give_up(
    *, store: "redis.Redis[bytes]", now: datetime, keys: Sequence[PoolKeys] = (FIRST,)
) -> int:
    """Ends rows of moves that nobody reports any more: their engines died, or the store lost its
    memory. Returns how many.

    A row that is wrong about it is put right by the move's own end, should that still come.
    Raises: redis.RedisError, DatabaseError.
    """
    heard = [name.decode() for one in keys for name in store.hkeys(one.moves)]
    rows = MigrationRecord.objects.filter(
        state__in=GOING_ON, started_at__lt=now - timedelta(seconds=SILENT_AFTER_S)
    ).exclude(migration_id__in=heard)
    return sum(_give_up_row(row, now) for row in rows[:_LOOKED_AT])


def newest_of(moves: Iterable[MoveReport]) -> list[MoveReport]:
    """Returns the report with the highest number of each move."""
    newest: dict[str, MoveReport] = {}
    for move in moves:
        known = newest.get(move.migration_id)
        if known is None or known.seq <= move.seq:
            newest[move.migration_id] = move
    return list(newest.values())


def row_of(move: MoveReport, pool: str) -> MigrationRecord:
    """Returns the row of a report, not saved."""
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
        ended_at=ended_at(move),
        downtime_ms=move.downtime_ms,
        total_ms=total_ms(move) if move.state.is_end else None,
        tokens_at_start=move.tokens_at_start,
        sent_bytes=move.sent_bytes,
        stages=len(move.stages),
        report=msgspec.to_builtins(move),
    )


def report_of(row: MigrationRecord) -> MoveReport:
    """Returns the report that a row keeps."""
    return msgspec.convert(row.report, MoveReport)


def ended_at(move: MoveReport) -> datetime | None:
    """Returns when a move ended; None while it goes on."""
    if not move.state.is_end:
        return None
    return datetime.fromtimestamp(move.started_unix_s, UTC) + timedelta(milliseconds=total_ms(move))


def total_ms(move: MoveReport) -> float:
    """Returns how long a move took, up to its report where its source could not tell the end."""
    if move.ended_ms is not None:
        return move.ended_ms
    return max(0.0, move.at_unix_s - move.started_unix_s) * 1000


def _not_older(moves: list[MoveReport]) -> list[MoveReport]:
    """Leaves out what the database knows better: an end has been told for a dead source."""
    ids = [move.migration_id for move in moves]
    rows = MigrationRecord.objects.filter(migration_id__in=ids).values_list(
        "migration_id", "report"
    )
    known = {migration_id: report["seq"] for migration_id, report in rows}
    return [move for move in moves if move.seq >= known.get(move.migration_id, 0)]


def _decoded(blobs: Iterable[bytes]) -> Iterator[MoveReport]:
    for blob in blobs:
        try:
            yield decode_move(blob)
        except ValueError as error:
            # Another version wrote it; it must not hold up all that come after it.
            logger.error("ignored a report of a move: %s", error)


def _give_up_row(row: MigrationRecord, now: datetime) -> int:
    move = report_of(row)
    # Its number stays as it is, below the one of the real end.
    end = replace(
        move,
        state=MoveState.ABORTED,
        at_unix_s=now.timestamp(),
        abort_code=PEER_LOST,
        abort_reason=f"nothing was heard of it for {SILENT_AFTER_S:.0f} s, last that it was"
        f" {move.state.value}",
    )
    return MigrationRecord.objects.filter(pk=row.pk, state=row.state).update(
        state=end.state.value,
        abort_code=end.abort_code,
        abort_reason=end.abort_reason,
        ended_at=now,
        total_ms=total_ms(end),
        report=msgspec.to_builtins(end),
    )
