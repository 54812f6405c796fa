"""After the last fault: what is left behind that should not be."""

import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

import redis

from benchmarks.chaos_journey import Attempt, Journey
from benchmarks.chaos_site import ENGINE_TITLE, ChaosSite
from engine_pool import view

ADMISSION: Final = "ferry:adm:"
"""Prefix of what admission keeps in the store (controlplane/admission/scripts.py)."""
QUIET_S: Final = 120.0
"""Orphans live for 30 s and leases for 15 s; what is not gone after four times that stays."""
RECORDS_S: Final = 180.0
"""The worker writes the rows of dead web processes 45 s after a log's end; it may have to start
first."""
POLL_S: Final = 1.0


@dataclass(slots=True)
class Left:
    """What is left. All of it is a goal of 0 but `records_lost_with_store`."""

    slots: int = 0
    """Places of requests that count as under way, of any tenant or pool."""
    leases: int = 0
    """Reservations that nobody has settled."""
    blocks: int = 0
    """KV blocks that engines have given out, without a request."""
    requests: int = 0
    """In engines' batches and queues."""
    moves: int = 0
    """Shown as going on."""
    processes: int = 0
    """Above those of a healthy installation, and engines that the pool does not know."""
    stopped_processes: int = 0
    records_missing: int = 0
    records_lost_with_store: int = 0
    """Nobody can write the row of a request when its web process is dead and the store, which alone
    knew of it besides, has lost its memory."""
    records_double: int = 0
    details: list[str] = field(default_factory=list)


def audit(
    site: ChaosSite,
    journeys: Sequence[Journey],
    census: Mapping[str, int],
    outages: Sequence[tuple[float, float]],
) -> tuple[Left, list[dict[str, Any]]]:
    """Waits until everything is quiet and counts what is left; returns the requests' rows too.

    `census`: processes of the healthy installation. `outages`: spans (monotonic seconds) before
    which ends lay that the store may have forgotten.
    """
    left = Left()
    _settled(lambda: _store_left(site, left), QUIET_S)
    _settled(lambda: _processes_left(site, left, census), QUIET_S)
    rows: list[dict[str, Any]] = []

    def look_at_rows() -> int:
        rows[:] = read_rows(site)
        return _records_left(rows, journeys, left, outages)

    _settled(look_at_rows, RECORDS_S)
    return left, rows


def _settled(count: Callable[[], int], within_s: float) -> None:
    """Looks until nothing is left, or for so long."""
    give_up_s = time.monotonic() + within_s
    while count() and time.monotonic() < give_up_s:
        time.sleep(POLL_S)


def _store_left(site: ChaosSite, left: Left) -> int:
    try:
        store = site.store()
        now_ms = int(time.time() * 1000)
        live = list(store.scan_iter(f"{ADMISSION}*:live", count=1000))
        left.slots = sum(store.zcount(key, now_ms, "+inf") for key in live)
        left.leases = store.zcard(f"{ADMISSION}leases")
        loads = site.loads()
        left.moves = store.hlen(view.MOVES)
    except redis.RedisError as error:
        left.details = [f"the store does not answer: {type(error).__name__}"]
        left.slots = 1
        return 1
    left.requests = sum(len(x.running) + len(x.waiting) for x in loads)
    left.blocks = sum(x.used_tokens // x.block_size_tokens for x in loads)
    return left.slots + left.leases + left.requests + left.blocks + left.moves


def _processes_left(site: ChaosSite, left: Left, census: Mapping[str, int]) -> int:
    now = site.census()
    known = {s.pid for s in site.known_statuses()}
    strangers = [p.pid for p in site.engine_processes() if p.pid not in known]
    more = {n: now[n] - census.get(n, 0) for n in now if n != ENGINE_TITLE}
    more = {name: extra for name, extra in more.items() if extra > 0}
    left.processes = len(strangers) + sum(more.values())
    left.stopped_processes = sum(p.status() == "stopped" for p in site.engine_processes())
    left.details = [f"engines that the pool does not know: {strangers}"] if strangers else []
    left.details += [f"{extra} x {name} too many" for name, extra in more.items()]
    return left.processes + left.stopped_processes


def _records_left(
    rows: Sequence[Mapping[str, Any]],
    journeys: Sequence[Journey],
    left: Left,
    outages: Sequence[tuple[float, float]],
) -> int:
    by_name = Counter(row["client_request_id"] for row in rows)
    by_id = Counter(row["request_id"] for row in rows)
    left.records_double = sum(n > 1 for name, n in by_name.items() if name) + sum(
        n > 1 for n in by_id.values()
    )
    missing = [
        (journey, attempt)
        for journey in journeys
        for attempt in journey.attempts
        if attempt.is_begun and not by_name[attempt.client_request_id]
    ]
    lost = [pair for pair in missing if _may_be_lost(*pair, outages)]
    left.records_lost_with_store = len(lost)
    left.records_missing = len(missing) - len(lost)
    return len(missing)


def _may_be_lost(
    journey: Journey, attempt: Attempt, outages: Sequence[tuple[float, float]]
) -> bool:
    """Says whether the store lost its memory while the row could have been missing from it."""
    return any(
        journey.began_s <= end and begin <= (journey.ended_s or end) + RECORDS_S
        for begin, end in outages
    )


def read_rows(site: ChaosSite) -> list[dict[str, Any]]:
    """Returns the rows of the run's requests."""
    path = site.var_dir / "ferry.sqlite3"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as database:
        database.row_factory = sqlite3.Row
        found = database.execute(
            "SELECT * FROM gateway_requestrecord WHERE client_request_id LIKE 'chaos-%'"
        )
        return [dict(row) for row in found]
