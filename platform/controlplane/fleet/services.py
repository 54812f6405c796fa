"""Copies what happened from the store to the database, and forgets what is old."""

from datetime import UTC, datetime, timedelta
from typing import Final

import redis
from django.utils import timezone

from controlplane.fleet.models import FleetEventRecord, MigrationRecord
from controlplane.usage.retention import requests_forget
from engine_pool.pool_keys import FIRST, PoolKeys
from engine_pool.types import FleetEvent
from engine_pool.view import decode_event

BATCH_EVENTS: Final = 500
HEARTBEAT: Final = "ferry:worker-heartbeat"
WORKER_ALIVE: Final = "ferry:worker-alive"
HEARTBEAT_TTL_S: Final = 3600
"""Longer than it takes to count as away, so that it can be said since when."""


def events_copy(*, store: "redis.Redis[bytes]", keys: PoolKeys = FIRST) -> int:
    """Copies new events, oldest first; returns how many. Safe to repeat and to run twice at once.

    Raises: redis.RedisError, DatabaseError.
    """
    last = store.get(keys.events_copied_to)
    low = f"({last.decode()}" if last else "-"
    entries = store.xrange(keys.events, low, "+", count=BATCH_EVENTS)
    if not entries:
        return 0
    rows = [_to_row(entry.decode(), decode_event(fields[b"e"]), keys) for entry, fields in entries]
    FleetEventRecord.objects.bulk_create(rows, ignore_conflicts=True)
    store.set(keys.events_copied_to, entries[-1][0])
    return len(rows)


def records_forget(*, older_than_days: int) -> int:
    """Deletes requests, events and moves that are too old; returns how many."""
    before = timezone.now() - timedelta(days=older_than_days)
    requests = requests_forget(before=before)
    events, _ = FleetEventRecord.objects.filter(at__lt=before).delete()
    moves, _ = MigrationRecord.objects.filter(started_at__lt=before).delete()
    return requests + events + moves


def heartbeat_write(*, store: "redis.Redis[bytes]") -> None:
    """Says that a worker runs tasks. Raises: redis.RedisError."""
    store.set(HEARTBEAT, str(timezone.now().timestamp()), ex=HEARTBEAT_TTL_S)


def worker_alive_write(*, store: "redis.Redis[bytes]") -> None:
    """Says that a worker process lives. Raises: redis.RedisError."""
    store.set(WORKER_ALIVE, str(timezone.now().timestamp()), ex=HEARTBEAT_TTL_S)


def _to_row(entry_id: str, event: FleetEvent, keys: PoolKeys) -> FleetEventRecord:
    return FleetEventRecord(
        # An entry id is unique within one stream and one memory of the store; with pool and time
        # it always is. The column has 64 characters.
        entry_id=f"{entry_id}@{event.at_unix_s:.3f}{keys.namespace and '@'}{keys.namespace}"[:64],
        at=datetime.fromtimestamp(event.at_unix_s, UTC),
        kind=event.kind,
        severity=event.severity,
        instance=event.instance,
        headline=event.headline[:255],
        detail=event.detail,
    )
