"""The pools of an installation, in the pool process: starts and ends one Scheduler each, as wanted.

What is wanted is published in the store (pool_spec.py); until something is, it is the environment's
pool. A pool that cannot work says so in its state and events, is tried again, and disturbs nobody.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

import redis

from engine_pool.board import Board
from engine_pool.config import PoolConfig
from engine_pool.engine_spec import installation_of
from engine_pool.errors import ConfigError
from engine_pool.launcher import Launcher, find_engines
from engine_pool.orphans import Orphans
from engine_pool.pool_spec import (
    LOOK_EVERY_S,
    PoolCondition,
    PoolSpec,
    PoolState,
    Wanted,
    pool_config,
    read_wanted,
    write_states,
)
from engine_pool.scheduler import Scheduler
from engine_pool.served_model import ServedModel, longest_context_tokens, resolve_model, sample_text
from engine_pool.store import connect, connect_async
from engine_pool.task_end import end_tasks
from engine_pool.types import EngineKind

log = logging.getLogger(__name__)

FIRST_LOOKS: Final = 20
"""Looks in which the store, which starts beside this process, should have answered: 10 s."""
TRY_AGAIN_S: Final = 10.0
"""Before a pool that could not work is tried again: its model may have come."""
TELL_EVERY_S: Final = 2.0
"""How old a pool's state in the store may be."""


class RunningPool:
    """One pool with its task; `problem` says why it does not run."""

    def __init__(self, config: PoolConfig, neighbours: "PoolSet") -> None:
        self.config = config
        self.scheduler: Scheduler | None = None
        self.problem = ""
        self._task: asyncio.Task[None] | None = None
        self._neighbours = neighbours
        self._try_at_s = 0.0
        self._told_problem = ""

    @property
    def needs_start(self) -> bool:
        is_over = self._task is None or self._task.done()
        return is_over and time.monotonic() >= self._try_at_s

    async def start(self) -> None:
        """Begins to keep the pool's instances; notes the problem when that cannot be."""
        self._try_at_s = time.monotonic() + TRY_AGAIN_S
        if self._task is not None:
            await self._end_broken()
        board = Board(self.config.redis_url, keys=self.config.keys)
        try:
            model, launcher = await asyncio.to_thread(prepare, self.config, self._engines_beside)
        except ConfigError as error:
            await self._note_problem(str(error), board)
            return
        self.problem = self._told_problem = ""
        self.scheduler = Scheduler(self.config, model, launcher, board)
        self._task = asyncio.create_task(self.scheduler.run(), name=f"pool {self.config.pool}")
        c = self.config
        log.info("pool %s: %d x %s engine, %s", c.pool, c.instances, c.engine.value, model.name)

    def use(self, config: PoolConfig) -> None:
        """Goes on with other settings. Model and name are only changed while a pool is off."""
        if config == self.config:
            return
        self.config = config
        self._try_at_s = 0.0
        if self.scheduler is not None:
            self.scheduler.use(config)

    async def end(self, *, is_unwanted: bool) -> None:
        """Ends its engines; an unwanted one leaves the view."""
        if self._task is not None:
            await end_tasks([self._task])
        if self.scheduler is not None:
            await (self.scheduler.dissolve() if is_unwanted else self.scheduler.stop())

    def state(self, now_unix_s: float) -> PoolState:
        condition = PoolCondition.FAILED if self.problem else PoolCondition.RUNNING
        return PoolState(condition, self.problem, now_unix_s)

    @property
    def is_running(self) -> bool:
        return self.scheduler is not None and self._task is not None and not self._task.done()

    def _engines_beside(self) -> int:
        return self._neighbours.engines() - self.config.instances

    async def _end_broken(self) -> None:
        assert self._task is not None, "only a pool that ran can have broken"
        error = None if self._task.cancelled() else self._task.exception()
        log.error("pool %s failed and is started again", self.config.pool, exc_info=error)
        if self.scheduler is not None:
            await self.scheduler.stop()
        self._task = self.scheduler = None

    async def _note_problem(self, problem: str, board: Board) -> None:
        self.problem = problem
        if problem != self._told_problem:
            self._told_problem = problem
            log.error("pool %s: %s", self.config.pool, problem)
            headline = f"Pool {self.config.pool} cannot start"
            board.put_event("pool_failed", headline, problem, "", "bad")
            await board.write()
        await board.close()


class PoolSet:
    """One a pool process. `run` until cancelled, then `stop`."""

    def __init__(self, first: PoolConfig) -> None:
        """`first`: the environment's settings."""
        self._first = first
        self._store = connect_async(first.redis_url)
        self._blocking = connect(first.redis_url)
        self._pools: dict[str, RunningPool] = {}
        self._wanted: Wanted | None = None
        self._told: dict[str, PoolState] = {}
        self._told_s = float("-inf")
        self._orphans = Orphans(
            installation_of(first.redis_url),
            find_engines,
            owned=lambda: {a for p in self._running() for a in p.actors},
            running_pools=lambda: {p.config.pool for p in self._pools.values() if p.is_running},
            resting_pools=lambda: {p.config.pool for p in self._pools.values() if not p.is_running},
            tell=self._tell_orphan,
        )

    def _running(self) -> list[Scheduler]:
        return [p.scheduler for p in self._pools.values() if p.scheduler is not None]

    def _tell_orphan(self, actor: str, why: str) -> None:
        """Says it on the board of the actor's pool, or of another one where there is no such."""
        mine = self._pools.get(actor.split(":")[1])
        boards = [p.scheduler for p in (mine, *self._pools.values()) if p is not None]
        for scheduler in boards:
            if scheduler is not None:
                scheduler.tell_orphan(actor, why)
                return

    def engines(self) -> int:
        """Returns how many engines all pools together want."""
        return sum(pool.config.instances for pool in self._pools.values())

    async def run(self) -> None:
        """Follows what is wanted until it is cancelled."""
        await self._first_look()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._orphans.run(), name="orphans")
            while True:
                await self._bring_to(self._configs())
                await self._tell()
                await asyncio.sleep(LOOK_EVERY_S)
                await self._look()

    async def stop(self) -> None:
        """Ends all engines."""
        await asyncio.gather(*(p.end(is_unwanted=False) for p in self._pools.values()))
        await self._store.aclose()
        self._blocking.close()

    def kill_engines(self) -> None:
        """Ends all engines at once, whatever they do. For a stop that took too long."""
        for scheduler in self._running():
            scheduler.kill_engines()

    async def _first_look(self) -> None:
        for _ in range(FIRST_LOOKS):
            if await self._look():
                return
            await asyncio.sleep(LOOK_EVERY_S)

    async def _look(self) -> bool:
        """Reads what is wanted; what was known stays while the store is away or has forgotten."""
        try:
            found = await read_wanted(self._store)
        except (redis.RedisError, OSError):
            return False
        except ValueError as error:
            log.error("the wanted pools cannot be read: %s", error)
            return True
        if found is not None:
            self._wanted = found
        return True

    def _configs(self) -> dict[str, PoolConfig]:
        if self._wanted is None:
            return {self._first.pool: self._first}
        found = {}
        for spec in self._wanted.enabled():
            config = self._config(spec, self._wanted)
            if config is not None:
                found[spec.pool] = config
        return found

    def _config(self, spec: PoolSpec, wanted: Wanted) -> PoolConfig | None:
        try:
            return pool_config(self._first, spec, wanted)
        except ConfigError as error:
            # The services check before they save; a pool that runs goes on as it is.
            log.error("pool %s: %s", spec.pool, error)
            known = self._pools.get(spec.pool)
            return known.config if known else None

    async def _bring_to(self, configs: Mapping[str, PoolConfig]) -> None:
        for name in self._pools.keys() - configs.keys():
            pool = self._pools.pop(name)
            log.info("pool %s is not wanted any more", name)
            await pool.end(is_unwanted=True)
        for name, config in configs.items():
            if name not in self._pools:
                self._pools[name] = RunningPool(config, self)
            self._pools[name].use(config)
            if self._pools[name].needs_start:
                await self._pools[name].start()

    async def _tell(self) -> None:
        """Writes the pools' states, when they have changed and every few seconds."""
        now_unix_s, now_s = time.time(), time.monotonic()
        states = {name: pool.state(now_unix_s) for name, pool in self._pools.items()}
        if _words(states) == _words(self._told) and now_s - self._told_s < TELL_EVERY_S:
            return
        try:
            await asyncio.to_thread(write_states, self._blocking, states)
        except redis.RedisError:
            return  # the boards say that the store is away
        self._told, self._told_s = states, now_s


def _words(states: Mapping[str, PoolState]) -> dict[str, tuple[str, str]]:
    return {name: (s.condition.value, s.why) for name, s in states.items()}


def prepare(config: PoolConfig, neighbours: Callable[[], int]) -> tuple[ServedModel, Launcher]:
    """Finds a pool's model and what its engines need to know of it. Blocking. Raises:
    ConfigError."""
    model = resolve_model(config)
    is_simulated = config.engine is EngineKind.SIMULATED
    text = sample_text(model) if is_simulated else None
    max_model_len = longest_context_tokens(model, config) if is_simulated else 0
    return model, Launcher(config, model, max_model_len, text, neighbours)
