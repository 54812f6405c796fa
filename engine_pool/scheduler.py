"""The loop of one pool: which instances there should be, and who keeps each.

At its start it adopts the engines that a former pool process left serving and stops those that are
not wanted. Dispatch is not its business: web processes call the engines directly.
"""

import asyncio
import logging
import os
import time
from typing import Final

import redis

from engine_pool.board import Board
from engine_pool.class_rules import ClassRules
from engine_pool.config import PoolConfig
from engine_pool.errors import EngineFailed
from engine_pool.instance_keeper import InstanceKeeper
from engine_pool.launcher import Launcher, RayEngine
from engine_pool.move_steward import MoveSteward, ServingEngine
from engine_pool.pool_keys import FIRST, PoolKeys
from engine_pool.pool_settings import ENGINE_SETTINGS
from engine_pool.ports import Pong
from engine_pool.rebalancing_part import run_rebalancer
from engine_pool.sampler import Sampler
from engine_pool.served_model import ServedModel
from engine_pool.types import EngineKind, InstanceName, InstanceState, InstanceStatus

log = logging.getLogger(__name__)

SAMPLE_INTERVAL_S: Final = 1.0
ADOPT_TIMEOUT_S: Final = 3.0
"""An engine that does not answer for this long at the pool's start is not worth waiting for."""
TELL_CLASSES_S: Final = 0.5
"""Between two looks for engines that do not know the latest rules of the classes."""
SIMULATED_STARTS_AT_ONCE: Final = 64
"""A simulated engine starts in a moment; only Ray's worker processes take time."""


class Scheduler:
    """Keeps a pool's instances. `run` until cancelled, then `stop`."""

    def __init__(
        self, config: PoolConfig, model: ServedModel, launcher: Launcher, board: Board
    ) -> None:
        self._config = config
        self._model = model
        self._launcher = launcher
        self._board = board
        # A real engine's start keeps one core busy for its whole length.
        is_real = config.engine is EngineKind.VLLM
        at_once = (os.cpu_count() or 1) if is_real else SIMULATED_STARTS_AT_ONCE
        self._starts = asyncio.Semaphore(at_once)
        self._sampler = Sampler(config.headroom)
        self._keepers: dict[InstanceName, InstanceKeeper] = {}
        self._runs: dict[InstanceName, asyncio.Task[None]] = {}
        """Of the instances that are wanted; one that is being retired has none."""
        self._changed = asyncio.Event()
        self._rebalancing: asyncio.Task[None] | None = None
        self._classes_told: dict[str, ClassRules] = {}
        """By actor."""

    async def run(self) -> None:
        """Serves until it is cancelled."""
        wanted = self._wanted()
        known = await self._forget_unwanted(wanted)
        living = await self._find_living(wanted)
        steward = MoveSteward(self._config, self._board, self._serving)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._board.run(), name="board")
            tasks.create_task(self._sample(), name="sampler")
            tasks.create_task(steward.run(), name="moves")
            tasks.create_task(self._tell_classes(), name="classes")
            self._rebalance(tasks)
            for instance in wanted:
                self._add(tasks, instance, known.get(instance), living.get(instance))
            while True:
                await self._changed.wait()
                self._changed.clear()
                self._bring_to(tasks, self._wanted())

    def use(self, config: PoolConfig) -> None:
        """Goes on with other settings: at once where they concern the number of instances, rules
        and classes; engine settings when an instance starts next."""
        before, self._config = self._config, config
        self._launcher.use(config)
        if engine_settings_of(config) != engine_settings_of(before):
            self._board.put_event(
                "pool_settings_changed",
                f"Pool {config.pool} has other engine settings",
                f"{changed_settings(before, config)}; each instance has them from its next start",
            )
        if config.instances != before.instances:
            self._board.put_event(
                "pool_resized",
                f"Pool {config.pool} has {config.instances} instances now",
                f"{before.instances} before",
            )
        if config.policy != before.policy or config.migration != before.migration:
            self._sampler.headroom = config.headroom
            if self._rebalancing is not None:
                # It keeps no state that matters; `_bring_to` begins it anew.
                self._rebalancing.cancel()
        self._changed.set()

    async def stop(self) -> None:
        """Ends all engines, and says so on the board as far as the store takes it."""
        await asyncio.gather(*(k.stop() for k in self._keepers.values()))
        await self._board.write()
        await self._board.close()

    async def dissolve(self) -> None:
        """Ends all engines of a pool that is not wanted any more, and takes it out of the view."""
        await asyncio.gather(*(k.stop() for k in self._keepers.values()))
        for instance in self._keepers:
            self._board.forget(instance)
        await self._board.write()
        await self._board.close()

    def _wanted(self) -> list[InstanceName]:
        keys = self._config.keys
        return [instance_name(n, keys) for n in range(1, self._config.instances + 1)]

    def _bring_to(self, tasks: asyncio.TaskGroup, wanted: list[InstanceName]) -> None:
        """Adds the instances that are missing and retires those that are not wanted any more."""
        for instance in wanted:
            if instance not in self._keepers:
                self._add(tasks, instance, None, None)
        for instance in self._runs.keys() - set(wanted):
            run = self._runs.pop(instance)
            tasks.create_task(self._retire(instance, run), name=f"end of {instance}")
        if self._rebalancing is None or self._rebalancing.done():
            self._rebalance(tasks)
        elif self._rebalancing.cancelling():
            self._rebalancing.add_done_callback(lambda _: self._changed.set())

    def _add(
        self,
        tasks: asyncio.TaskGroup,
        instance: InstanceName,
        known: InstanceStatus | None,
        living: "tuple[RayEngine, Pong] | None",
    ) -> None:
        status = self._first_status(instance, known)
        keeper = InstanceKeeper(status, self._config, self._launcher, self._board, self._starts)
        if living is not None:
            keeper.adopt(*living)
        self._keepers[instance] = keeper
        self._runs[instance] = tasks.create_task(keeper.run(), name=instance)

    async def _retire(self, instance: InstanceName, run: asyncio.Task[None]) -> None:
        run.cancel()
        await asyncio.wait({run})
        await self._keepers[instance].retire()
        del self._keepers[instance]
        self._board.forget(instance)
        # It may be wanted again meanwhile.
        self._changed.set()

    def _rebalance(self, tasks: asyncio.TaskGroup) -> None:
        rebalancing = run_rebalancer(self._config, self._board.put_event)
        self._rebalancing = tasks.create_task(rebalancing, name="rebalancer")

    async def _tell_classes(self) -> None:
        """Tells engines how priority classes are treated, those that start later included."""
        while True:
            classes = self._config.classes
            for end in self._serving():
                if self._classes_told.get(end.engine.actor) != classes:
                    try:
                        await end.engine.use_classes(classes)
                        self._classes_told[end.engine.actor] = classes
                    except EngineFailed as error:
                        log.warning("%s: classes not told yet: %s", end.engine.actor, error)
            await asyncio.sleep(TELL_CLASSES_S)

    async def _forget_unwanted(
        self, wanted: list[InstanceName]
    ) -> dict[InstanceName, InstanceStatus]:
        """Removes instances of a former, larger pool from the view; returns the statuses of the
        others."""
        try:
            statuses, _ = await self._board.read()
        except redis.RedisError as error:
            log.warning("the store does not answer yet: %s", type(error).__name__)
            return {}
        mine = {s.instance: s for s in statuses if s.pool == self._config.pool}
        for instance in mine.keys() - set(wanted):
            self._board.forget(instance)
        return mine

    async def _find_living(
        self, wanted: list[InstanceName]
    ) -> dict[InstanceName, tuple[RayEngine, Pong]]:
        """Returns the engines that serve already; ends those that are not wanted or half
        started."""
        found = await asyncio.to_thread(self._launcher.find_living)
        living: dict[InstanceName, tuple[RayEngine, Pong]] = {}
        answers = await asyncio.gather(*(_pong_or_none(e) for e in found.values()))
        for engine, pong in zip(found.values(), answers, strict=True):
            name = InstanceName(pong.instance) if pong else None
            is_fit = pong is not None and name in wanted and name not in living
            wished = self._launcher.spec(InstanceName("any"), "any").fingerprint
            if is_fit and pong.is_ready and pong.fingerprint == wished:
                living[name] = (engine, pong)
            else:
                log.info("%s is left from before and is ended", engine.actor)
                engine.kill()
        return living

    def _first_status(self, instance: InstanceName, known: InstanceStatus | None) -> InstanceStatus:
        return InstanceStatus(
            instance=instance,
            pool=self._config.pool,
            incarnation="",
            state=InstanceState.STOPPED,
            cause="not started yet",
            since_unix_s=time.time(),
            node="",
            model=self._model.name,
            engine=self._config.engine,
            restarts=known.restarts if known else 0,
        )

    def _serving(self) -> list[ServingEngine]:
        return [
            ServingEngine(k.status.instance, k.status.incarnation, k.handle)
            for k in self._keepers.values()
            if k.status.state is InstanceState.SERVING and isinstance(k.handle, RayEngine)
        ]

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_INTERVAL_S)
            try:
                _, loads = await self._board.read()
            except redis.RedisError:
                continue  # the board says that the store is away
            sample = self._sampler.sample(self._board.statuses, loads, time.time())
            self._board.put_sample(sample)


def instance_name(number: int, keys: PoolKeys = FIRST) -> InstanceName:
    """Returns i-01, i-02, ... of the environment's pool, others begin with their pool's name:
    sorted as text they stay in order up to 99."""
    return InstanceName(f"{keys.instance_prefix}-{number:02d}")


def engine_settings_of(config: PoolConfig) -> dict[str, object]:
    """Returns what an engine is started with."""
    return {name: getattr(config, name) for name in ENGINE_SETTINGS}


def changed_settings(before: PoolConfig, after: PoolConfig) -> str:
    """Says which engine settings differ, and how."""
    old, new = engine_settings_of(before), engine_settings_of(after)
    return ", ".join(f"{n} {old[n]} -> {new[n]}" for n in new if old[n] != new[n])


async def _pong_or_none(engine: RayEngine) -> Pong | None:
    try:
        return await engine.ping(ADOPT_TIMEOUT_S)
    except EngineFailed:
        return None
