"""What a web process knows of the pool, and its way to the engines: the one door between them.

`pool_client()` is the process's one client. It owns the live view, and everything that reads or
writes the token logs for this process.
"""

import asyncio
import functools
import os
import uuid

import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from engine_pool.config import PoolConfig
from engine_pool.live_view import LiveView


class PoolClient:
    """One a web process. `start` before anything else, in the event loop that goes on using it."""

    def __init__(self, config: PoolConfig) -> None:
        self.config = config
        self.web_process = uuid.uuid4().hex
        self.store = connect_store(config)
        self.view = LiveView(self.store)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begins to follow the pool. Returns at once, also when the store does not answer yet."""
        if not self._tasks:
            self._tasks = [asyncio.create_task(self.view.run(), name="live view")]

    async def stop(self) -> None:
        """Ends what `start` began and closes the connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self.store.aclose()


@functools.cache
def pool_client() -> PoolClient:
    """Returns this process's client, set up from the environment. Raises: ConfigError."""
    return PoolClient(PoolConfig.from_env(os.environ))


def connect_store(config: PoolConfig) -> "redis.asyncio.Redis[bytes]":
    """Returns a connection pool on the store. Sends nothing yet; no call retries by itself."""
    store: redis.asyncio.Redis[bytes] = redis.asyncio.Redis.from_url(
        config.redis_url,
        socket_connect_timeout=config.store_timeout_s,
        socket_timeout=config.store_timeout_s,
        # Who calls decides what a failure means; silent retries would add up to a hang.
        retry=Retry(NoBackoff(), 0),
    )
    return store
