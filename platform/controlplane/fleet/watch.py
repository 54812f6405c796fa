"""The running side of the observer: its loops, its way to store and database."""

import asyncio
import contextlib
import functools
import logging
import time
from pathlib import Path
from typing import Final

import redis
import redis.asyncio
from django.db import DatabaseError, close_old_connections, connection

from controlplane.fleet import charts, parts
from controlplane.fleet.latency import LatencyWindow, read_buckets
from controlplane.fleet.observer import LOOK_EVERY_S, Observer
from controlplane.fleet.rebalancing_metrics import RebalancerCollector
from controlplane.gateway.metrics import TTFT_S
from engine_pool import view
from engine_pool.client import pool_client
from engine_pool.rebalancing_facts import read_facts
from engine_pool.served_model import DEFAULT_MODEL
from engine_pool.types import FleetSample

logger = logging.getLogger(__name__)

PROBE_EVERY_S: Final = 2.0
PROBE_TIMEOUT_S: Final = 2.0
SEED_TRIES: Final = 6
"""Looks, half a second apart, for which the past waits until the first instances are known."""
WORKER_HEARTBEAT_KEY: Final = "ferry:worker-heartbeat"


class Watch:
    """One a web process; started and stopped with it."""

    def __init__(
        self, observer: Observer, store: "redis.asyncio.Redis[bytes]", *, pool: str, model: str
    ) -> None:
        self.observer = observer
        self.pool = pool
        self.model = model
        """The name by which clients ask for the pool's model."""
        self._store = store
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begins in the running event loop. Does nothing when it runs already."""
        if not self._tasks or any(task.done() for task in self._tasks):
            self._tasks = [
                asyncio.create_task(self._look_on(), name="fleet observer"),
                asyncio.create_task(self._probe_on(), name="fleet probes"),
            ]

    async def stop(self) -> None:
        """Ends both loops."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def history(self, since_unix_s: float) -> list[FleetSample]:
        """Returns the pool's samples since a time; none when the store does not answer."""
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                return await view.read_samples(self._store, since_unix_s)
        except (redis.RedisError, OSError, TimeoutError) as error:
            logger.warning("no samples: %s", error or type(error).__name__)
            return []

    async def _look_on(self) -> None:
        await self._seed()
        while True:
            self.observer.remember()
            await asyncio.sleep(LOOK_EVERY_S)

    async def _seed(self) -> None:
        for _ in range(SEED_TRIES):
            # Without the instances' capacities there is no share of used memory.
            if self.observer.look().rows:
                break
            await asyncio.sleep(LOOK_EVERY_S)
        self.observer.seed(await self.history(time.time() - charts.HISTORY_S))

    async def _probe_on(self) -> None:
        while True:
            await self.probe()
            await asyncio.sleep(PROBE_EVERY_S)

    async def probe(self) -> None:
        """Asks the database, and the store for the signs of life of pool and worker."""
        known = self.observer.probes
        database = await self._database_answers()
        sample, beat = known.pool_sample_unix_s, known.worker_heartbeat_unix_s
        with contextlib.suppress(redis.RedisError, OSError, TimeoutError):
            sample, beat = await self._signs_of_life()
            await self._look_at_rebalancing()
        changed = database != known.database_answers
        self.observer.probes = parts.Probes(
            store_answers=known.store_answers,
            store_since_unix_s=known.store_since_unix_s,
            database_answers=database,
            database_since_unix_s=time.time() if changed else known.database_since_unix_s,
            pool_sample_unix_s=sample,
            worker_heartbeat_unix_s=beat,
            observed_since_unix_s=known.observed_since_unix_s,
        )

    async def _signs_of_life(self) -> tuple[float | None, float | None]:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            newest = await self._store.xrevrange(view.SAMPLES, count=1)
            beat = await self._store.get(WORKER_HEARTBEAT_KEY)
        sample = view.decode_sample(newest[0][1][b"s"]).at_unix_s if newest else None
        try:
            return sample, None if beat is None else float(beat)
        except ValueError:
            logger.error("%s is no time: %r", WORKER_HEARTBEAT_KEY, beat[:40])
            return sample, None

    async def _look_at_rebalancing(self) -> None:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            try:
                self.observer.rebalancing = await read_facts(self._store)
            except ValueError as error:
                logger.error("what the store says of rebalancing cannot be read: %s", error)

    async def _database_answers(self) -> bool:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                return await asyncio.to_thread(_ask_database)
        except (DatabaseError, OSError, TimeoutError):
            return False


def _ask_database() -> bool:
    # A thread of its own keeps its connection; one that went bad must not be asked again.
    close_old_connections()
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        return cursor.fetchone() == (1,)


@functools.cache
def fleet_watch() -> Watch:
    """Returns this process's watch on its pool. Raises: ConfigError."""
    client = pool_client()
    config = client.config
    model = config.served_model_name or Path(config.model).name or DEFAULT_MODEL
    ttft = LatencyWindow(lambda: read_buckets(TTFT_S))
    observer = Observer(
        client.view,
        desired=config.instances,
        policy=config.policy,
        latency=ttft.latency,
        at_gateway=lambda: len(client.dispatcher.queue),
    )
    RebalancerCollector(lambda: observer.rebalancing, time.time)
    return Watch(observer, client.store, pool=config.pool, model=model)
