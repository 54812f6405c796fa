"""What this web process needs to serve the API, from its start to its stop.

The front end is imported and loaded in a thread (seconds of CPU time), so that /livez and the pages
answer meanwhile; `not_ready` says what is still missing.
"""

import asyncio
import gc
import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import redis
from django.conf import settings

from controlplane.gateway.errors import STARTING_RETRY_S, ApiError
from controlplane.gateway.pool_metrics import pool_collector
from controlplane.gateway.records import RecordWriter
from engine_pool.client import PoolClient
from engine_pool.errors import ConfigError, ServerStopping
from engine_pool.served_model import resolve_model
from engine_pool.task_end import end_tasks
from engine_pool.token_log import request_key
from engine_pool.types import EngineKind, InstanceState

if TYPE_CHECKING:
    from controlplane.gateway.frontend.serving import FrontEnd

logger = logging.getLogger(__name__)

EXPIRE_EVERY_S: Final = 1.0
"""Between two rounds for ended requests."""
DRAINING: Final = "draining"
"""What readiness says while this process serves only what is here already."""
_loading: Final = threading.Lock()
CONNECTED_LOOK_S: Final = 0.05
"""Between two looks, only at the start, whether the store has answered."""
LOAD_RETRY_S: Final = 5.0
"""Between two tries to load the front end, e.g. while the model is still being prepared."""


class Runtime:
    """One a pool and web process (pools.py)."""

    def __init__(
        self, client: PoolClient, load: "Callable[[PoolClient], FrontEnd] | None" = None
    ) -> None:
        self.client = client
        self._load_front = load or _load_front_end
        self.records = RecordWriter()
        pool_collector.follow(self)
        self.front: FrontEnd | None = None
        self.is_draining = False
        """It serves on, but nothing new should be sent here."""
        self.is_stopping = False
        self._missing = "the front end is loading"
        """Why there is no front end yet."""
        self._ended: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._detached: set[asyncio.Task[None]] = set()

    @property
    def is_simulated(self) -> bool:
        return self.client.config.engine is EngineKind.SIMULATED

    @property
    def model_name(self) -> str:
        """What clients call the model; empty until the front end is loaded."""
        return "" if self.front is None else self.front.models.base_model_paths[0].name

    @property
    def _is_connected(self) -> bool:
        """Says whether both ways to the store are open: to the pool's state, and to its tokens."""
        return self.client.view.store_connected and self.client.reader.is_connected

    async def start(self) -> None:
        """Begins to follow the pool and to load the front end. Safe to call again."""
        if self._tasks:
            return
        await self.client.start()
        self._tasks = [
            asyncio.create_task(self._load(), name="front end"),
            asyncio.create_task(self.records.run(), name="request records"),
            asyncio.create_task(self._expire(), name="expiry of records"),
        ]

    def begin_stop(self) -> None:
        """Takes no new requests, and lets go of those under way: their engines go on, so that the
        clients resume at another web process."""
        if not self.is_stopping:
            self.is_stopping = True
            self.client.dispatcher.give_up_waiting(
                ServerStopping("This server is stopping; send the request again.")
            )
            self.client.reader.let_go()

    async def stop(self) -> None:
        """Ends what `start` began; writes the records that wait."""
        self.is_stopping = True
        await end_tasks([*self._tasks, *self._detached])
        self._tasks = []
        pool_collector.forget(self)
        await self.client.stop()
        if self.front is not None:
            await asyncio.to_thread(self.front.llm.shutdown)

    def not_ready(self) -> str | None:
        """Returns why no chat should be sent here now, None when it would be answered."""
        view = self.client.view
        if self.is_draining or self.is_stopping:
            return DRAINING
        if self.front is None:
            return self._missing
        if not self._is_connected:
            return "the store does not answer"
        if self.client.ray is not None and not self.client.ray.is_joined:
            return "Ray does not answer"
        states = [s.state for s in view.statuses.values()]
        # A pool at zero is woken by the request itself, which waits for it (holding.py).
        if InstanceState.SERVING not in states and not self.client.config.hold_s:
            known = ", ".join(sorted({s.value for s in states})) or "none is known"
            return f"no instance is serving ({known})"
        return None

    def ready_front(self) -> "FrontEnd":
        """Returns the front end. Raises: ApiError 503 when a request could not be served now."""
        if self.front is None or self.is_stopping:
            reason = "this server is stopping" if self.is_stopping else self.not_ready()
            raise ApiError(
                503, f"Not ready: {reason}.", "server_is_overloaded", retry_after_s=STARTING_RETRY_S
            )
        if not self._is_connected:
            raise ApiError(
                503,
                "The store does not answer, so no request can be taken now.",
                "store_unavailable",
                retry_after_s=STARTING_RETRY_S,
            )
        return self.front

    def abort_later(self, engine_ids: list[str], after_s: float) -> None:
        """Ends requests whose client left and may come back, unless somebody has resumed them."""
        streams = self.client.reader.streams_of(engine_ids)

        async def wait() -> None:
            await asyncio.sleep(after_s)
            # A stream that was resumed, even here, is another object by now.
            open_now = set(map(id, self.client.reader.streams))
            ids = [s.request_id for s in streams if id(s) in open_now]
            self.client.dispatcher.abort(ids)
            if self.front is not None:
                self.front.llm.left.aborted(ids)

        task = asyncio.create_task(wait(), name="detached requests")
        self._detached.add(task)
        task.add_done_callback(self._detached.discard)

    def expire(self, request_id: str) -> None:
        """Shortens the life of an ended request's record to that of its log, a bit later."""
        self._ended.append(request_id)

    async def _expire(self) -> None:
        """One round trip a second for all requests that have ended."""
        while True:
            await asyncio.sleep(EXPIRE_EVERY_S)
            ended, self._ended = self._ended, []
            if not ended:
                continue
            pipe = self.client.store.pipeline(transaction=False)
            for request_id in ended:
                pipe.expire(request_key(request_id), self.client.times.ended_s)
            try:
                await pipe.execute()
            except (redis.RedisError, OSError, TimeoutError):
                # They go by themselves after `live_s`.
                logger.info("%d records of ended requests live on for a while", len(ended))

    def _load_alone(self) -> "FrontEnd":
        # vLLM's configuration of the moment belongs to the process: one pool loads at a time.
        with _loading:
            return self._load_front(self.client)

    async def _load(self) -> None:
        front = await self._loaded()
        self.client.sink.sink = front.llm
        self._missing = "the store does not answer"
        # Its model is offered from here on: whoever then asks for it must not be sent away.
        try:
            while not self._is_connected:  # noqa: ASYNC110 - neither way has an event for it
                await asyncio.sleep(CONNECTED_LOOK_S)
        except asyncio.CancelledError:
            await asyncio.to_thread(front.llm.shutdown)
            raise
        self.front = front
        logger.info("the front end is ready: %s", self.model_name)

    async def _loaded(self) -> "FrontEnd":
        """Tries until the front end is loaded."""
        while True:
            try:
                return await asyncio.to_thread(self._load_alone)
            except Exception as error:
                known = f": {error}" if isinstance(error, ConfigError) else ""
                self._missing = f"the front end cannot load: {type(error).__name__}{known}"
                logger.exception("the front end cannot load; trying again in %s s", LOAD_RETRY_S)
                await asyncio.sleep(LOAD_RETRY_S)


def _load_front_end(client: PoolClient) -> "FrontEnd":
    """Imports and loads vLLM's front end; blocking."""
    model = resolve_model(client.config)
    if model.folder is not None:
        # Nothing is to be fetched for a folder, and without a network each try costs seconds.
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # Its own handlers would write past our filter for secrets.
    os.environ["VLLM_CONFIGURE_LOGGING"] = "0"
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    # Millions of objects are made at import and none dies: collecting would only cost a second.
    gc.disable()
    try:
        from controlplane.gateway.frontend import serving

        front = serving.load(
            serving.FrontEndSettings(
                model_path=model.path,
                served_model_name=model.name,
                max_model_len=client.config.max_model_len,
                tool_parser=settings.TOOL_PARSER,
                reasoning_parser=settings.REASONING_PARSER,
            ),
            client,
        )
    finally:
        gc.enable()
    # What is loaded stays; later collections need not walk through it.
    gc.freeze()
    return front
