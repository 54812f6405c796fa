"""Measures the pages' queries on ten million requests, on SQLite and on a real PostgreSQL server.

`python -m benchmarks.usage [--rows N] [--database sqlite|postgresql]`. Fills a database of its own
(usage_rows.py), runs each query that the pages make (usage_queries.py), prints its plan and the
median of several runs, and how many rows a second the roll-up takes. The last line is JSON.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
DATABASES: Final = ("sqlite", "postgresql")
DEFAULT_ROWS: Final = 10_000_000
SPAN_DAYS: Final = 30
ROUNDS: Final = 7
"""Runs of each query after one that warms the caches."""
FILL_TIMEOUT_S: Final = 3600.0
GOAL_MS: Final = 200.0
"""For a page's query at its median: what a person takes for at once."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=DEFAULT_ROWS)
    parser.add_argument("--database", choices=DATABASES, action="append")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        print(json.dumps(measure(given.rows)))
        return 0
    figures: dict[str, Any] = {"rows": given.rows, "goal_ms": GOAL_MS}
    for name in given.database or DATABASES:
        with _database(name) as url:
            figures[name] = _measure_apart(given.rows, url)
    print(json.dumps(figures))
    return 0


@contextlib.contextmanager
def _database(name: str) -> Iterator[str]:
    from ops.postgresql import running_postgresql

    # Not in memory: ten million rows are gigabytes.
    with tempfile.TemporaryDirectory(prefix="ferry-bench-", dir="/var/tmp") as folder:
        if name == "sqlite":
            yield f"sqlite:///{folder}/usage.sqlite3"
            return
        with running_postgresql(Path(folder)) as url:
            yield url


def _measure_apart(rows: int, url: str) -> dict[str, Any]:
    """Measures in a process of its own: Django has one database for its life."""
    command = [sys.executable, "-m", "benchmarks.usage", "--inside", "--rows", str(rows)]
    with tempfile.TemporaryDirectory(prefix="ferry-bench-") as var:
        environ = {
            **os.environ,
            "DATABASE_URL": url,
            "FERRY_VAR_DIR": var,
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "platform"))),
        }
        process = subprocess.Popen(
            command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        last = ""
        for line in process.stdout:
            if last:
                print(last, end="", flush=True)
            last = line
        if process.wait(FILL_TIMEOUT_S) != 0:
            raise RuntimeError("the measurement failed; its output says why")
    found: dict[str, Any] = json.loads(last)
    return found


def measure(rows: int) -> dict[str, Any]:
    """Returns the figures for the database of this process's settings."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    import django

    django.setup()
    from django.core.management import call_command
    from django.db import connection

    from benchmarks import usage_queries, usage_rows

    call_command("migrate", verbosity=0)
    now, began_s = usage_rows.moment(), time.monotonic()
    usage_rows.fill(rows, now=now, span_days=SPAN_DAYS)
    fill_s = time.monotonic() - began_s
    print(f"{connection.vendor}: {rows:,} rows in {fill_s:.0f} s", flush=True)
    figures: dict[str, dict[str, float]] = {}
    for query in usage_queries.page_queries(usage_queries.sample_of(now, SPAN_DAYS)):
        figures[query.name] = _measure_query(query)
    medians = [figure["median_ms"] for figure in figures.values()]
    return {
        "fill_s": round(fill_s, 1),
        "slowest_median_ms": max(medians),
        "roll_up_rows_per_s": _roll_up(),
        "queries": figures,
    }


def _measure_query(query: Any) -> dict[str, float]:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    with CaptureQueriesContext(connection) as asked:
        query.run()
    print(f"\n{query.name}", flush=True)
    for one in asked.captured_queries:
        for line in explain(one["sql"]):
            print(f"    {line}")
    times_ms = []
    for _ in range(ROUNDS):
        began_s = time.perf_counter()
        query.run()
        times_ms.append((time.perf_counter() - began_s) * 1000)
    found = {
        "median_ms": round(statistics.median(times_ms), 2),
        "max_ms": round(max(times_ms), 2),
        "queries": len(asked),
    }
    print(f"  {found['median_ms']} ms (at most {found['max_ms']}), {len(asked)} queries")
    return found


def explain(sql: str) -> Sequence[str]:
    """Returns the plan of a statement, a line a step."""
    from django.db import connection

    if not sql.lstrip().upper().startswith(("SELECT", "(SELECT", "WITH")):
        return []
    start = "EXPLAIN QUERY PLAN " if connection.vendor == "sqlite" else "EXPLAIN (COSTS OFF) "
    with connection.cursor() as cursor:
        cursor.execute(start + sql)
        return [str(row[-1]) for row in cursor.fetchall()]


def _roll_up() -> float:
    """Returns how many rows a second the roll-up takes in."""
    from controlplane.usage.rollups import usage_roll

    began_s = time.perf_counter()
    count = usage_roll()
    return round(count / (time.perf_counter() - began_s), 1)


if __name__ == "__main__":
    sys.exit(main())
