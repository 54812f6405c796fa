"""Fills the tables about requests with rows as a busy installation leaves them, in SQL.

A tenant's share of the requests falls with its number: the first has about a tenth of them. A key
is for one model and one class. What is drawn is arithmetic on the row's number, so that each run
has the same rows.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from django.db import connection

from controlplane.usage.rollups import DAY_S, LONG_S, SHORT_S

TENANTS: Final = 200
KEYS_A_TENANT: Final = 4
MODELS: Final = 4
INSTANCES: Final = 32
UNROLLED_ROWS: Final = 5000
"""Newest rows that no roll-up has seen: a thousand requests a second for one interval."""
BATCH_ROWS: Final = 1_000_000

_SERIES: Final = {
    "postgresql": "SELECT n FROM generate_series({low}, {high}) AS s(n)",
    "sqlite": "WITH RECURSIVE s(n) AS (SELECT {low} UNION ALL SELECT n + 1 FROM s WHERE n < {high})"
    " SELECT n FROM s",
}
_AT: Final = {
    "postgresql": "TIMESTAMPTZ '{start}' + ({seconds}) * INTERVAL '1 second'",
    "sqlite": "strftime('%Y-%m-%d %H:%M:%f', {start_unix} + ({seconds}), 'unixepoch')",
}
_FLOOR: Final = {
    "postgresql": "to_timestamp(floor(extract(epoch from ended_at) / {s}) * {s})",
    "sqlite": "strftime('%Y-%m-%d %H:%M:%S',"
    " CAST(strftime('%s', ended_at) AS INTEGER) / {s} * {s}, 'unixepoch')",
}


def fill(rows: int, *, now: datetime, span_days: int) -> None:
    """Adds tenants and requests, without indexes while it adds, then the sums of the older ones."""
    indexes = _drop_indexes()
    _tenants()
    start = now - timedelta(days=span_days)
    step_s = span_days * 86400 / rows
    for low in range(1, rows + 1, BATCH_ROWS):
        high = min(rows, low + BATCH_ROWS - 1)
        _run(_insert(low, high, start, step_s, rolled_until=rows - UNROLLED_ROWS))
    for statement in indexes:
        _run(statement)
    _sums()
    _run("ANALYZE" if connection.vendor == "sqlite" else "VACUUM ANALYZE")


def _tenants() -> None:
    from controlplane.tenants.models import Slo, Tenant

    Tenant.objects.bulk_create(
        Tenant(pk=n, name=f"Tenant {n}", slug=f"tenant-{n}") for n in range(1, TENANTS + 1)
    )
    for name in ("high", "normal", "low"):
        Slo.objects.get_or_create(
            tenant=None, priority_class=name, defaults={"ttft_ms": 1000, "tpot_ms": 100}
        )


def _insert(low: int, high: int, start: datetime, step_s: float, rolled_until: int) -> str:
    vendor = connection.vendor
    true, false = ("TRUE", "FALSE") if vendor == "postgresql" else ("1", "0")
    # A number of two digits, squared: few large ones. Then numbers that look drawn.
    tenant = f"1 + (h % 1000) * (h % 1000) * {TENANTS} / 1000000"
    arrived = _AT[vendor].format(
        start=start.isoformat(), start_unix=start.timestamp(), seconds=f"n * {step_s!r}"
    )
    ended = _AT[vendor].format(
        start=start.isoformat(), start_unix=start.timestamp(), seconds=f"n * {step_s!r} + 3"
    )
    big = "n::bigint" if vendor == "postgresql" else "n"
    missed = f"CASE WHEN h % 97 = 0 THEN {false} ELSE {true} END"
    return f"""
        INSERT INTO gateway_requestrecord (
            request_id, tenant_id, key_id, client_request_id, pool, model, endpoint,
            priority_class, status, error_code, instance, instances, migrations, dispatch_reason,
            prompt_tokens, cached_tokens, output_tokens, is_partial, cost, arrived_at, ended_at,
            ttft_ms, tpot_ms, duration_ms, queue_ms, prefill_ms, decode_ms, migration_ms,
            ttft_target_ms, tpot_target_ms, is_ttft_met, is_tpot_met, is_rolled)
        SELECT 'chatcmpl-' || n || '-' || h, {tenant}, ({tenant}) * 10 + h % {KEYS_A_TENANT},
            CASE WHEN n % 10 = 0 THEN 'trace-' || n ELSE '' END,
            'default', 'model-' || (h % {KEYS_A_TENANT} % {MODELS}), 'chat',
            CASE h % {KEYS_A_TENANT} WHEN 0 THEN 'high' WHEN 1 THEN 'low' ELSE 'normal' END,
            CASE WHEN h % 200 = 0 THEN 'failed' WHEN h % 50 = 1 THEN 'cancelled'
                ELSE 'completed' END,
            '', 'i-' || (h / 13 % {INSTANCES}), '[]', 0, 'the freest one of 32',
            100 + h % 900, h % 100, 20 + h % 300, {false}, 0.00025, {arrived}, {ended},
            300.0, 30.0, 3000.0, 100.0, 200.0, 2700.0, 0.0,
            1000.0, 100.0, {missed}, {true}, n <= {rolled_until}
        FROM (SELECT n, ({big} * 7919 + n / 1000 * 31) % 1000003 AS h
              FROM ({_SERIES[vendor].format(low=low, high=high)}) AS numbers) AS drawn
    """


def _sums() -> None:
    """Writes what the roll-up would have written; its own speed is measured apart."""
    rolled = "WHERE is_rolled GROUP BY"
    for table, column, length_s in (("hour", "hour", LONG_S), ("day", "day", DAY_S)):
        at = _FLOOR[connection.vendor].format(s=length_s)
        _run(f"""
            INSERT INTO usage_usage{table} ({column}, tenant_id, key_id, model, priority_class,
                requests, failed, partial, prompt_tokens, cached_tokens, output_tokens, cost)
            SELECT {at}, tenant_id, key_id, model, priority_class, count(*),
                sum(CASE status WHEN 'failed' THEN 1 ELSE 0 END), 0, sum(prompt_tokens),
                sum(cached_tokens), sum(output_tokens), sum(cost)
            FROM gateway_requestrecord {rolled} 1, 2, 3, 4, 5
        """)
    for length_s in (SHORT_S, LONG_S, DAY_S):
        at = _FLOOR[connection.vendor].format(s=length_s)
        newest = "AND ended_at >= (SELECT max(ended_at) FROM gateway_requestrecord)"
        if connection.vendor == "postgresql":
            recent = f"{newest} - INTERVAL '2 days'"
        else:
            recent = (
                "AND ended_at >= (SELECT datetime(max(ended_at), '-2 days')"
                " FROM gateway_requestrecord)"
            )
        _run(f"""
            INSERT INTO usage_slominutes (at, length_s, tenant_id, priority_class, requests, met,
                ttft_missed, tpot_missed, failed)
            SELECT {at}, {length_s}, tenant_id, priority_class, count(*),
                sum(CASE WHEN is_ttft_met THEN 1 ELSE 0 END),
                sum(CASE WHEN is_ttft_met THEN 0 ELSE 1 END), 0, 0
            FROM gateway_requestrecord WHERE is_rolled {recent if length_s == SHORT_S else ""}
            GROUP BY 1, 3, 4
        """)


def _drop_indexes() -> list[str]:
    """Drops the ledger's indexes; returns the statements that make them again."""
    if connection.vendor == "postgresql":
        find = (
            "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'gateway_requestrecord'"
            " AND indexdef NOT LIKE 'CREATE UNIQUE%'"
        )
    else:
        find = (
            "SELECT name, sql FROM sqlite_master WHERE type = 'index'"
            " AND tbl_name = 'gateway_requestrecord' AND sql IS NOT NULL"
        )
    with connection.cursor() as cursor:
        cursor.execute(find)
        found = cursor.fetchall()
    for name, _ in found:
        _run(f'DROP INDEX "{name}"')
    return [statement for _, statement in found]


def _run(statement: str) -> None:
    with connection.cursor() as cursor:
        # No parameters: a percent sign is one.
        cursor.execute(statement)


def moment() -> datetime:
    """Returns the present moment, to the second: the newest row's."""
    return datetime.now(UTC).replace(microsecond=0)
