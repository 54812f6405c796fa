"""The pools that this web process serves, and which of them a request means.

Follows what is published (engine_pool/pool_spec.py): a pool, an alias or a setting that comes or
goes takes effect within a second and needs no restart. Until something is published there is one
pool, the environment's.
"""

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Final

import redis

from controlplane.gateway.errors import ApiError
from controlplane.gateway.runtime import DRAINING, Runtime
from controlplane.tenants.selectors import KeyPolicy
from engine_pool.client import PoolClient, pool_client, serve_clients
from engine_pool.config import PoolConfig
from engine_pool.errors import ConfigError, PoolRemoved
from engine_pool.pool_spec import (
    LOOK_EVERY_S,
    PoolSpec,
    PoolState,
    Wanted,
    pool_config,
    read_states,
    read_wanted,
)
from engine_pool.store import connect_async
from engine_pool.task_end import end_tasks

logger = logging.getLogger(__name__)

LOOK_TIMEOUT_S: Final = 2.0
FAREWELL_S: Final = 1.0
"""For the clients of a removed pool to be told why their answers end."""
REPLACED_MAX_S: Final = 600.0
"""How long the streams of a pool whose front end is made anew may go on with the old one."""
LEFT_EVERY_S: Final = 0.5


class Pools:
    """One a web process; holds a Runtime a pool."""

    def __init__(
        self,
        default: Runtime,
        make: Callable[[PoolConfig], Runtime] = lambda config: Runtime(PoolClient(config)),
    ) -> None:
        self._environment = default.client.config
        self._make = make
        self._first = default
        self._runtimes: dict[str, Runtime] = {self._environment.pool: default}
        self._aliases: dict[str, str] = {}
        """Alias -> pool."""
        self.wanted: Wanted | None = None
        """What is published; None: nothing."""
        self.states: dict[str, PoolState] = {}
        """What the pool process said last of each pool."""
        self._store = connect_async(self._environment.redis_url)
        self._listeners: list[Callable[[], None]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._leaving: set[asyncio.Task[None]] = set()
        self._is_draining = False
        self._is_stopping = False
        self._is_started = False

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping

    @property
    def default(self) -> Runtime:
        """The environment's pool; another one while that is off."""
        return next(iter(self.all()), self._first)

    def all(self) -> Sequence[Runtime]:
        """Returns the runtimes of all pools, the default one first."""
        first = self._environment.pool
        return [
            self._runtimes[name] for name in sorted(self._runtimes, key=lambda n: (n != first, n))
        ]

    def get(self, pool: str) -> Runtime | None:
        """Returns the runtime of a pool by its name."""
        return self._runtimes.get(pool)

    def spec(self, pool: str) -> PoolSpec | None:
        """Returns a pool as it is published, with its limits; None: it is not."""
        published = self.wanted.pools if self.wanted is not None else ()
        return next((spec for spec in published if spec.pool == pool), None)

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls `listener`, in this event loop, after pools have come or gone."""
        self._listeners.append(listener)

    def models(self) -> dict[str, Runtime]:
        """Returns every name, aliases too, that clients may ask for."""
        found = {runtime.model_name: runtime for runtime in self.all() if runtime.model_name}
        for alias, pool in sorted(self._aliases.items()):
            runtime = self._runtimes.get(pool)
            if runtime is not None and runtime.model_name:
                found.setdefault(alias, runtime)
        return found

    def for_model(self, name: object, policy: KeyPolicy) -> Runtime:
        """Returns the pool that serves the model; without a name, the default one (as vLLM does).

        Raises: ApiError 404 for a model that does not exist or that the key may not use: whether
        others have it is nobody's business; 503 while none is loaded.
        """
        if not self.models():
            # Says why nothing is served yet.
            self.default.ready_front()
        if name is None:
            name = self.default.model_name
        if not isinstance(name, str) or not name:
            raise ApiError(400, "`model` must be a model's name.", param="model")
        runtime = self.models().get(name)
        if runtime is None and policy.allows_model(name):
            self._refuse_while_loading(name)
        if runtime is None or not policy.allows_model(name):
            raise ApiError(
                404, f"The model `{name}` does not exist.", "model_not_found", param="model"
            )
        return runtime

    def not_ready(self) -> str | None:
        """Returns why no chat would be answered now, None when one would."""
        if self._is_draining:
            return DRAINING
        reasons = [runtime.not_ready() for runtime in self.all()]
        if not reasons:
            return "no pool is switched on"
        return None if None in reasons else next(filter(None, reasons), None)

    async def start(self) -> None:
        """Begins to follow all pools. Safe to call again."""
        if self._is_started:
            return
        self._is_started = True
        # Before a front end is loaded: it may be another one than the environment's.
        await self._look()
        self._note_served()
        for runtime in self.all():
            await runtime.start()
        self._tasks = [asyncio.create_task(self._follow(), name="wanted pools")]

    def begin_drain(self) -> None:
        """Says that nothing new should be sent here; serves on."""
        self._is_draining = True
        for runtime in self.all():
            runtime.is_draining = True

    def begin_stop(self) -> None:
        """Takes no new requests, of any pool (Runtime.begin_stop)."""
        self._is_stopping = True
        for runtime in self.all():
            runtime.begin_stop()

    async def stop(self) -> None:
        """Ends what `start` began."""
        self._is_stopping = True
        await end_tasks([*self._tasks, *self._leaving])
        for runtime in self.all():
            await runtime.stop()
        await self._store.aclose()
        serve_clients([])
        self._is_started = False

    async def apply(self, wanted: Wanted) -> None:
        """Brings the runtimes to what is published."""
        self.wanted = wanted
        configs = self._configs(wanted)
        before = set(self._runtimes.items())
        for name in self._runtimes.keys() - configs.keys():
            self._let_leave(self._remove(self._runtimes.pop(name)), f"end of pool {name}")
        for name, config in configs.items():
            known = self._runtimes.get(name)
            if known is not None and _front_of(known.client.config) == _front_of(config):
                if known.client.config != config:
                    known.client.use(config)
                continue
            if known is not None:
                self._let_leave(_replaced(known), f"old front end of pool {name}")
            self._runtimes[name] = self._make(config)
            if self._is_started:
                await self._runtimes[name].start()
        self._aliases = {alias: spec.pool for spec in wanted.enabled() for alias in spec.aliases}
        if set(self._runtimes.items()) != before:
            self._note_served()
            logger.info("pools served: %s", ", ".join(self._runtimes) or "none")
            for listener in self._listeners:
                listener()

    def _refuse_while_loading(self, name: str) -> None:
        """Raises: ApiError 503 when a pool of this name or alias is still being loaded here."""
        for runtime in self.all():
            config = runtime.client.config
            is_meant = name == config.served_model_name or self._aliases.get(name) == config.pool
            if is_meant and not runtime.model_name:
                runtime.ready_front()

    def _configs(self, wanted: Wanted) -> dict[str, PoolConfig]:
        found = {}
        for spec in wanted.enabled():
            try:
                found[spec.pool] = pool_config(self._environment, spec, wanted)
            except ConfigError as error:
                # The services check before they save; what is known goes on.
                logger.error("pool %s: %s", spec.pool, error)
                if spec.pool in self._runtimes:
                    found[spec.pool] = self._runtimes[spec.pool].client.config
        return found

    def _note_served(self) -> None:
        if self._is_started:
            serve_clients([runtime.client for runtime in self.all()])

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await self._look()

    async def _look(self) -> None:
        """Reads what is published; what was known stays while the store is away or has
        forgotten."""
        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                wanted = await read_wanted(self._store)
                self.states = await read_states(self._store)
        except (redis.RedisError, OSError, TimeoutError):
            return
        except ValueError as error:
            logger.error("the wanted pools cannot be read: %s", error)
            return
        if wanted is not None and wanted != self.wanted and not self._is_stopping:
            await self.apply(wanted)

    async def _remove(self, runtime: Runtime) -> None:
        error = PoolRemoved(f"The pool {runtime.client.config.pool} was switched off.")
        runtime.is_stopping = True
        runtime.client.dispatcher.give_up_waiting(error)
        runtime.client.reader.fail_all(error)
        await asyncio.sleep(FAREWELL_S)
        await runtime.stop()

    def _let_leave(self, leave: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(leave, name=name)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)


async def _replaced(runtime: Runtime) -> None:
    """Stops a runtime once its streams have ended."""
    for _ in range(int(REPLACED_MAX_S / LEFT_EVERY_S)):
        if not runtime.client.reader.streams:
            break
        await asyncio.sleep(LEFT_EVERY_S)
    await runtime.stop()


def _front_of(config: PoolConfig) -> tuple[object, ...]:
    """Returns what a front end is made of: another one is needed when any of it differs."""
    return (config.model, config.served_model_name, config.engine, config.max_model_len)


@functools.cache
def pools() -> Pools:
    """Returns this process's one."""
    return Pools(Runtime(pool_client()))
