"""Moves a request of the pool's own between two engines and compares it with one that stayed.

A greedy request is moved in mid-answer and ended a few tokens later; then the same request runs at
its first instance, unmoved: every token must be the same. It goes the way of any other request:
engine, token log, agents. Whoever runs it decides what a difference means (move_steward.py).
"""

import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict
from typing import Final, Protocol

import redis.asyncio

from engine_pool.errors import EngineFailed
from engine_pool.move_facts import SelfTest
from engine_pool.pool_keys import FIRST, PoolKeys
from engine_pool.token_log import (
    TokenFrame,
    TokenLogReader,
    log_key,
    route_key,
    token_channel,
)
from engine_pool.types import InstanceName
from engine_pool.view import read_ended_move
from migration.report import MoveReport, MoveState
from migration.wish import SELF_TEST, MoveWish

PROMPT_TOKENS: Final = 300
"""Above two blocks of the largest usual size (128), so that copies and a pause are needed."""
LONGEST_TOKENS: Final = 1000
"""Output tokens at most: it is ended after its move, long before."""
MOVE_AFTER_TOKENS: Final = 4
TOKENS_AFTER: Final = 12
"""Tokens of the destination that are compared: a wrong block shows in the first ones."""
TIMEOUT_S: Final = 60.0
"""Of each half: a CPU engine that is busy decodes a few tokens a second."""
POLL_S: Final = 0.02
REPORT_WAIT_S: Final = 5.0
"""The last report of a move waits for a few of the destination's tokens, or 3 s."""


class ProbedEngine(Protocol):
    """An engine actor as the test uses it. Raises: EngineFailed."""

    @property
    def actor(self) -> str: ...

    async def submit_probe(self, request_id: str, prompt_tokens: int, max_tokens: int) -> None: ...

    async def migrate(self, wish: dict[str, object]) -> tuple[str, str] | None: ...

    async def abort(self, request_ids: list[str]) -> None: ...


class Side(Protocol):
    """An instance that serves."""

    @property
    def instance(self) -> InstanceName: ...

    @property
    def incarnation(self) -> str: ...

    @property
    def engine(self) -> ProbedEngine: ...


Enough = Callable[[list[TokenFrame]], bool]


class Unfinished(Exception):
    """The test could not be carried out; the message says why."""


async def run_self_test(
    store: "redis.asyncio.Redis[bytes]",
    log: TokenLogReader,
    source: Side,
    destination: Side,
    *,
    keys: PoolKeys = FIRST,
) -> SelfTest:
    """Runs the test; two minutes at most. Raises: redis.RedisError."""
    test = _Run(store, log, f"self-test-{uuid.uuid4().hex[:12]}", keys)
    ok, is_conclusive, detail = False, True, ""
    try:
        moved = await test.moved(source, destination)
        await test.end_moved(destination)
        stayed = await test.stayed(source, len(moved))
        await test.await_report()
        detail = _difference(stayed, moved)
        ok = not detail
        if detail and await test.stayed(source, len(moved)) != stayed:
            raise Unfinished("an unmoved answer does not repeat itself here, so nothing compares")
        detail = detail or f"{len(moved)} tokens, all the same with a move"
    except (Unfinished, EngineFailed, TimeoutError) as error:
        is_conclusive, detail = False, str(error) or "it did not end in time"
    finally:
        await test.clean(source, destination)
    return SelfTest(
        time.time(),
        ok,
        detail,
        source.instance,
        destination.instance,
        test.report.downtime_ms if test.report else None,
        is_conclusive,
    )


class _Run:
    def __init__(
        self,
        store: "redis.asyncio.Redis[bytes]",
        log: TokenLogReader,
        request_id: str,
        keys: PoolKeys,
    ) -> None:
        self._store = store
        self._keys = keys
        self._log = log
        self._id = request_id
        self._migration_id = uuid.uuid4().hex[:12]
        self.report: MoveReport | None = None
        """Of the move, once it has ended."""

    async def moved(self, source: Side, destination: Side) -> list[int]:
        """Returns the tokens of a moved answer up to some of the destination's."""
        async with asyncio.timeout(TIMEOUT_S):
            await self._begin(source, LONGEST_TOKENS)
            await self._read_until(lambda frames: frames[-1].end >= MOVE_AFTER_TOKENS)
            await self._move(source, destination)
            name = destination.instance
            frames = await self._read_until(
                lambda frames: (
                    sum(f.instance == name for f in frames) >= TOKENS_AFTER or self._is_aborted()
                )
            )
        if self._is_aborted() and self.report is not None:
            raise Unfinished(f"the move was aborted: {self.report.abort_reason}")
        if not any(frame.instance == name for frame in frames):
            raise Unfinished("the request ended before it was moved")
        return [token for frame in frames for token in frame.token_ids]

    async def end_moved(self, destination: Side) -> None:
        """Ends the moved request and waits for that: it would go on in the log of the next one of
        its name."""
        async with asyncio.timeout(TIMEOUT_S):
            await destination.engine.abort([self._id])
            await self._read_until(lambda frames: frames[-1].is_last)

    async def stayed(self, source: Side, tokens: int) -> list[int]:
        """Returns as many tokens of the same request, unmoved."""
        await self.clean(source)
        async with asyncio.timeout(TIMEOUT_S):
            await self._begin(source, tokens)
            frames = await self._read_until(lambda frames: frames[-1].end >= tokens)
        return [token for frame in frames for token in frame.token_ids]

    async def await_report(self) -> None:
        """Waits for the move's last report, which tells the pause; not for ever."""
        give_up_s = time.monotonic() + REPORT_WAIT_S
        while self.report is None and time.monotonic() < give_up_s:
            self.report = await read_ended_move(self._store, self._migration_id, self._keys)
            await asyncio.sleep(POLL_S)

    async def clean(self, *sides: Side) -> None:
        """Ends the request wherever it runs and removes what the store has of it."""
        for side in sides:
            try:
                await side.engine.abort([self._id])
            except EngineFailed:
                continue  # it died, and the request with it
        await self._store.unlink(log_key(self._id), route_key(self._id))

    async def _begin(self, source: Side, max_tokens: int) -> None:
        await self._log.open([self._id], token_channel(SELF_TEST))
        await source.engine.submit_probe(self._id, PROMPT_TOKENS, max_tokens)

    async def _move(self, source: Side, destination: Side) -> None:
        wish = MoveWish(
            migration_id=self._migration_id,
            request_id=self._id,
            destination=destination.instance,
            destination_incarnation=destination.incarnation,
            destination_actor=destination.engine.actor,
            asked_by=SELF_TEST,
            reason="the pool's start: does a moved answer stay the same?",
        )
        refused = await source.engine.migrate(asdict(wish))
        if refused is not None:
            raise Unfinished(f"the move was refused: {refused[1]}")

    async def _read_until(self, is_enough: Enough) -> list[TokenFrame]:
        frames: list[TokenFrame] = []
        after: str | None = None
        while not frames or not (is_enough(frames) or frames[-1].is_last):
            new, at = await self._log.read_after(self._id, after_entry=after)
            frames += new
            after = at or after
            if not new:
                self.report = await read_ended_move(self._store, self._migration_id, self._keys)
                await asyncio.sleep(POLL_S)
        if (error := frames[-1].error) is not None:
            raise Unfinished(f"the request failed: {error.message}")
        return frames

    def _is_aborted(self) -> bool:
        return self.report is not None and self.report.state is MoveState.ABORTED


def _difference(stayed: list[int], moved: list[int]) -> str:
    """Returns what is wrong with the moved answer, "" when it is right."""
    for index, (one, other) in enumerate(zip(stayed, moved, strict=False)):
        if one != other:
            return f"output token {index} differs: {one} without, {other} with a move"
    if len(stayed) < len(moved):
        return f"{len(stayed)} tokens without, {len(moved)} with a move"
    return ""
