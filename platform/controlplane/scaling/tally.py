"""What the loop tells the web processes for Prometheus, in the store.

| key | type | holds |
|---|---|---|
| ferry:scaling:reports | hash | pool -> Report of its last check, as JSON |
| ferry:scaling:counts | hash | `pool|direction|reason` -> rows so far |

Counts begin anew when the store loses its memory, as counters may.
"""

import logging
from dataclasses import dataclass
from typing import Final

import msgspec
import redis
import redis.asyncio

logger = logging.getLogger(__name__)

REPORTS: Final = "ferry:scaling:reports"
COUNTS: Final = "ferry:scaling:counts"


@dataclass(frozen=True, slots=True)
class Report:
    """A pool as its last check left it."""

    mode: str
    checked_unix_s: float
    wanted: int
    """Instances that are wanted to serve."""
    serving: int
    starting: int
    silent: int
    min_instances: int
    max_instances: int
    average_steps: float | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """A check, for the counts."""

    pool: str
    mode: str
    kind: str
    """Of its row; empty: it had none."""
    reason: str
    """What forbade it, else what it followed."""
    report: Report


@dataclass(frozen=True, slots=True)
class Tally:
    reports: dict[str, Report]
    counts: dict[tuple[str, str, str], int]
    """By pool, direction and reason."""


def tell(store: "redis.Redis[bytes]", told: Told) -> None:
    """Tells of a check that has been committed; what cannot be told is lost, and harms nobody."""
    try:
        pipe = store.pipeline(transaction=False)
        pipe.hset(REPORTS, told.pool, msgspec.json.encode(told.report))
        if told.kind and told.kind != "heartbeat":
            pipe.hincrby(COUNTS, f"{told.pool}|{told.kind}|{told.reason}", 1)
        pipe.execute()
    except (redis.RedisError, OSError) as error:
        logger.warning("%s: the check is not counted: %s", told.pool, type(error).__name__)


async def read(store: "redis.asyncio.Redis[bytes]") -> Tally:
    """Raises: redis.RedisError; ValueError for what another version wrote."""
    pipe = store.pipeline(transaction=False)
    pipe.hgetall(REPORTS)
    pipe.hgetall(COUNTS)
    reports, counts = await pipe.execute()
    found: dict[tuple[str, str, str], int] = {}
    for name, count in counts.items():
        pool, kind, reason = name.decode().split("|")
        found[pool, kind, reason] = int(count)
    try:
        decoded = {n.decode(): msgspec.json.decode(v, type=Report) for n, v in reports.items()}
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
    return Tally(decoded, found)


def forget(store: "redis.Redis[bytes]", pool: str) -> None:
    """Removes what is told of a pool that is not checked any more. Raises: redis.RedisError."""
    store.hdel(REPORTS, pool)
