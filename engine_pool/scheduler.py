"""The loop of one pool: which instances there should be, and who keeps each.

At its start it adopts the engines that a former pool process left, whatever they do, and brings
them to what is wanted now. Dispatch is not its business: web processes call the engines directly.
"""

import asyncio
import contextlib
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
from engine_pool.policy.rollout import Rollout
from engine_pool.policy.wishes import InstanceWish
from engine_pool.pool_keys import FIRST, PoolKeys
from engine_pool.pool_settings import ENGINE_SETTINGS
from engine_pool.pool_wishes import avoided_nodes, ending_wish, retirement
from engine_pool.ports import Pong
from engine_pool.ray_nodes import NodesSeen, look_at_nodes
from engine_pool.rebalancing_part import run_rebalancer
from engine_pool.rollouts import Rollouts
from engine_pool.sampler import Sampler
from engine_pool.served_model import ServedModel
from engine_pool.task_end import end_tasks
from engine_pool.types import EngineKind, InstanceName, InstanceState, InstanceStatus

log = logging.getLogger(__name__)

SAMPLE_INTERVAL_S: Final = 1.0
LOOK_EVERY_S: Final = 0.5
"""Between two looks at the instances that are not wanted, and at a rollout."""
LOOK_AT_NODES_S: Final = 2.0
"""A node that is told to end says so half a minute before."""
ADOPT_TIMEOUT_S: Final = 10.0
"""An engine that does not answer for this long at the pool's start is not worth waiting for."""
TELL_CLASSES_S: Final = 0.5
"""Between two looks for engines that do not know the latest rules of the classes."""
SIMULATED_STARTS_AT_ONCE: Final = 64
"""A simulated engine starts in a moment; only Ray's worker processes take time."""

Told = tuple[PoolConfig, InstanceWish, dict[str, InstanceWish]]
"""Settings, what the pool wants of an instance, what the ends of nodes mean for their engines."""


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
        self._retiring: dict[InstanceName, InstanceWish] = {}
        """Those that the pool's size leaves out: drained, ended, then forgotten."""
        self._leaving: set[InstanceName] = set()
        """Those that are just being forgotten; only then they may come anew."""
        self._told: dict[InstanceName, Told] = {}
        """What each keeper follows."""
        self._rollouts = Rollouts(board, config.pool)
        self._rollout = Rollout()
        self._nodes = NodesSeen()
        self._obstacles: dict[InstanceName, str] = {}
        """Why the requests of a draining instance do not move; the rebalancer writes it."""
        self._changed = asyncio.Event()
        self._rebalancing: asyncio.Task[None] | None = None
        self._classes_told: dict[str, ClassRules] = {}
        """By actor."""

    async def run(self) -> None:
        """Serves until it is cancelled."""
        known = await self._known()
        living = await self._find_living()
        steward = MoveSteward(self._config, self._board, self._serving)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._board.run(), name="board")
            tasks.create_task(self._sample(), name="sampler")
            tasks.create_task(steward.run(), name="moves")
            tasks.create_task(self._tell_classes(), name="classes")
            tasks.create_task(self._look_at_nodes(), name="nodes")
            self._rebalance(tasks)
            # Those beyond the pool's size are drained like any other that is not wanted.
            for instance in sorted({*self._wanted(), *living}):
                self._add(tasks, instance, known.get(instance), living.get(instance))
            while True:
                self._bring_to(tasks)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY_S):
                        await self._changed.wait()
                self._changed.clear()

    @property
    def actors(self) -> set[str]:
        """Names of the engine actors that are kept."""
        return {k.handle.actor for k in self._keepers.values() if k.handle is not None}

    def tell_orphan(self, actor: str, why: str) -> None:
        """Says that an engine was ended that belonged to nobody."""
        self._board.put_event("orphan_ended", f"{actor} was ended", why, "", "warn")

    def use(self, config: PoolConfig) -> None:
        """Goes on with other settings: at once where they concern the number of instances, rules
        and classes; engine settings when an instance starts next."""
        before, self._config = self._config, config
        self._launcher.use(config)
        if engine_settings_of(config) != engine_settings_of(before):
            self._board.put_event(
                "pool_settings_changed",
                f"Pool {config.pool} has other engine settings",
                f"{changed_settings(before, config)}; {self._how_changed(config)}",
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

    def kill_engines(self) -> None:
        """Ends all engines at once; nobody is told of it."""
        for keeper in self._keepers.values():
            if keeper.handle is not None:
                keeper.handle.kill()

    async def dissolve(self) -> None:
        """Ends all engines of a pool that is not wanted any more, and takes it out of the view."""
        await asyncio.gather(*(k.stop() for k in self._keepers.values()))
        for instance in self._keepers:
            self._board.forget(instance)
        await self._board.write()
        await self._board.close()

    def _how_changed(self, config: PoolConfig) -> str:
        if config.is_rolling:
            return "instances are replaced one by one"
        return "each instance has them from its next start"

    def _wanted(self) -> list[InstanceName]:
        keys = self._config.keys
        count = self._config.instances + (1 if self._rollout.needs_extra else 0)
        return [instance_name(n, keys) for n in range(1, count + 1)]

    def _bring_to(self, tasks: asyncio.TaskGroup) -> None:
        """Adds the instances that are missing, tells all what is wanted of them, forgets those that
        were not wanted and have ended."""
        self._rollout = self._rollouts.look(self._config, self._keepers.values())
        wanted = self._wanted()
        for instance in wanted:
            if instance not in self._keepers and instance not in self._leaving:
                self._add(tasks, instance, None, None)
        now_unix_s = time.time()
        self._retiring = {
            instance: self._retiring.get(instance) or retirement(now_unix_s)
            for instance in self._keepers.keys() - set(wanted)
        }
        for instance in self._retiring:
            if self._keepers[instance].status.state is InstanceState.STOPPED:
                tasks.create_task(self._forget(instance), name=f"end of {instance}")
        self._tell_wishes()
        if self._rebalancing is None or self._rebalancing.done():
            self._rebalance(tasks)

    def _tell_wishes(self) -> None:
        ending = {node: ending_wish(node, at) for node, at in self._nodes.ending.items()}
        self._launcher.avoided_nodes = avoided_nodes(self._nodes, self._config.node_wishes)
        for instance, keeper in self._keepers.items():
            wish = self._retiring.get(instance) or self._rollouts.wish(instance)
            told = (self._config, wish, ending)
            if self._told.get(instance) != told:
                self._told[instance] = told
                keeper.use(*told)

    def _add(
        self,
        tasks: asyncio.TaskGroup,
        instance: InstanceName,
        known: InstanceStatus | None,
        living: "tuple[RayEngine, Pong] | None",
    ) -> None:
        status = self._first_status(instance, known)
        keeper = InstanceKeeper(
            status,
            self._config,
            self._launcher,
            self._board,
            self._starts,
            obstacle=lambda: self._obstacles.get(instance, ""),
        )
        self._told.pop(instance, None)
        keeper.use(self._config)
        if living is not None:
            keeper.adopt(*living)
        self._keepers[instance] = keeper
        self._runs[instance] = tasks.create_task(keeper.run(), name=instance)

    async def _forget(self, instance: InstanceName) -> None:
        """Takes an instance out of the view that is not wanted any more and has ended."""
        keeper, run = self._keepers.pop(instance), self._runs.pop(instance)
        self._leaving.add(instance)
        await end_tasks([run])
        await keeper.stop()
        self._board.put_event(
            "instance_retired",
            f"{instance} is not wanted any more",
            keeper.status.cause,
            instance,
        )
        self._board.forget(instance)
        self._leaving.discard(instance)
        # It may be wanted again meanwhile.
        self._changed.set()

    async def _look_at_nodes(self) -> None:
        """Follows which nodes there are and which of them are about to end."""
        while True:
            try:
                self._nodes = await asyncio.to_thread(look_at_nodes)
            except Exception as error:  # noqa: BLE001 - Ray raises many kinds while it is away
                log.info("Ray does not say which nodes there are: %s", type(error).__name__)
            await asyncio.sleep(LOOK_AT_NODES_S)

    def _rebalance(self, tasks: asyncio.TaskGroup) -> None:
        rebalancing = run_rebalancer(self._config, self._board.put_event, self._obstacles)
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

    async def _known(self) -> dict[InstanceName, InstanceStatus]:
        """Returns the statuses that a former pool process left, and takes those out of the view
        that are not wanted any more; where their engines live, they come back."""
        try:
            statuses, _ = await self._board.read()
        except redis.RedisError as error:
            log.warning("the store does not answer yet: %s", type(error).__name__)
            return {}
        mine = {s.instance: s for s in statuses if s.pool == self._config.pool}
        for instance in mine.keys() - set(self._wanted()):
            self._board.forget(instance)
        return mine

    async def _find_living(self) -> dict[InstanceName, tuple[RayEngine, Pong]]:
        """Returns the engines that serve already; ends those that are there twice, half started or
        do not answer."""
        found = await asyncio.to_thread(self._launcher.find_living)
        living: dict[InstanceName, tuple[RayEngine, Pong]] = {}
        answers = await asyncio.gather(*(_pong_or_none(e) for e in found.values()))
        installation = self._launcher.installation
        for engine, pong in zip(found.values(), answers, strict=True):
            if pong is not None and pong.installation != installation:
                continue  # another installation's, in the same Ray cluster
            if pong is not None and pong.is_ready and InstanceName(pong.instance) not in living:
                living[InstanceName(pong.instance)] = (engine, pong)
            else:
                log.info("%s is left from before and is ended", engine.actor)
                self._board.put_event(
                    "orphan_ended", f"{engine.actor} was ended", "it was left from before"
                )
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
            node=known.node if known else "",
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
