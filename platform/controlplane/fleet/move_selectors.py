"""Moves to look at: those of the live view and those of the database, as one list."""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from django.db.models import Q, QuerySet

from controlplane.fleet.choice import chosen_pool
from controlplane.fleet.models import MigrationRecord
from controlplane.fleet.move_rows import GOING_ON, ended_at, report_of, total_ms
from engine_pool.client import PoolClient, pool_client, served_clients
from migration.report import MoveReport, MoveState

LIMIT_MAX: Final = 200
"""Moves in one answer."""
POINTS_MAX: Final = 500
"""Points of the scatter: more cannot be told apart."""
GOES_ON: Final = "going_on"
"""A filter's word for all states that are no end."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One move in a list."""

    migration_id: str
    request_id: str
    source: str
    destination: str
    state: MoveState
    asked_by: str
    reason: str
    abort_code: str
    abort_reason: str
    tenant: str
    priority_class: str
    is_queued: bool
    started_at: datetime
    ended_at: datetime | None
    """None: it goes on."""
    downtime_ms: float | None
    total_ms: float
    """So far, while it goes on."""
    tokens_at_start: int
    sent_bytes: int
    stages: int

    @property
    def goes_on(self) -> bool:
        return not self.state.is_end


@dataclass(frozen=True, slots=True)
class MigrationDetail:
    """One move with everything that is known of it."""

    move: Migration
    report: MoveReport
    is_live: bool
    """From the live view; otherwise from the database."""
    age_s: float
    """Of the report."""


@dataclass(frozen=True, slots=True)
class MigrationFilters:
    """Which moves a list has; None: all."""

    state: str | None = None
    """A MoveState's value, or GOES_ON."""
    instance: str | None = None
    """Source or destination."""
    request_id: str | None = None
    since: datetime | None = None
    """Started at or after."""
    abort_code: str | None = None


@dataclass(frozen=True, slots=True)
class MigrationPage:
    """The newest moves first."""

    moves: tuple[Migration, ...]
    left_out: int
    """Older ones that match too."""


@dataclass(frozen=True, slots=True)
class AbortCount:
    """How often moves ended with one reason."""

    abort_code: str
    count: int
    last_reason: str
    """In words, of the newest one."""


@dataclass(frozen=True, slots=True)
class DowntimePoint:
    """A committed move in the scatter of downtime against length."""

    migration_id: str
    tokens: int
    """With KV, when it began."""
    downtime_ms: float
    started_at: datetime


def migration_get(migration_id: str) -> MigrationDetail | None:
    """Returns a move: as it is now, else as it ended; None when there is none of this id."""
    clients = served_clients() or [pool_client()]
    live = next(filter(None, (c.view.moves.get(migration_id) for c in clients)), None)
    if live is not None and live.state.is_end:
        return _detail(live, is_live=True)
    row = MigrationRecord.objects.filter(migration_id=migration_id).first()
    if row is None:
        return None if live is None else _detail(live, is_live=True)
    kept = report_of(row)
    # The live view of a source that died says for ever that the move goes on.
    if live is not None and not kept.state.is_end:
        return _detail(live, is_live=True)
    return _detail(kept, is_live=False)


def _clients() -> list[PoolClient]:
    """Returns the clients of the pools that are looked at: the chosen one, or all."""
    clients = served_clients() or [pool_client()]
    wanted = chosen_pool()
    return [c for c in clients if not wanted or c.config.pool == wanted]


def migrations_list(filters: MigrationFilters, limit: int) -> MigrationPage:
    """Returns the newest `limit` moves (at most LIMIT_MAX) of the live view and the database."""
    limit = max(1, min(limit, LIMIT_MAX))
    live = [move for client in _clients() for move in list(client.view.moves.values())]
    ids = [m.migration_id for m in live]
    ended = MigrationRecord.objects.filter(migration_id__in=ids).exclude(state__in=GOING_ON)
    known = {row.migration_id: report_of(row) for row in ended}
    newest = [m if m.state.is_end else known.get(m.migration_id, m) for m in live]
    now = datetime.now(UTC)
    found = [m for m in (_migration(report, now) for report in newest) if matches(m, filters)]
    rows = _rows(filters).exclude(migration_id__in=ids)
    total = len(found) + rows.count()
    found += [_migration(report_of(row), now) for row in rows.order_by("-started_at")[:limit]]
    found.sort(key=lambda m: m.started_at, reverse=True)
    return MigrationPage(tuple(found[:limit]), total - len(found[:limit]))


def matches(move: Migration, filters: MigrationFilters) -> bool:
    """Says whether a list with these filters has the move."""
    state = filters.state
    return (
        (state is None or (move.goes_on if state == GOES_ON else move.state.value == state))
        and (filters.instance is None or filters.instance in (move.source, move.destination))
        and filters.request_id in (None, move.request_id)
        and (filters.since is None or move.started_at >= filters.since)
        and filters.abort_code in (None, move.abort_code)
    )


def aborts_by_reason(since: datetime) -> tuple[AbortCount, ...]:
    """Returns why moves that started since then were aborted, the most frequent reason first."""
    rows = (
        MigrationRecord.objects.filter(state=MoveState.ABORTED.value, started_at__gte=since)
        .order_by("-started_at")
        .values_list("abort_code", "abort_reason")
    )
    return count_aborts(rows)


def count_aborts(newest_first: Iterable[tuple[str, str]]) -> tuple[AbortCount, ...]:
    """Counts (code, reason) pairs by code."""
    counts: Counter[str] = Counter()
    last: dict[str, str] = {}
    for code, reason in newest_first:
        counts[code] += 1
        last.setdefault(code, reason)
    order = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return tuple(AbortCount(code, count, last[code]) for code, count in order)


def downtime_points(since: datetime) -> tuple[DowntimePoint, ...]:
    """Returns the newest committed moves that paused a stream, at most POINTS_MAX."""
    rows = (
        MigrationRecord.objects.filter(
            state=MoveState.COMMITTED.value, downtime_ms__isnull=False, started_at__gte=since
        )
        .order_by("-started_at")
        .values_list("migration_id", "tokens_at_start", "downtime_ms", "started_at")
    )
    return tuple(
        DowntimePoint(migration_id, tokens, downtime_ms, started_at)
        for migration_id, tokens, downtime_ms, started_at in rows[:POINTS_MAX]
        if downtime_ms is not None
    )


def migration_of_report(report: MoveReport) -> MigrationDetail:
    """Returns a move as a report of now tells it."""
    return _detail(report, is_live=True)


def migrations_of_request(request_id: str) -> Sequence[Migration]:
    """Returns the moves of one request, the newest first."""
    return migrations_list(MigrationFilters(request_id=request_id), LIMIT_MAX).moves


def _rows(filters: MigrationFilters) -> "QuerySet[MigrationRecord]":
    rows = MigrationRecord.objects.all()
    if pool := chosen_pool():
        rows = rows.filter(pool=pool)
    if filters.state is not None:
        rows = rows.filter(state__in=GOING_ON if filters.state == GOES_ON else [filters.state])
    if filters.instance is not None:
        rows = rows.filter(Q(source=filters.instance) | Q(destination=filters.instance))
    if filters.request_id is not None:
        rows = rows.filter(request_id=filters.request_id)
    if filters.since is not None:
        rows = rows.filter(started_at__gte=filters.since)
    if filters.abort_code is not None:
        rows = rows.filter(abort_code=filters.abort_code)
    return rows


def _detail(report: MoveReport, *, is_live: bool) -> MigrationDetail:
    now = datetime.now(UTC)
    age_s = max(0.0, time.time() - report.at_unix_s)
    return MigrationDetail(_migration(report, now), report, is_live, age_s)


def _migration(report: MoveReport, now: datetime) -> Migration:
    started_at = datetime.fromtimestamp(report.started_unix_s, UTC)
    so_far_ms = max(0.0, (now - started_at).total_seconds() * 1000)
    return Migration(
        migration_id=report.migration_id,
        request_id=report.request_id,
        source=report.source,
        destination=report.destination,
        state=report.state,
        asked_by=report.asked_by,
        reason=report.reason,
        abort_code=report.abort_code,
        abort_reason=report.abort_reason,
        tenant=report.tenant,
        priority_class=report.priority_class,
        is_queued=report.is_queued,
        started_at=started_at,
        ended_at=ended_at(report),
        downtime_ms=report.downtime_ms,
        total_ms=total_ms(report) if report.state.is_end else so_far_ms,
        tokens_at_start=report.tokens_at_start,
        sent_bytes=report.sent_bytes,
        stages=len(report.stages),
    )
