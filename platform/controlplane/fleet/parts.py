"""Which parts of the installation answer, and what still works when one does not. Pure.

The texts follow ARCHITECTURE.md, "When a part is away". The strip shows the worst part, the status
page shows all.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from controlplane.fleet.picture import FAILING, InstanceRow, is_stale

POOL_SILENT_AFTER_S: Final = 5.0
"""The pool process writes a sample a second; five missing ones are no hiccup."""
WORKER_SILENT_AFTER_S: Final = 30.0
"""The worker's heartbeat comes every few seconds; a long task may delay it."""
BEAT_SILENT_AFTER_S: Final = 60.0
"""A task that beat gives out every five seconds tells of it, once a worker is free for it."""

StripTone = Literal["ok", "warn", "bad"]


@dataclass(frozen=True, slots=True)
class Probes:
    """What was found out about the parts. A time of None: never seen."""

    store_answers: bool
    store_since_unix_s: float
    database_answers: bool | None
    """None: not asked yet."""
    database_since_unix_s: float
    pool_sample_unix_s: float | None
    worker_heartbeat_unix_s: float | None
    """A task ran that beat had given out: both live."""
    observed_since_unix_s: float
    """When this process began to look; a part that was never seen is away since then at least."""
    worker_alive_unix_s: float | None = None
    """A worker's own sign of life, whether it has tasks or not."""
    ray_answers: bool | None = None
    """None: this process has not joined Ray, or not asked yet."""
    ray_since_unix_s: float | None = None
    database_reads: bool | None = None
    """Whether it answers a query; one that does may still take no rows. None: not asked yet."""


class Part(NamedTuple):
    key: str
    name: str
    answers: bool | None
    """None: unknown, since what would tell does not answer itself."""
    since_unix_s: float | None
    headline: str
    still_works: str
    what_to_do: str
    tone: StripTone


class StripRow(NamedTuple):
    """The status strip. The fields' order is the socket's (web/messages.py)."""

    tone: StripTone
    headline: str
    since_unix_s: float | None
    detail: str
    more: int
    """How many other parts do not answer."""
    answering: str
    oldest_report_unix_s: float | None


def parts_of(
    probes: Probes, rows: Mapping[str, InstanceRow], desired: int, now_unix_s: float
) -> tuple[Part, ...]:
    """Judges every part, worst first among those that do not answer."""
    parts = (
        _store(probes),
        _pool(probes, now_unix_s),
        _ray(probes),
        _engines(rows, desired, now_unix_s),
        _database(probes),
        _worker(probes, now_unix_s),
        _beat(probes, now_unix_s),
    )
    return parts


def scaling_stands_still(parts: Iterable[Part]) -> str:
    """Returns why no number of instances changes by itself now; empty: nothing keeps it from it.

    For the page about scaling: the loop is a task of the worker, which beat gives out, the store
    carries and the database remembers; the pool process does what it decides.
    """
    away = {part.key for part in parts if part.answers is False}
    for key, why in _SCALING_NEEDS.items():
        if key in away:
            return f"{why}, so the number of instances stays as it is."
    return ""


_SCALING_NEEDS: Final = {
    "store": "The store does not answer",
    "database": "The database does not answer",
    "worker": "Celery does not answer",
    "beat": "Celery's beat gives out no tasks",
    "pool": "The pool process does not answer",
    "ray": "Ray does not answer",
}
"""By part; the first that is away is told."""


def strip_of(
    parts: tuple[Part, ...],
    rows: Mapping[str, InstanceRow],
    desired: int,
    now_unix_s: float,
    note: str = "",
) -> StripRow:
    """Says in one line how the installation is. `note`: what operators have changed for a time."""
    away = [p for p in parts if p.answers is False]
    away.sort(key=lambda p: p.tone != "bad")
    fresh, oldest_unix_s = fresh_reports(rows, now_unix_s)
    engines = f"{fresh} of {max(desired, len(rows))} engines"
    if not away:
        headline = "All parts answer." if desired else "All parts answer. No instance is wanted."
        return StripRow("ok", headline, None, note, 0, engines, oldest_unix_s)
    names = [p.name for p in parts if p.answers and p.key not in ("engines", "beat")]
    answering = ", ".join([*names, engines]) + " answer"
    worst = away[0]
    return StripRow(
        worst.tone, worst.headline, worst.since_unix_s, f"{worst.still_works} {note}".rstrip(),
        len(away) - 1,
        answering[:1].upper() + answering[1:], None,
    )  # fmt: skip


def fresh_reports(rows: Mapping[str, InstanceRow], now_unix_s: float) -> tuple[int, float | None]:
    """Returns how many instances report, and the time of the oldest of those reports."""
    times = [
        r.at_unix_s
        for r in rows.values()
        if r.at_unix_s is not None and not is_stale(r, now_unix_s)
    ]
    return len(times), min(times, default=None)


def _store(probes: Probes) -> Part:
    return Part(
        "store", "store", probes.store_answers, probes.store_since_unix_s,
        "The store does not answer",
        "New requests get 503; running streams wait a few seconds, then end with an error.",
        "Look at the store's log in var/log. It is started again by itself; the pool's picture "
        "comes back within seconds after that.",
        "bad",
    )  # fmt: skip


def _pool(probes: Probes, now_unix_s: float) -> Part:
    sample = probes.pool_sample_unix_s
    answers = _was_heard(probes, sample, POOL_SILENT_AFTER_S, now_unix_s)
    return Part(
        "pool", "pool process", answers,
        sample if sample is not None else probes.observed_since_unix_s,
        "The pool process does not answer",
        "Requests and streams go on; nothing moves by itself, drains wait and nobody starts lost "
        "instances again.",
        "Look at the pool's log in var/log. It is started again by itself and finds its engines.",
        "bad",
    )  # fmt: skip


def _ray(probes: Probes) -> Part:
    return Part(
        "ray", "Ray", probes.ray_answers, probes.ray_since_unix_s,
        "Ray does not answer",
        "Requests and streams go on as long as their engines live; no instance starts.",
        "Look at the log of ray in var/log. It is started again by itself; on one machine its "
        "engines end with it, and start anew.",
        "bad",
    )  # fmt: skip


def _engines(rows: Mapping[str, InstanceRow], desired: int, now_unix_s: float) -> Part:
    lost = [r for r in rows.values() if r.state in FAILING]
    silent = [r for r in rows.values() if r.state == "serving" and is_stale(r, now_unix_s)]
    serving = sum(r.state == "serving" for r in rows.values()) - len(silent)
    failing = len(lost) + len(silent)
    since = min((r.since_unix_s for r in (*lost, *silent)), default=None)
    answers = not failing and (serving > 0 or desired == 0 or bool(rows))
    works = f"{serving} of {max(desired, len(rows))} serve." if serving else "No request is served."
    if not rows and desired:
        answers = False
    headline = (
        f"{failing} of {len(rows)} instances {'fails' if failing == 1 else 'fail'}"
        if rows
        else "No instance yet"
    )
    return Part(
        "engines", "engines", answers, since, headline, works,
        "The pool starts lost instances again by itself; the instance's line says when and why.",
        "bad" if not serving else "warn",
    )  # fmt: skip


def _database(probes: Probes) -> Part:
    return Part(
        "database", "database", probes.database_answers, probes.database_since_unix_s,
        "The database does not answer",
        "Keys that were used lately go on for 15 minutes; other keys, these pages and logins get "
        "503. What is used meanwhile is written afterwards.",
        "See whether DATABASE_URL is right, its server runs and the disk has room.",
        "warn",
    )  # fmt: skip


def _worker(probes: Probes, now_unix_s: float) -> Part:
    seen = [x for x in (probes.worker_alive_unix_s, probes.worker_heartbeat_unix_s) if x]
    last = max(seen, default=None)
    answers = _was_heard(probes, last, WORKER_SILENT_AFTER_S, now_unix_s)
    return Part(
        "worker", "Celery", answers, last if last is not None else probes.observed_since_unix_s,
        "Celery does not answer",
        "Serving goes on; scaling, sums of usage and copied events stand still meanwhile.",
        "Look at the worker's log in var/log. It is started again by itself.",
        "warn",
    )  # fmt: skip


def _beat(probes: Probes, now_unix_s: float) -> Part:
    beat = probes.worker_heartbeat_unix_s
    answers = _was_heard(probes, beat, BEAT_SILENT_AFTER_S, now_unix_s)
    worker_answers = _worker(probes, now_unix_s).answers
    if not answers and (not worker_answers or probes.database_answers is False):
        # Tasks that nobody runs, or that all wait for the database, say nothing of beat.
        answers = None
    return Part(
        "beat", "Celery's beat", answers,
        beat if beat is not None else probes.observed_since_unix_s,
        "Celery's beat gives out no tasks",
        "Serving goes on; scaling, sums of usage and copied events stand still meanwhile.",
        "Look at beat's log in var/log. With `make up` it is started again by itself; elsewhere "
        "start it, and exactly one.",
        "warn",
    )  # fmt: skip


def _was_heard(
    probes: Probes, last_unix_s: float | None, silent_after_s: float, now_unix_s: float
) -> bool | None:
    """Says whether a part's sign of life is new enough; None while that is not known: without the
    store, or shortly after this process, or the store's memory, has begun."""
    if not probes.store_answers:
        return None
    if last_unix_s is not None:
        return now_unix_s - last_unix_s < silent_after_s
    began_unix_s = max(probes.observed_since_unix_s, probes.store_since_unix_s)
    return None if now_unix_s - began_unix_s < silent_after_s else False
