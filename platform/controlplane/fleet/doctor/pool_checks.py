"""The doctor's checks behind the web process: store, database, Ray, engines, worker."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar

import redis.asyncio
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor

from controlplane.fleet.doctor.report import Check, Problem
from controlplane.fleet.parts import POOL_SILENT_AFTER_S, WORKER_SILENT_AFTER_S
from controlplane.fleet.watch import WORKER_ALIVE_KEY, WORKER_HEARTBEAT_KEY
from engine_pool import ray_probe
from engine_pool.config import PoolConfig
from engine_pool.pool_spec import pool_config, read_wanted
from engine_pool.types import InstanceLoad, InstanceName, InstanceState, InstanceStatus
from engine_pool.view import read_samples, read_view

T = TypeVar("T")

STORE_TIMEOUT_S: Final = 5.0
RAY_TIMEOUT_S: Final = 30.0
"""Joining a cluster takes a few seconds on a busy machine."""
STALE_AFTER_S: Final = 5.0
"""Engines report at least every 100 ms; the pages grey a number out after this long."""
NO_PROGRESS_AFTER_S: Final = 30.0
"""Requests run and no token came for this long: longer than any prefill that fits a model."""
STARTING_PATIENCE_S: Final = 20.0
"""How long what is still starting may take before it counts as a fault: a second engine on the same
cores, the worker's imports."""
STARTING_POLL_S: Final = 0.5
_SEE_LOG = "look at var/log/{}.log"


class PoolChecks:
    """Checks that look at the installation from inside. Call `close` at the end."""

    def __init__(self, config: PoolConfig) -> None:
        self._config = config
        self._store: redis.asyncio.Redis[bytes] = redis.asyncio.Redis.from_url(
            config.redis_url,
            socket_timeout=STORE_TIMEOUT_S,
            socket_connect_timeout=STORE_TIMEOUT_S,
        )
        self._statuses: dict[InstanceName, InstanceStatus] = {}
        self._loads: dict[InstanceName, InstanceLoad] = {}

    async def close(self) -> None:
        await self._store.aclose()
        await asyncio.to_thread(ray_probe.leave)

    def checks(self) -> list[Check]:
        return [
            Check("store", self.store, timeout_s=2 * STORE_TIMEOUT_S),
            Check("database", self.database, timeout_s=2 * STORE_TIMEOUT_S),
            Check("ray", self.ray, timeout_s=RAY_TIMEOUT_S),
            Check("pool", self.pool, needs=("store",)),
            Check(
                "engines",
                self.engines,
                needs=("store", "ray"),
                timeout_s=STARTING_PATIENCE_S + RAY_TIMEOUT_S,
            ),
            Check(
                "worker",
                self.worker,
                needs=("store",),
                timeout_s=STARTING_PATIENCE_S + 2 * STORE_TIMEOUT_S,
            ),
        ]

    async def store(self) -> str:
        began_s = time.perf_counter()
        try:
            await self._store.ping()
            information = await self._store.info()
        except (redis.RedisError, OSError) as error:
            raise Problem(
                f"the store does not answer ({type(error).__name__})",
                "is the installation running (make up)? " + _SEE_LOG.format("store"),
            ) from None
        kind = "Valkey" if "valkey_version" in information else "Redis"
        version = information.get("valkey_version", information.get("redis_version"))
        ping_ms = (time.perf_counter() - began_s) * 1000
        used_mib = int(information.get("used_memory", 0)) / 1024**2
        return f"{kind} {version}, {used_mib:.0f} MiB used, answers in {ping_ms:.1f} ms"

    async def database(self) -> str:
        try:
            missing = await asyncio.to_thread(_missing_migrations)
        except DatabaseError as error:
            raise Problem(
                f"the database does not answer ({type(error).__name__})",
                "check DATABASE_URL and the free space of the disk",
            ) from None
        if missing:
            raise Problem(
                f"{len(missing)} schema migrations are missing, first {missing[0]}",
                "run: python manage.py migrate",
            )
        return f"{connection.vendor}, all schema migrations applied"

    async def ray(self) -> str:
        try:
            nodes = await _in_thread(ray_probe.count_nodes, self._config.ray_address)
        # Ray raises ConnectionError, RuntimeError and its own kinds when no head answers.
        except Exception as error:  # noqa: BLE001
            raise Problem(
                f"Ray does not answer at {self._config.ray_address} ({type(error).__name__})",
                "is the installation running (make up)? " + _SEE_LOG.format("ray"),
            ) from None
        if not nodes:
            raise Problem("Ray has no living node", _SEE_LOG.format("ray"))
        return f"{nodes} node{'s' if nodes != 1 else ''} alive"

    async def pool(self) -> str:
        found = []
        for config in await self._pools():
            now_unix_s = time.time()
            since_unix_s = now_unix_s - POOL_SILENT_AFTER_S
            samples = await read_samples(self._store, since_unix_s, config.keys)
            if not samples:
                raise Problem(
                    f"the pool process has not written a sample of pool {config.pool} for"
                    f" {POOL_SILENT_AFTER_S:.0f} s",
                    _SEE_LOG.format("pool"),
                )
            found.append(f"{config.pool}: sample {now_unix_s - samples[-1].at_unix_s:.1f} s old")
        return "; ".join(found) or "no pool is switched on"

    async def engines(self) -> str:
        found: list[str] = []
        problems: list[str] = []
        # Each pool may take its time to start.
        async with asyncio.TaskGroup() as tasks:
            for config in await self._pools():
                tasks.create_task(self._engines_of(config, found, problems))
        if problems:
            raise Problem("; ".join(sorted(problems)), _SEE_LOG.format("pool"))
        return "; ".join(sorted(found)) or "no pool is switched on"

    async def _engines_of(self, config: PoolConfig, found: list[str], problems: list[str]) -> None:
        """Adds what was found of one pool, or what is wrong with it."""
        statuses, loads = await self._when_started(config)
        by_name = {load.instance: load for load in loads}
        if config.instances and not statuses:
            problems.append(f"no engine instance of pool {config.pool} is known")
        before = len(problems)
        for status in statuses:
            why = engine_problem(status, by_name.get(status.instance), time.time())
            if not why and status.state is InstanceState.SERVING:
                silence = await _in_thread(ray_probe.ping_engine, status.actor)
                why = f"does not answer Ray calls ({silence})" if silence else None
            if why:
                problems.append(f"{status.instance} {why}")
        if len(problems) == before:
            serving = sum(status.state is InstanceState.SERVING for status in statuses)
            found.append(
                f"{config.pool}: {serving} of {len(statuses)} serve, all report and answer"
            )

    async def _pools(self) -> list[PoolConfig]:
        """Returns the settings of all pools that are switched on: those that are published, else
        the environment's. Raises: Problem."""
        try:
            wanted = await read_wanted(self._store)
            if wanted is None:
                return [self._config]
            return [pool_config(self._config, spec, wanted) for spec in wanted.enabled()]
        except ValueError as error:
            raise Problem(
                f"the wanted pools cannot be read: {error}",
                "restart the worker: it publishes them again",
            ) from None

    async def _when_started(
        self, config: PoolConfig
    ) -> tuple[tuple[InstanceStatus, ...], tuple[InstanceLoad, ...]]:
        """Returns the view once no instance is starting any more, or as it is after a while.

        The first instance answers chats before the last one is there, and the worker starts last;
        that is no fault, unless it stays so.
        """
        give_up_s = time.monotonic() + STARTING_PATIENCE_S
        while True:
            statuses, loads = await read_view(self._store, config.keys)
            is_starting = any(s.state is InstanceState.STARTING for s in statuses)
            if not is_starting or time.monotonic() >= give_up_s:
                return statuses, loads
            await asyncio.sleep(STARTING_POLL_S)

    async def worker(self) -> str:
        give_up_s = time.monotonic() + STARTING_PATIENCE_S
        while True:
            beat_age_s = await self._age_s(WORKER_HEARTBEAT_KEY)
            is_new = beat_age_s is not None and beat_age_s <= WORKER_SILENT_AFTER_S
            if is_new or time.monotonic() >= give_up_s:
                break
            await asyncio.sleep(STARTING_POLL_S)
        if is_new:
            return f"heartbeat {beat_age_s:.1f} s old"
        alive_age_s = await self._age_s(WORKER_ALIVE_KEY)
        if alive_age_s is not None and alive_age_s <= WORKER_SILENT_AFTER_S:
            raise Problem(
                "a Celery worker lives, but gets no tasks or cannot finish them",
                "is beat running? " + _SEE_LOG.format("worker"),
            )
        seen = "was never seen" if beat_age_s is None else f"was last seen {beat_age_s:.0f} s ago"
        raise Problem(f"the Celery worker {seen}", _SEE_LOG.format("worker"))

    async def _age_s(self, key: str) -> float | None:
        """Returns how long ago a sign of life was written; None: never."""
        text = await self._store.get(key)
        return time.time() - float(text) if text else None


def engine_problem(
    status: InstanceStatus, load: InstanceLoad | None, now_unix_s: float
) -> str | None:
    """Returns what is wrong with an instance, in words that follow its name; None: nothing."""
    if status.state is InstanceState.LOST:
        return f"is lost: {status.cause}"
    if status.state is InstanceState.STARTING:
        return f"is still starting: {status.cause}"
    if status.state is not InstanceState.SERVING:
        return None
    if load is None or load.incarnation != status.incarnation:
        return "serves, but has sent no report"
    age_s = now_unix_s - load.at_unix_s
    if age_s > STALE_AFTER_S:
        return f"sent its last report {age_s:.0f} s ago"
    last_unix_s = load.last_token_unix_s
    if load.running and last_unix_s and now_unix_s - last_unix_s > NO_PROGRESS_AFTER_S:
        silent_s = now_unix_s - last_unix_s
        return f"runs {len(load.running)} requests, without a token for {silent_s:.0f} s"
    return None


async def _in_thread(work: Callable[[str], T], argument: str) -> T:
    """Runs blocking work in a thread that nobody waits for at the end: Ray cannot be interrupted.

    `asyncio.to_thread` would hold up the program's end until the work is done.
    """
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work(argument))
        # Whatever it is, the caller gets it.
        except Exception as error:  # noqa: BLE001
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return await asyncio.wrap_future(done)


def _missing_migrations() -> list[str]:
    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    connection.close()
    return [f"{migration.app_label}.{migration.name}" for migration, _ in plan]
