"""Brings the ledger's rows into the sums of their hours, each row exactly once.

A row says itself whether it is in the sums (`is_rolled`). One transaction takes rows that are not,
adds them up, adds that to the sums and marks the rows. So it does not matter how often this runs,
how late a row comes, how long the worker was away, or whether two workers run at once: PostgreSQL
gives them different rows (SKIP LOCKED), SQLite lets in one after the other. Whoever reads adds the
rows that are not marked to the sums, in one statement (sums_sql.py), and is right to the second.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple

from django.db import connection, transaction
from django.db.models import Model

from controlplane.gateway.metrics import violations
from controlplane.gateway.models import RequestRecord, RequestStatus
from controlplane.usage.models import SloMinutes, UsageDay, UsageHour

BATCH_ROWS: Final = 1000
"""Rows of one transaction: about 50 ms, so that no writer waits long on SQLite."""
UPSERT_ROWS: Final = 200
"""Rows of one statement: below SQLite's bound of parameters, also of old ones (2000 of 32766)."""
BATCHES_MAX: Final = 100
"""Of one run; with 100,000 rows it ends within a task's time, and the next run goes on."""
SHORT_S: Final = 300
LONG_S: Final = 3600
DAY_S: Final = 86400
"""Lengths of the periods that SLOs are summed over; usage has hours and days."""
USAGE_SUMS: Final = (
    "requests",
    "failed",
    "partial",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "cost",
)
SLO_SUMS: Final = ("requests", "met", "ttft_missed", "tpot_missed", "failed")
_READ: Final = (
    "tenant_id",
    "key_id",
    "model",
    "priority_class",
    "status",
    "is_partial",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "cost",
    "arrived_at",
    "ended_at",
    "is_ttft_met",
    "is_tpot_met",
)


class HourKey(NamedTuple):
    """What a row of UsageHour is unique by, in the order in which rows are locked."""

    tenant_id: int
    hour: datetime
    model: str
    priority_class: str
    key_id: int


class DayKey(NamedTuple):
    """What a row of UsageDay is unique by."""

    tenant_id: int
    day: datetime
    model: str
    priority_class: str
    key_id: int


class SloKey(NamedTuple):
    """What a row of SloMinutes is unique by."""

    tenant_id: int
    priority_class: str
    length_s: int
    at: datetime


@dataclass(slots=True)
class Totals:
    """Sums of some rows."""

    hours: dict[HourKey, dict[str, int | Decimal]] = field(default_factory=dict)
    days: dict[DayKey, dict[str, int | Decimal]] = field(default_factory=dict)
    slo: dict[SloKey, dict[str, int | Decimal]] = field(default_factory=dict)


def usage_roll(*, batches_max: int = BATCHES_MAX) -> int:
    """Adds rows that are not in the sums yet; returns how many. Raises: DatabaseError."""
    rolled = 0
    for _ in range(batches_max):
        count = _roll_batch()
        rolled += count
        if count < BATCH_ROWS:
            break
    return rolled


@transaction.atomic
def _roll_batch() -> int:
    rows = list(
        RequestRecord.objects.select_for_update(skip_locked=True)
        .filter(is_rolled=False)
        .order_by("ended_at")
        .only(*_READ)[:BATCH_ROWS]
    )
    if not rows:
        return 0
    totals = total(rows)
    _add(UsageHour, totals.hours)
    _add(UsageDay, totals.days)
    _add(SloMinutes, totals.slo)
    RequestRecord.objects.filter(pk__in=[row.pk for row in rows]).update(is_rolled=True)
    return len(rows)


def total(rows: Iterable[RequestRecord]) -> Totals:
    """Returns the rows' sums. Pure."""
    totals = Totals()
    for row in rows:
        at = row.ended_at or row.arrived_at
        of = (row.model, row.priority_class, row.key_id)
        used = usage_of(row)
        _count(totals.hours, HourKey(row.tenant_id, floor(at, LONG_S), *of), used)
        _count(totals.days, DayKey(row.tenant_id, floor(at, DAY_S), *of), used)
        if counted := slo_of(row):
            for length_s in (SHORT_S, LONG_S, DAY_S):
                key = SloKey(row.tenant_id, row.priority_class, length_s, floor(at, length_s))
                _count(totals.slo, key, counted)
    return totals


def usage_of(row: RequestRecord) -> dict[str, int | Decimal]:
    """Returns what a request adds to USAGE_SUMS."""
    return {
        "requests": 1,
        "failed": int(row.status == RequestStatus.FAILED),
        "partial": int(row.is_partial and row.status != RequestStatus.FAILED),
        "prompt_tokens": row.prompt_tokens,
        "cached_tokens": row.cached_tokens,
        "output_tokens": row.output_tokens,
        "cost": row.cost,
    }


def slo_of(row: RequestRecord) -> dict[str, int | Decimal] | None:
    """Returns what a request adds to SLO_SUMS, None when it does not count (gateway/verdicts.py).

    One that failed is neither a missed TTFT nor a missed TPOT: it is counted by its own.
    """
    if row.is_ttft_met is None and row.is_tpot_met is None:
        return None
    missed = violations(row)
    return {
        "requests": 1,
        "met": int(not missed),
        "ttft_missed": int("ttft" in missed),
        "tpot_missed": int("tpot" in missed),
        "failed": int("failed" in missed),
    }


def floor(at: datetime, length_s: int) -> datetime:
    """Returns the beginning of the period of a length that a moment is in (UTC)."""
    unix_s = int(at.timestamp())
    return datetime.fromtimestamp(unix_s - unix_s % length_s, UTC)


def ceil(at: datetime, length_s: int) -> datetime:
    """Returns the beginning of the next period, or the moment if it begins one."""
    low = floor(at, length_s)
    return low if low == at else low + timedelta(seconds=length_s)


def _count(sums: "dict[Any, dict[str, int | Decimal]]", key: Any, more: Mapping[str, Any]) -> None:
    if (known := sums.get(key)) is None:
        sums[key] = dict(more)
    else:
        for name, value in more.items():
            known[name] += value


def _add(kind: type[Model], sums: Mapping[Any, Mapping[str, Any]]) -> None:
    """Adds to the rows of a table, and makes those that are missing.

    In the keys' order, so that two workers never wait for each other in a circle. One statement for
    many rows, which Django has no way to say.
    """
    if not sums:
        return
    table, keys = kind._meta.db_table, sorted(sums)
    by_column = {field.attname: field for field in kind._meta.concrete_fields}
    names = [*keys[0]._fields, *sums[keys[0]]]
    added = ", ".join(f"{name} = {table}.{name} + EXCLUDED.{name}" for name in sums[keys[0]])
    row = f"({', '.join(['%s'] * len(names))})"
    with connection.cursor() as cursor:
        for batch in _batched(keys, UPSERT_ROWS):
            values = [
                by_column[name].get_db_prep_save(value, connection)
                for key in batch
                for name, value in zip(names, [*key, *sums[key].values()], strict=True)
            ]
            cursor.execute(
                f"INSERT INTO {table} ({', '.join(names)}) VALUES {', '.join([row] * len(batch))}"
                f" ON CONFLICT ({', '.join(keys[0]._fields)}) DO UPDATE SET {added}",
                values,
            )


def _batched(keys: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """Yields the keys in pieces."""
    for start in range(0, len(keys), size):
        yield keys[start : start + size]
