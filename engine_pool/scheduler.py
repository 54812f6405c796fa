"""The pool process's loop: which instances there should be, and who keeps each.

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
from engine_pool.config import PoolConfig
from engine_pool.errors import EngineFailed
from engine_pool.instance_keeper import InstanceKeeper
from engine_pool.launcher import Launcher, RayEngine
from engine_pool.move_steward import MoveSteward, ServingEngine
from engine_pool.ports import Pong
from engine_pool.rebalancing_part import run_rebalancer
from engine_pool.sampler import Sampler
from engine_pool.served_model import ServedModel
from engine_pool.types import EngineKind, InstanceName, InstanceState, InstanceStatus

log = logging.getLogger(__name__)

SAMPLE_INTERVAL_S: Final = 1.0
ADOPT_TIMEOUT_S: Final = 3.0
"""An engine that does not answer for this long at the pool's start is not worth waiting for."""
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
        self._sampler = Sampler(config.policy.dispatch.headroom)
        self._keepers: list[InstanceKeeper] = []

    async def run(self) -> None:
        """Serves until it is cancelled."""
        wanted = [instance_name(n) for n in range(1, self._config.instances + 1)]
        known = await self._forget_unwanted(wanted)
        living = await self._find_living(wanted)
        for instance in wanted:
            keeper = InstanceKeeper(
                self._first_status(instance, known.get(instance)),
                self._config,
                self._launcher,
                self._board,
                self._starts,
            )
            if instance in living:
                keeper.adopt(*living[instance])
            self._keepers.append(keeper)
        steward = MoveSteward(self._config, self._board, self._serving)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._board.run(), name="board")
            tasks.create_task(self._sample(), name="sampler")
            tasks.create_task(steward.run(), name="moves")
            rebalancing = run_rebalancer(self._config, self._board.put_event)
            tasks.create_task(rebalancing, name="rebalancer")
            for keeper in self._keepers:
                tasks.create_task(keeper.run(), name=keeper.status.instance)

    async def stop(self) -> None:
        """Ends all engines, and says so on the board as far as the store takes it."""
        await asyncio.gather(*(k.stop() for k in self._keepers))
        await self._board.write()
        await self._board.close()

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
            for k in self._keepers
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


def instance_name(number: int) -> InstanceName:
    """Returns i-01, i-02, ... : sorted as text they stay in order up to 99."""
    return InstanceName(f"i-{number:02d}")


async def _pong_or_none(engine: RayEngine) -> Pong | None:
    try:
        return await engine.ping(ADOPT_TIMEOUT_S)
    except EngineFailed:
        return None
