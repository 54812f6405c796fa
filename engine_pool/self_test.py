"""Moves a request of the pool's own between two engines and compares it with one that stayed.

A greedy request runs once at one instance and once more, moved in mid-answer; every token must be
the same. It goes the way of any other request: engine, token log, agents. Whoever runs it decides
what a difference means (move_steward.py).
"""

import asyncio
import time
import uuid
from dataclasses import asdict
from typing import Final, Protocol

import redis.asyncio

from engine_pool.errors import EngineFailed
from engine_pool.move_facts import SelfTest
from engine_pool.token_log import (
    TokenFrame,
    TokenLogReader,
    log_key,
    request_key,
    route_key,
    token_channel,
)
from engine_pool.types import InstanceName
from engine_pool.view import read_ended_move
from migration.wish import MoveWish

PROMPT_TOKENS: Final = 300
"""Above two blocks of the largest usual size (128), so that copies and a pause are needed."""
OUTPUT_TOKENS: Final = 32
"""Enough to be moved in the middle; a second or two at a slow engine."""
MOVE_AFTER_TOKENS: Final = 4
TIMEOUT_S: Final = 60.0
"""Of each half: a CPU engine that is busy decodes a few tokens a second."""
POLL_S: Final = 0.02
REPORT_WAIT_S: Final = 5.0
"""The last report waits for a few of the destination's tokens, or 3 s."""


class TestedEngine(Protocol):
    """An engine actor as the test uses it. Raises: EngineFailed."""

    actor: str

    async def submit_probe(self, request_id: str, prompt_tokens: int, max_tokens: int) -> None: ...

    async def migrate(self, wish: dict[str, object]) -> tuple[str, str] | None: ...


class Side(Protocol):
    """An instance that serves."""

    @property
    def instance(self) -> InstanceName: ...

    @property
    def incarnation(self) -> str: ...

    @property
    def engine(self) -> TestedEngine: ...


class SelfTestFailed(Exception):
    """The test could not be carried out, or its answer differs; the message says what."""


async def run_self_test(
    store: "redis.asyncio.Redis[bytes]", log: TokenLogReader, source: Side, destination: Side
) -> SelfTest:
    """Runs the test; a minute at most. Raises: redis.RedisError."""
    request_id = f"self-test-{uuid.uuid4().hex[:12]}"
    test = _Run(store, log, request_id)
    ok, detail, downtime_ms = False, "", None
    try:
        stayed = await test.answer(source, None)
        moved = await test.answer(source, destination)
        detail = _difference(stayed, moved, destination.instance)
        ok = not detail
        downtime_ms = await test.downtime_ms()
        detail = detail or f"{len(_tokens(moved))} tokens, all the same after the move"
    except (SelfTestFailed, EngineFailed, TimeoutError) as error:
        detail = str(error) or "it did not end in time"
    finally:
        await test.clean()
    return SelfTest(time.time(), ok, detail, source.instance, destination.instance, downtime_ms)


class _Run:
    def __init__(
        self, store: "redis.asyncio.Redis[bytes]", log: TokenLogReader, request_id: str
    ) -> None:
        self._store = store
        self._log = log
        self._id = request_id
        self._migration_id = uuid.uuid4().hex[:12]

    async def answer(self, source: Side, destination: Side | None) -> list[TokenFrame]:
        """Returns the answer's frames, moved to `destination` in mid-answer unless that is None."""
        await self.clean()
        await self._log.open([self._id], token_channel("self-test"))
        async with asyncio.timeout(TIMEOUT_S):
            await source.engine.submit_probe(self._id, PROMPT_TOKENS, OUTPUT_TOKENS)
            if destination is not None:
                await self._read_until(MOVE_AFTER_TOKENS)
                await self._move(source, destination)
            return await self._read_until(OUTPUT_TOKENS)

    async def downtime_ms(self) -> float | None:
        """Returns the pause that the move's report tells, None when it does not come."""
        for _ in range(int(REPORT_WAIT_S / POLL_S)):
            report = await read_ended_move(self._store, self._migration_id)
            if report is not None:
                return report.downtime_ms
            await asyncio.sleep(POLL_S)
        return None

    async def clean(self) -> None:
        """Removes what the store has of the request."""
        await self._store.unlink(log_key(self._id), route_key(self._id), request_key(self._id))

    async def _move(self, source: Side, destination: Side) -> None:
        wish = MoveWish(
            migration_id=self._migration_id,
            request_id=self._id,
            destination=destination.instance,
            destination_incarnation=destination.incarnation,
            destination_actor=destination.engine.actor,
            asked_by="self-test",
            reason="the pool's start: does a moved answer stay the same?",
        )
        refused = await source.engine.migrate(asdict(wish))
        if refused is not None:
            raise SelfTestFailed(f"the move was refused: {refused[1]}")

    async def _read_until(self, tokens: int) -> list[TokenFrame]:
        frames: list[TokenFrame] = []
        after: str | None = None
        while not frames or (frames[-1].end < tokens and not frames[-1].is_last):
            new, at = await self._log.read_after(self._id, after_entry=after)
            frames += new
            after = at or after
            if not new:
                await asyncio.sleep(POLL_S)
        if (error := frames[-1].error) is not None:
            raise SelfTestFailed(f"the request failed: {error.message}")
        return frames


def _tokens(frames: list[TokenFrame]) -> list[int]:
    return [token for frame in frames for token in frame.token_ids]


def _difference(stayed: list[TokenFrame], moved: list[TokenFrame], destination: str) -> str:
    """Returns what is wrong with the moved answer, "" when it is right."""
    expected, got = _tokens(stayed), _tokens(moved)
    if not any(frame.instance == destination for frame in moved):
        return "the request ended before it was moved"
    for index, (one, other) in enumerate(zip(expected, got, strict=False)):
        if one != other:
            return f"output token {index} differs: {one} without, {other} with a move"
    if len(expected) != len(got):
        return f"{len(expected)} tokens without, {len(got)} with a move"
    return ""
