"""Runs the pre-flight: gathers what the pool knows, measures ways one after another, keeps the
result.

Measuring goes through the pool client of this process, the web server's or the command's: only it
has a way to the engine actors, and a worker that had one too would join Ray for this alone.
"""

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import redis
import redis.asyncio
from asgiref.sync import async_to_sync

from controlplane.fleet.choice import served_pool
from controlplane.fleet.preflight import LENGTHS, judge, pairs_of
from controlplane.fleet.preflight_values import Found, Pair, PairWay, PreflightReport
from engine_pool.client import PoolClient, pool_client
from engine_pool.config import PoolConfig
from engine_pool.errors import InstanceLost, MoveRefused, PoolError, StoreUnavailable
from engine_pool.move_facts import MoveFacts, read_move_facts
from engine_pool.pool_keys import FIRST, PoolKeys
from engine_pool.types import EngineKind, InstanceState
from migration.stages import StageLimits

logger = logging.getLogger(__name__)

KEPT: Final = FIRST.preflight
"""Store key of the first pool: the last result, as JSON. It is about engines that live, and goes
with the store."""
RUNNING: Final = FIRST.preflight_running
"""The same: held while a run measures; two at once would measure each other."""
RUN_TIMEOUT_S: Final = 60.0
"""Of all measuring together: 12 pairs that answer take 2 s; one that does not takes 10."""
STORE_TIMEOUT_S: Final = 5.0


class PreflightRunning(PoolError):
    """Somebody else measures now."""

    code = "preflight_running"


@dataclass(frozen=True, slots=True)
class _Measured:
    ways: tuple[PairWay, ...]
    left_out: tuple[Pair, ...]


def preflight_get() -> PreflightReport | None:
    """Returns the last run's result, for pages and API; None: none. Raises: StoreUnavailable."""
    return async_to_sync(preflight_last)(_client().store, _client().config.keys)


def _client() -> PoolClient:
    return served_pool() or pool_client()


def preflight_measure(lengths: Sequence[int] = LENGTHS) -> PreflightReport:
    """Runs it anew, for pages and API; see `preflight_run`."""
    return async_to_sync(preflight_run)(_client(), lengths)


async def preflight_run(client: PoolClient, lengths: Sequence[int] = LENGTHS) -> PreflightReport:
    """Measures and judges, keeps the result and returns it; takes up to RUN_TIMEOUT_S.

    `lengths`: tokens, each at least 1. Raises: StoreUnavailable, PreflightRunning.
    """
    token = uuid.uuid4().hex
    async with _answering():
        is_ours = await client.store.set(
            client.config.keys.preflight_running, token, nx=True, ex=int(2 * RUN_TIMEOUT_S)
        )
    if not is_ours:
        raise PreflightRunning("A pre-flight is measuring now; ask for its result in a moment.")
    try:
        report = judge(await _find(client), lengths)
        async with _answering():
            await client.store.set(client.config.keys.preflight, msgspec.json.encode(report))
    finally:
        await _let_go(client.store, token, client.config.keys)
    return report


async def preflight_last(
    store: "redis.asyncio.Redis[bytes]", keys: PoolKeys = FIRST
) -> PreflightReport | None:
    """Returns the last run's result; None when there was none, or another version wrote it.

    Raises: StoreUnavailable.
    """
    async with _answering():
        kept = await store.get(keys.preflight)
    if kept is None:
        return None
    try:
        return msgspec.json.decode(kept, type=PreflightReport)
    except ValueError as error:
        logger.warning("the last pre-flight cannot be read: %s", error)
        return None


async def _facts(store: "redis.asyncio.Redis[bytes]", keys: PoolKeys) -> MoveFacts:
    async with _answering():
        try:
            return await read_move_facts(store, keys)
        except ValueError as error:
            logger.error("what the pool says about moves cannot be read: %s", error)
            return MoveFacts()


async def _find(client: PoolClient) -> Found:
    view, config = client.view, client.config
    facts = await _facts(client.store, config.keys)
    serving = sorted(s.instance for s in view.statuses.values() if s.state is InstanceState.SERVING)
    measured = await _measure(client, serving)
    steps = [load.step_ms for n in serving if (load := view.loads.get(n)) and load.step_ms]
    return Found(
        at_unix_s=time.time(),
        serving=tuple(serving),
        is_switched_on=config.migration,
        allowed=facts.allowed,
        why=facts.why,
        self_test=facts.self_test,
        shapes={n: facts.shapes[n] for n in serving if n in facts.shapes},
        ways=measured.ways,
        left_out=measured.left_out,
        step_ms=max(steps, default=None),
        max_model_len=view.max_model_len,
        limits=StageLimits(config.migration_copies_max, config.migration_last_blocks),
        copy_share=_copy_share(config),
        at_once=config.migrations_at_once,
    )


def _copy_share(config: PoolConfig) -> float:
    # A simulated engine copies nothing that would take the processor from its decoding.
    is_simulated = config.engine is EngineKind.SIMULATED
    return 1.0 if is_simulated else config.migration_copy_share


async def _measure(client: PoolClient, serving: Sequence[str]) -> _Measured:
    chosen, left_out = pairs_of(serving)
    end_s = time.monotonic() + RUN_TIMEOUT_S
    ways: list[PairWay] = []
    for index, pair in enumerate(chosen):
        if time.monotonic() >= end_s:
            left_out = chosen[index:] + left_out
            break
        ways.append(await _measure_pair(client, pair))
    return _Measured(tuple(ways), tuple(left_out))


async def _measure_pair(client: PoolClient, pair: Pair) -> PairWay:
    try:
        way = await client.moves.measure(pair.source, pair.destination)
    except (MoveRefused, InstanceLost) as error:
        return PairWay(pair.source, pair.destination, None, None, str(error))
    return PairWay(pair.source, pair.destination, way.bytes_per_s, way.round_trip_ms)


async def _let_go(store: "redis.asyncio.Redis[bytes]", token: str, keys: PoolKeys) -> None:
    try:
        async with _answering():
            if await store.get(keys.preflight_running) == token.encode():
                await store.delete(keys.preflight_running)
    except StoreUnavailable:
        logger.warning("%s goes by itself, the store does not answer", keys.preflight_running)


@contextlib.asynccontextmanager
async def _answering() -> AsyncIterator[None]:
    """Bounds calls to the store. Raises: StoreUnavailable."""
    try:
        async with asyncio.timeout(STORE_TIMEOUT_S):
            yield
    except (redis.RedisError, OSError, TimeoutError) as error:
        raise StoreUnavailable(f"The store does not answer: {type(error).__name__}.") from error
