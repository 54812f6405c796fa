"""What the pool's rebalancer says about itself, and what operators tell it, in the store.

| key | type | holds |
|---|---|---|
| ferry:rebalancing | hash | `pause` -> Pause, `report` -> RebalancerReport, both as JSON |

The pause is the operators': it outlives every process and ends by itself. The report is the pool
process's; old ones are recognised by their time.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import msgspec
import redis.asyncio

from engine_pool.pool_keys import FIRST, PoolKeys

FACTS: Final = FIRST.rebalancing
"""Of the environment's own pool."""
_PAUSE: Final = "pause"
_REPORT: Final = "report"


class RebalancerState(StrEnum):
    """What the rebalancer does. Why is RebalancerReport.why."""

    ON = "on"
    PAUSED = "paused"
    """By an operator."""
    OFF = "off"
    """By a setting."""
    FORBIDDEN = "forbidden"
    """No request may move: the self-test failed, has not run yet, or moves are switched off."""


@dataclass(frozen=True, slots=True)
class Pause:
    """No automatic moves; drains and operators' own moves go on."""

    by: str
    since_unix_s: float
    until_unix_s: float | None
    """None: until somebody resumes it."""
    reason: str = ""

    def holds(self, now_unix_s: float) -> bool:
        return self.until_unix_s is None or now_unix_s < self.until_unix_s


@dataclass(frozen=True, slots=True)
class PairFact:
    """A pair of the last round."""

    source: str
    destination: str
    reason: str
    why_idle: str = ""
    """Why it starts no (further) move now."""


@dataclass(frozen=True, slots=True)
class RebalancerReport:
    """What the rebalancer did last; written on change, and at least every few seconds."""

    at_unix_s: float
    state: RebalancerState
    why: str
    """Why it is not on, or why nothing is paired, in words; empty when there is nothing to say."""
    below_steps: float
    above_steps: float
    interval_ms: float
    moves_per_instance: int
    tokens_per_round: int
    last_round_unix_s: float | None = None
    """None: there was none since the pool process's start."""
    round_ms: float | None = None
    """How long the last round took to decide."""
    pairs: tuple[PairFact, ...] = ()
    pairs_total: int = 0
    """Of which `pairs` are the first."""
    rounds_total: int = 0
    """Since the pool process's start, like all totals."""
    started_total: int = 0
    refused_total: dict[str, int] = field(default_factory=dict)
    """By code (MoveReport.abort_code): asked for and not begun, or aborted."""
    minutes: float = 5.0
    """The window of the next two."""
    started_lately: int = 0
    refused_lately: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RebalancingFacts:
    """Both of what the store holds."""

    pause: Pause | None = None
    """Also one that is over: `holds` says so."""
    report: RebalancerReport | None = None
    """None: the pool process has not said anything yet."""


async def read_facts(
    store: "redis.asyncio.Redis[bytes]", keys: PoolKeys = FIRST
) -> RebalancingFacts:
    """Raises: redis.RedisError; ValueError for what another version wrote."""
    found: dict[bytes, bytes] = await store.hgetall(keys.rebalancing)
    pause, report = found.get(_PAUSE.encode()), found.get(_REPORT.encode())
    return RebalancingFacts(
        None if pause is None else msgspec.json.decode(pause, type=Pause),
        None if report is None else msgspec.json.decode(report, type=RebalancerReport),
    )


async def read_pause(store: "redis.asyncio.Redis[bytes]", keys: PoolKeys = FIRST) -> Pause | None:
    """Raises: redis.RedisError; ValueError for what another version wrote."""
    found: bytes | None = await store.hget(keys.rebalancing, _PAUSE)
    return None if found is None else msgspec.json.decode(found, type=Pause)


async def write_pause(
    store: "redis.asyncio.Redis[bytes]", pause: Pause | None, keys: PoolKeys = FIRST
) -> None:
    """Pauses rebalancing, or resumes it (None). Raises: redis.RedisError."""
    if pause is None:
        await store.hdel(keys.rebalancing, _PAUSE)
    else:
        await store.hset(keys.rebalancing, _PAUSE, msgspec.json.encode(pause))


async def write_report(
    store: "redis.asyncio.Redis[bytes]", report: RebalancerReport, keys: PoolKeys = FIRST
) -> None:
    """Keeps what was done last. Raises: redis.RedisError."""
    await store.hset(keys.rebalancing, _REPORT, msgspec.json.encode(report))
