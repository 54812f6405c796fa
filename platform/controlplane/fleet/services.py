"""Copies what happened from the store to the database, and forgets what is old."""

from datetime import UTC, datetime, timedelta
from typing import Final

import redis
from django.utils import timezone

from controlplane.fleet.models import FleetEventRecord, MigrationRecord
from controlplane.gateway.models import RequestRecord
from engine_pool.types import FleetEvent
from engine_pool.view import EVENTS, decode_event

COPIED_TO: Final = "ferry:events-copied-to"
"""Store key: the last entry that is in the database; it goes with the store's memory."""
BATCH_EVENTS: Final = 500
HEARTBEAT: Final = "ferry:worker-heartbeat"
HEARTBEAT_TTL_S: Final = 20
"""Four missed beats, then the worker counts as away."""


def events_copy(*, store: "redis.Redis[bytes]") -> int:
    """Copies new events, oldest first; returns how many. Safe to repeat and to run twice at once.

    Raises: redis.RedisError, DatabaseError.
    """
    last = store.get(COPIED_TO)
    low = f"({last.decode()}" if last else "-"
    entries = store.xrange(EVENTS, low, "+", count=BATCH_EVENTS)
    if not entries:
        return 0
    rows = [_to_row(entry.decode(), decode_event(fields[b"e"])) for entry, fields in entries]
    FleetEventRecord.objects.bulk_create(rows, ignore_conflicts=True)
    store.set(COPIED_TO, entries[-1][0])
    return len(rows)


def records_forget(*, older_than_days: int) -> int:
    """Deletes requests, events and moves that are too old; returns how many."""
    before = timezone.now() - timedelta(days=older_than_days)
    requests, _ = RequestRecord.objects.filter(arrived_at__lt=before).delete()
    events, _ = FleetEventRecord.objects.filter(at__lt=before).delete()
    moves, _ = MigrationRecord.objects.filter(started_at__lt=before).delete()
    return requests + events + moves


def heartbeat_write(*, store: "redis.Redis[bytes]") -> None:
    """Says that a worker runs tasks. Raises: redis.RedisError."""
    store.set(HEARTBEAT, str(timezone.now().timestamp()), ex=HEARTBEAT_TTL_S)


def _to_row(entry_id: str, event: FleetEvent) -> FleetEventRecord:
    return FleetEventRecord(
        # An entry id is unique within one memory of the store; with the time it always is.
        entry_id=f"{entry_id}@{event.at_unix_s:.3f}",
        at=datetime.fromtimestamp(event.at_unix_s, UTC),
        kind=event.kind,
        severity=event.severity,
        instance=event.instance,
        headline=event.headline[:255],
        detail=event.detail,
    )
