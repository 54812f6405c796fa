"""The running side of the observer: its loops, its way to store and database."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import redis
from django.db import connection

from controlplane.fleet import charts
from controlplane.fleet.choice import served_pool
from controlplane.fleet.latency import LatencyWindow, read_buckets
from controlplane.fleet.observer import LOOK_EVERY_S, Observer
from controlplane.fleet.rebalancing_metrics import RebalancerCollector
from controlplane.gateway.metrics import TTFT_S
from controlplane.gateway.records import records_wait
from engine_pool import view
from engine_pool.client import PoolClient, pool_client, served_clients
from engine_pool.questions import Question
from engine_pool.rebalancing_facts import RebalancingFacts, read_facts
from engine_pool.served_model import DEFAULT_MODEL
from engine_pool.task_end import end_tasks
from engine_pool.types import FleetSample

logger = logging.getLogger(__name__)

PROBE_EVERY_S: Final = 2.0
PROBE_TIMEOUT_S: Final = 2.0
DATABASE_TIMEOUT_S: Final = 4.0
"""A connection and a query take milliseconds, and seconds where every core is busy."""
MISSES_MAX: Final = 2
"""So many questions in a row without an answer: it is away."""
SEED_TRIES: Final = 6
"""Looks, half a second apart, for which the past waits until the first instances are known."""
WORKER_HEARTBEAT_KEY: Final = "ferry:worker-heartbeat"
WORKER_ALIVE_KEY: Final = "ferry:worker-alive"


class Watch:
    """One a pool and web process; started and stopped with it."""

    def __init__(self, client: PoolClient, observer: Observer) -> None:
        self.observer = observer
        self.client = client
        self._store = client.store
        self._tasks: list[asyncio.Task[None]] = []
        self._misses = 0
        """Questions to the database in a row that had no answer."""

    @property
    def pool(self) -> str:
        return self.client.config.pool

    @property
    def model(self) -> str:
        """The name by which clients ask for the pool's model."""
        config = self.client.config
        return config.served_model_name or Path(config.model).name or DEFAULT_MODEL

    def start(self) -> None:
        """Begins in the running event loop. Does nothing when it runs already."""
        if not self._tasks or any(task.done() for task in self._tasks):
            self._tasks = [
                asyncio.create_task(self._look_on(), name="fleet observer"),
                asyncio.create_task(self._probe_on(), name="fleet probes"),
            ]

    def end(self) -> None:
        """Ends both loops, soon."""
        for task in self._tasks:
            task.cancel()

    async def stop(self) -> None:
        """Ends both loops."""
        await end_tasks(self._tasks)
        self._tasks = []

    async def history(self, since_unix_s: float) -> list[FleetSample]:
        """Returns the pool's samples since a time; none when the store does not answer."""
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                return await view.read_samples(self._store, since_unix_s, self.client.config.keys)
        except (redis.RedisError, OSError, TimeoutError) as error:
            logger.warning("no samples: %s", error or type(error).__name__)
            return []

    async def _look_on(self) -> None:
        await self._seed()
        while True:
            config = self.client.config
            self.observer.use(desired=config.instances, policy=config.policy)
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
        # A database that hangs must not make the others look old.
        await asyncio.gather(self._look_at_database(), self._look_at_the_others())

    async def _look_at_database(self) -> None:
        # One late answer is a busy machine's; pages are refused for none.
        self._misses = 0 if await database_question.answered() else self._misses + 1
        reads = self._misses < MISSES_MAX
        probes = self.observer.probes
        # One that reads and takes no rows is no better for whoever must write.
        database = reads and not records_wait()
        if database != probes.database_answers:
            probes = replace(probes, database_answers=database, database_since_unix_s=time.time())
        self.observer.probes = replace(probes, database_reads=reads)

    async def _look_at_the_others(self) -> None:
        ray = None if self.client.ray is None else self.client.ray.answers
        if ray != self.observer.probes.ray_answers:
            self.observer.probes = replace(
                self.observer.probes, ray_answers=ray, ray_since_unix_s=time.time()
            )
        with contextlib.suppress(redis.RedisError, OSError, TimeoutError):
            await self._look_for_signs_of_life()
            await self._look_at_rebalancing()

    async def _look_for_signs_of_life(self) -> None:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            newest = await self._store.xrevrange(self.client.config.keys.samples, count=1)
            beat = await self._store.get(WORKER_HEARTBEAT_KEY)
            alive = await self._store.get(WORKER_ALIVE_KEY)
        self.observer.probes = replace(
            self.observer.probes,
            pool_sample_unix_s=view.decode_sample(newest[0][1][b"s"]).at_unix_s if newest else None,
            worker_heartbeat_unix_s=_time_of(WORKER_HEARTBEAT_KEY, beat),
            worker_alive_unix_s=_time_of(WORKER_ALIVE_KEY, alive),
        )

    async def _look_at_rebalancing(self) -> None:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            try:
                self.observer.rebalancing = await read_facts(self._store, self.client.config.keys)
            except ValueError as error:
                logger.error("what the store says of rebalancing cannot be read: %s", error)


def _time_of(key: str, text: bytes | str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        logger.error("%s is no time: %r", key, text[:40] if text else text)
        return None


def _ask_database() -> bool:
    try:
        with connection.cursor() as cursor:
            # A table of ours: SQLite makes an empty file of one that was removed, without a word.
            cursor.execute("SELECT 1 FROM django_migrations LIMIT 1")
            return bool(cursor.fetchone() == (1,))
    finally:
        # Its thread ends with the question.
        connection.close()


database_question: Final = Question("database probe", _ask_database, DATABASE_TIMEOUT_S)
"""This process's, for all of its pools."""


_watches: dict[str, Watch] = {}


def fleet_watch(pool: str = "") -> Watch:
    """Returns this process's watch on a pool: of this name, else the chosen one (choice.py).

    Raises: NotVisible when it is not served; ConfigError.
    """
    client = served_pool(pool) or pool_client()
    known = _watches.get(client.config.pool)
    if known is None or known.client is not client:
        known = _watches[client.config.pool] = _watch_on(client)
    return known


def all_watches() -> list[Watch]:
    """Returns the watches on all pools, the default one first."""
    return [fleet_watch(c.config.pool) for c in served_clients()] or [fleet_watch()]


def degraded(clients: Sequence[PoolClient]) -> dict[str, bool]:
    """Returns of each part that these pools need whether it does not answer now, as this process
    sees it; empty before anything watches."""
    found: dict[str, bool] = {}
    for watch in [w for w in list(_watches.values()) if w.client in clients]:
        for part in watch.observer.look().parts:
            found[part.key] = found.get(part.key, False) or part.answers is False
    return found


def database_is_away() -> bool:
    """Says whether the database was asked lately and did not answer."""
    return any(watch.observer.probes.database_reads is False for watch in list(_watches.values()))


def watches_start() -> None:
    """Begins to watch the pools that are there and ends watching those that are gone. In the event
    loop; to be called again when pools have come or gone."""
    wanted = all_watches()
    for watch in wanted:
        watch.start()
    for name, watch in list(_watches.items()):
        if watch not in wanted:
            del _watches[name]
            watch.end()


async def watches_stop() -> None:
    """Ends all watching."""
    for watch in list(_watches.values()):
        await watch.stop()


def _watch_on(client: PoolClient) -> Watch:
    config, model = client.config, {"model_name": ""}
    ttft = LatencyWindow(lambda: read_buckets(TTFT_S, model))
    observer = Observer(
        client.view,
        desired=config.instances,
        policy=config.policy,
        latency=ttft.latency,
        at_gateway=lambda: len(client.dispatcher.queue),
        held=lambda: len(client.dispatcher.holding),
    )
    watch = Watch(client, observer)
    model["model_name"] = watch.model
    return watch


def _rebalancing_facts() -> dict[str, RebalancingFacts]:
    return {name: watch.observer.rebalancing for name, watch in list(_watches.items())}


RebalancerCollector(_rebalancing_facts, time.time)
