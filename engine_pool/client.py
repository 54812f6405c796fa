"""What a web process knows of the pool, and its way to the engines: the one door between them.

`pool_client()` is the process's client of the environment's pool; others are made as their pools
come (gateway/pools.py). Each owns the live view, the token reader, the watch for lost instances and
the way to the engine actors, and runs each as a task of its own.
"""

import asyncio
import functools
import logging
import os
import uuid
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from engine_pool.config import PoolConfig
from engine_pool.dispatcher import Dispatcher
from engine_pool.errors import PoolError
from engine_pool.live_view import LiveView
from engine_pool.loss_watch import LossWatch
from engine_pool.moves import MoveGate, Moves
from engine_pool.outbox import EngineGate
from engine_pool.ray_gate import RayGate
from engine_pool.replays import Replays
from engine_pool.store import connect_async
from engine_pool.stream import FrameSink, Visit
from engine_pool.task_end import end_tasks
from engine_pool.token_log import LogTimes, TokenFrame, TokenLogReader
from engine_pool.token_reader import TokenReader

logger = logging.getLogger(__name__)

RESTART_AFTER_S = 1.0
"""Before a task that broke is started anew: not so soon that it fills the log."""


class PoolGate(EngineGate, MoveGate, Protocol):
    """The whole way to engine actors; RayGate, or a fake in tests."""


class SinkSlot:
    """Stands for the front end until it is loaded; no stream is open then, so nothing is lost."""

    def __init__(self) -> None:
        self.sink: FrameSink | None = None
        self.listener: Callable[[Sequence[TokenFrame]], None] = lambda frames: None
        """Gets the frames, too, before the front end."""

    def deliver(self, frames: Sequence[TokenFrame]) -> None:
        self.listener(frames)
        if self.sink is not None:
            self.sink.deliver(frames)

    def moved(self, request_id: str, visit: Visit) -> None:
        if self.sink is not None:
            self.sink.moved(request_id, visit)

    def fail(self, request_id: str, error: PoolError) -> None:
        if self.sink is not None:
            self.sink.fail(request_id, error)


class PoolClient:
    """One a pool and web process. `start` before anything else, in the event loop that goes on
    using it."""

    def __init__(self, config: PoolConfig, gate: PoolGate | None = None) -> None:
        self.config = config
        self.web_process = uuid.uuid4().hex
        self.store = connect_async(config.redis_url)
        self.times = LogTimes(live_s=config.log_live_s, ended_s=config.log_ended_s)
        self.log = TokenLogReader(self.store, self.times)
        self.view = LiveView(self.store, config.keys)
        self.sink = SinkSlot()
        self.reader = TokenReader(
            self.store,
            self.log,
            self.sink,
            web_process=self.web_process,
            store_timeout_s=config.store_timeout_s,
            status_of=self.view.statuses.get,
        )
        self.ray = None if gate else RayGate(config)
        self.dispatcher = Dispatcher(
            self.view, self.reader, self.log, self.store, self._gate(gate), config
        )
        self.replays = Replays(self.view, self.reader, self.log, self.dispatcher, config)
        self.watch = LossWatch(self.view, self.reader, self.replays)
        self.sink.listener = self.dispatcher.note_frames
        self.moves = Moves(self.view, self._gate(gate), config.headroom)
        self._tasks: list[asyncio.Task[None]] = []

    def use(self, config: PoolConfig) -> None:
        """Goes on with other settings of the same pool, as far as this side has any."""
        self.config = config
        self.dispatcher.use(config)
        self.replays.use(config)
        self.moves.use(config.headroom)

    async def start(self) -> None:
        """Begins to follow the pool. Returns at once, also when store and Ray do not answer yet."""
        if self._tasks:
            return
        parts: list[tuple[str, Any]] = [
            ("live view", self.view.run),
            ("token reader", self.reader.run),
            ("loss watch", self.watch.run),
            ("replays", self.replays.run),
        ]
        if self.ray is not None:
            parts.append(("ray", self.ray.run))
        self._tasks = [asyncio.create_task(_keep(name, run), name=name) for name, run in parts]

    async def stop(self) -> None:
        """Ends what `start` began and closes the connections; open streams get an error."""
        await self.dispatcher.close()
        await end_tasks(self._tasks)
        self._tasks = []
        await self.store.aclose()

    def _gate(self, given: PoolGate | None) -> PoolGate:
        gate = given or self.ray
        assert gate is not None, "without a given gate, Ray is the way"
        return gate


@functools.cache
def pool_client() -> PoolClient:
    """Returns this process's client of the environment's pool. Raises: ConfigError."""
    return PoolClient(PoolConfig.from_env(os.environ))


_served: list[PoolClient] = []


def serve_clients(clients: Sequence[PoolClient]) -> None:
    """Notes which pools this process serves now, the default one first."""
    _served[:] = clients


def served_clients() -> list[PoolClient]:
    """Returns the clients of all pools that this process serves; none before it has begun to."""
    return list(_served)


async def _keep(name: str, run: "functools.partial[Coroutine[Any, Any, None]] | Any") -> None:
    """Runs a part for ever; one that breaks is logged and started again."""
    while True:
        try:
            await run()
            return
        except Exception:
            logger.exception("%s broke; it starts again", name)
        await asyncio.sleep(RESTART_AFTER_S)
