"""Calls of one script that share round trips: what comes while one is under way goes with the next.

A single request waits for nothing; a burst costs a few round trips instead of one each, in the
order in which it came. A pool of connections would let newcomers pass those who wait for one.
"""

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import redis

if TYPE_CHECKING:
    from redis.asyncio import Redis

logger = logging.getLogger(__name__)

BATCH_MAX: Final = 64
"""Calls of one round trip: a few ms of the store's time."""

Args = Sequence[str | int]


class BatchedScript:
    """One a script and web process."""

    def __init__(self, store: "Redis[bytes]", script: str, timeout_s: float) -> None:
        self._store = store
        self._script = script
        self._sha = hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
        self._timeout_s = timeout_s
        self._waiting: deque[tuple[Args, asyncio.Future[Any]]] = deque()
        self._flight: asyncio.Task[None] | None = None

    async def call(self, args: Args) -> Any:
        """Returns the script's answer. Raises: redis.RedisError, OSError, TimeoutError."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((args, answer))
        if self._flight is None:
            self._flight = asyncio.create_task(self._fly(), name="batched script")
        async with asyncio.timeout(self._timeout_s):
            return await answer

    async def aclose(self) -> None:
        """Waits for what is under way."""
        if self._flight is not None:
            await asyncio.wait({self._flight}, timeout=self._timeout_s)

    async def _fly(self) -> None:
        try:
            while self._waiting:
                await self._send([self._waiting.popleft() for _ in range(self._next_size())])
        finally:
            self._flight = None

    def _next_size(self) -> int:
        return min(BATCH_MAX, len(self._waiting))

    async def _send(self, batch: list[tuple[Args, asyncio.Future[Any]]]) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                answers = await self._execute([args for args, _ in batch])
        except (redis.RedisError, OSError, TimeoutError) as error:
            logger.warning("not answered: %s", error or type(error).__name__)
            # Whoever waits behind them would only wait in vain too.
            for _, answer in (*batch, *self._waiting):
                if not answer.done():
                    answer.set_exception(error)
            self._waiting.clear()
            return
        for (_, answer), found in zip(batch, answers, strict=True):
            if answer.done():
                continue
            if isinstance(found, Exception):
                answer.set_exception(found)
            else:
                answer.set_result(found)

    async def _execute(self, batch: Sequence[Args]) -> list[Any]:
        answers = await self._try(batch)
        if any(isinstance(answer, redis.exceptions.NoScriptError) for answer in answers):
            # The store was started anew; none of the batch has run.
            await self._store.script_load(self._script)
            answers = await self._try(batch)
        return answers

    async def _try(self, batch: Sequence[Args]) -> list[Any]:
        pipe = self._store.pipeline(transaction=False)
        for args in batch:
            pipe.evalsha(self._sha, 0, *args)
        found: list[Any] = await pipe.execute(raise_on_error=False)
        return found
