"""Every query of the pages finds its rows by an index, and reads no more with a larger table.

benchmarks/usage.py shows the plans and times with ten million rows.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from benchmarks.usage_queries import PAGE_ROWS, Query, Sample, page_queries
from controlplane.gateway.models import RequestRecord
from controlplane.tenants.models import ApiKey, Slo
from controlplane.usage.rollups import usage_roll
from tests.controlplane.ledger import NOW, add, row, tenant

LARGE_TABLES = ("gateway_requestrecord", "usage_usagehour", "usage_slominutes")
SMALL, LARGE = 1200, 6000
"""Rows; both more than a page shows of any filter."""
GROWTH_MAX = 1.5
"""How much more work a query may be on five times the rows: a deeper index, not a longer walk."""
SPAN_DAYS = 3
SAMPLE = Sample(
    now=NOW, tenant_id=0, key_id=1, model="m1", instance="i1", request_id="r7",
    client_request_id="trace-7", span_days=SPAN_DAYS,
)  # fmt: skip


def grow(count: int, begin: int) -> None:
    """Adds requests of the span's hours, so that their number alone grows, and rolls them up."""
    draw = random.Random(begin)
    of = [tenant("alice"), tenant("bob")]
    # The last 24 hours are replayed request by request, up to a bound: they do not grow here.
    hours = range(SPAN_DAYS * 24 - 30) if begin else range(SPAN_DAYS * 24)
    add(*[
        row(
            of[n % 2],
            NOW - timedelta(days=SPAN_DAYS) + timedelta(hours=draw.choice(hours), minutes=7),
            request_id=f"r{n}",
            client_request_id=f"trace-{n}" if n % 5 == 2 else "",
            key_id=n % 4,
            model=f"m{n % 4}",
            instance=f"i{n % 4}",
            status="failed" if n % 8 == 1 else "completed",
            is_ttft_met=n % 6 > 1,
        )
        for n in range(begin, begin + count)
    ])  # fmt: skip
    usage_roll(batches_max=1000)


def sample() -> Sample:
    return replace(SAMPLE, tenant_id=tenant("alice").pk)


@pytest.fixture
def filled(db: None) -> None:
    ApiKey.objects.create(tenant=tenant(), name="k", public_id="p")
    Slo.objects.create(priority_class="normal", ttft_ms=1)
    grow(SMALL, 0)
    if connection.vendor == "postgresql":
        # A table of a few pages is read whole, rightly; here the question is whether it must be.
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL enable_seqscan = off")
    # And some that are in no sum yet.
    add(*[row(tenant("alice"), NOW, is_ttft_met=True) for _ in range(20)])


def plans(query: Query) -> Iterator[str]:
    """Yields the steps of the plans of all that a page asks."""
    explain = "EXPLAIN QUERY PLAN " if connection.vendor == "sqlite" else "EXPLAIN "
    with CaptureQueriesContext(connection) as asked:
        query.run()
    for one in asked.captured_queries:
        with connection.cursor() as cursor:
            cursor.execute(explain + one["sql"])
            for step in cursor.fetchall():
                yield str(step[-1])


def reads_all(step: str) -> bool:
    """Says whether a step walks through a whole large table."""
    if connection.vendor == "sqlite":
        scan = step.startswith("SCAN") and "INDEX" not in step
    else:
        scan = "Seq Scan" in step
    return scan and any(table in step for table in LARGE_TABLES)


def test_every_query_of_the_pages_finds_its_rows_by_an_index(filled: None) -> None:
    walked = {
        f"{query.name}: {step}"
        for query in page_queries(sample())
        for step in plans(query)
        if reads_all(step)
    }
    assert walked == set()


def test_no_query_of_the_pages_reads_more_rows_of_a_larger_table(filled: None) -> None:
    measure = measure_here()
    queries = page_queries(sample())
    before = {query.name: measure(query) for query in queries}
    grow(LARGE - SMALL, SMALL)
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")
    after = {query.name: measure(query) for query in queries}
    grown = {
        name: (count, after[name])
        for name, count in before.items()
        if after[name] > max(GROWTH_MAX * count, 4 * PAGE_ROWS)
    }
    assert grown == {}


def measure_here() -> Callable[[Query], float]:
    return sqlite_steps if connection.vendor == "sqlite" else postgresql_rows


def sqlite_steps(query: Query) -> float:
    """Returns how many hundred steps SQLite's machine takes."""
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    connection.ensure_connection()
    connection.connection.set_progress_handler(count, 100)
    try:
        query.run()
    finally:
        connection.connection.set_progress_handler(None, 100)
    return steps


def postgresql_rows(query: Query) -> float:
    """Returns how many rows PostgreSQL reads from the large tables, by any kind of scan."""
    with CaptureQueriesContext(connection) as asked:
        query.run()
    read = 0.0
    for one in asked.captured_queries:
        with connection.cursor() as cursor:
            cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + one["sql"])
            (found,) = cursor.fetchone()
        read += _rows_of(found[0]["Plan"])
    return read


def _rows_of(plan: dict[str, Any]) -> float:
    mine = 0.0
    if plan.get("Relation Name") in LARGE_TABLES:
        filtered = plan.get("Rows Removed by Filter", 0)
        mine = (plan["Actual Rows"] + filtered) * plan["Actual Loops"]
    return mine + sum(_rows_of(child) for child in plan.get("Plans", []))


def test_the_measure_sees_a_query_that_walks(filled: None) -> None:
    measure = measure_here()
    walk = Query("walk", lambda: list(RequestRecord.objects.filter(endpoint="none")))
    before = measure(walk)
    grow(LARGE - SMALL, SMALL)
    assert measure(walk) > 3 * before


@pytest.mark.django_db
def test_the_plan_shows_a_query_that_walks() -> None:
    walk = Query("walk", lambda: list(RequestRecord.objects.filter(endpoint="none")))
    assert any(reads_all(step) for step in plans(walk))
