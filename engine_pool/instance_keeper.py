"""Keeps one instance alive: starts its engine, watches it, and starts it anew after a death.

One task an instance. What follows from what is policy (lifecycle, health); this is the acting part.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol

from engine_pool.board import Board
from engine_pool.config import PoolConfig
from engine_pool.errors import EngineFailed
from engine_pool.policy import health, lifecycle
from engine_pool.policy.lifecycle import Trigger
from engine_pool.ports import Pong
from engine_pool.types import InstanceName, InstanceState, InstanceStatus

log = logging.getLogger(__name__)

PING_INTERVAL_S: Final = 1.0
RSS_CHANGE: Final = 0.05
"""A memory size is reported again when it has changed by this share."""
DRAIN_MAX_S: Final = 300.0
"""Longest wait for the requests of an instance that is not wanted any more; what is left then ends
with a typed error. Above nearly all answers; most move away long before."""
STOP_TIMEOUT_S: Final = 1.5
"""How long an engine may take to end its streams; the supervisor kills the pool after 3 s."""


class EngineHandle(Protocol):
    """An engine actor; launcher.RayEngine, or a fake in tests. Failures are EngineFailed."""

    actor: str

    async def start(self, timeout_s: float) -> Pong: ...

    async def ping(self, timeout_s: float) -> Pong: ...

    async def wait_end(self) -> str: ...

    async def stop(self, timeout_s: float) -> None: ...

    def kill(self) -> None: ...


class EngineLauncher(Protocol):
    def launch(self, instance: InstanceName, incarnation: str) -> EngineHandle: ...


class InstanceKeeper:
    """Owns one instance. `run` until cancelled, then `stop`."""

    def __init__(
        self,
        status: InstanceStatus,
        config: PoolConfig,
        launcher: EngineLauncher,
        board: Board,
        starts: asyncio.Semaphore,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`status` is STOPPED; `starts` bounds how many engines start at the same time."""
        self.status = status
        self._config = config
        self._launcher = launcher
        self._board = board
        self._starts = starts
        self._clock = clock
        self._wall_clock = wall_clock
        self._handle: EngineHandle | None = None
        self._failures = 0
        self._serving_since_s: float | None = None

    @property
    def handle(self) -> EngineHandle | None:
        """The engine's, from its start to its end."""
        return self._handle

    def adopt(self, handle: EngineHandle, pong: Pong) -> None:
        """Takes over an engine that a former pool process started and that serves."""
        self._handle = handle
        self.status = replace(self.status, incarnation=pong.incarnation, actor=handle.actor)
        self._move(Trigger.START, "found running")
        cause = "went on serving while the pool process was restarted"
        self._note_serving(pong, cause)
        self._event("instance_adopted", "was found running", cause)

    async def run(self) -> None:
        while True:
            try:
                handle = self._handle or await self._bring_up()
                why = await self._watch(handle)
            except EngineFailed as error:
                why = str(error)
            await self._restart_later(why)

    async def retire(self) -> None:
        """Takes no new requests, waits until the others have moved away or ended, then stops. Call
        it when `run` has been cancelled."""
        if self.status.state is InstanceState.SERVING and self._handle is not None:
            self._move(Trigger.DRAIN, "the pool has fewer instances now")
            left = await self._wait_until_empty(self._handle)
            cause = f"{left} requests were ended" if left else "it was empty"
        else:
            cause = f"it was {self.status.state.value}"
        self._event("instance_retired", "is not wanted any more", cause)
        await self.stop()

    async def _wait_until_empty(self, handle: EngineHandle) -> int:
        """Returns how many requests are left, which is none unless it takes too long."""
        give_up_s = self._clock() + DRAIN_MAX_S
        while True:
            # What was sent before everybody knew comes within this time.
            await asyncio.sleep(PING_INTERVAL_S)
            try:
                pong = await handle.ping(self._config.lost_after_s)
            except EngineFailed:
                return 0
            left = pong.running + pong.waiting
            if not left or self._clock() >= give_up_s:
                return left

    async def stop(self) -> None:
        """Ends the engine and its streams. Call it when `run` has been cancelled."""
        if self.status.state in (InstanceState.STOPPED, InstanceState.LOST):
            return
        self._move(Trigger.STOP, "the pool is stopped")
        if self._handle is not None:
            await self._handle.stop(STOP_TIMEOUT_S)
            self._handle = None
        self._move(Trigger.EXITED, "the pool was stopped")

    async def _bring_up(self) -> EngineHandle:
        incarnation = uuid.uuid4().hex[:12]
        restarts = self.status.restarts
        cause = "first start" if self._failures == 0 else f"restart {restarts}"
        self.status = replace(
            self.status, incarnation=incarnation, actor="", pid=None, rss_bytes=None
        )
        if self._starts.locked():
            self._move(Trigger.START, f"{cause}, waits until another instance has started")
        else:
            self._move(Trigger.START, f"{cause}, loads the model")
        async with self._starts:
            began_s = self._clock()
            self._put(cause=f"{cause}, loads the model")
            self._event("instance_starting", "starts", cause)
            handle = self._launcher.launch(self.status.instance, incarnation)
            self._handle = handle
            self.status = replace(self.status, actor=handle.actor)
            pong = await self._start_or_end(handle)
        took = f"ready after {self._clock() - began_s:.1f} s"
        self._note_serving(pong, took)
        self._event("instance_serving", "serves", took)
        return handle

    async def _start_or_end(self, handle: EngineHandle) -> Pong:
        """Waits until the engine has started or its process has ended. Raises: EngineFailed."""
        start = asyncio.ensure_future(handle.start(self._config.start_timeout_s))
        end = asyncio.ensure_future(handle.wait_end())
        try:
            await asyncio.wait((start, end), return_when=asyncio.FIRST_COMPLETED)
            if start.done():
                return start.result()
            raise EngineFailed(f"{end.result()} while it started")
        finally:
            start.cancel()
            end.cancel()

    async def _watch(self, handle: EngineHandle) -> str:
        """Returns why the engine cannot be relied on any more, in words."""
        end = asyncio.ensure_future(handle.wait_end())
        pings = asyncio.ensure_future(self._ping(handle))
        try:
            done, _ = await asyncio.wait((end, pings), return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            end.cancel()
            pings.cancel()

    async def _ping(self, handle: EngineHandle) -> str:
        progress: health.Progress | None = None
        while True:
            await asyncio.sleep(PING_INTERVAL_S)
            pong = await handle.ping(self._config.lost_after_s)
            now_s = self._clock()
            progress = health.advance(
                progress, steps_total=pong.steps_total, running=pong.running, now_s=now_s
            )
            stalled_s = health.stalled_s(progress, now_s)
            if stalled_s >= self._config.stalled_after_s:
                return f"no step for {stalled_s:.0f} s with {pong.running} requests running"
            known = self.status.rss_bytes or 0
            if abs(pong.rss_bytes - known) > RSS_CHANGE * known:
                self._put(rss_bytes=pong.rss_bytes)

    async def _restart_later(self, why: str) -> None:
        served_s = 0.0 if self._serving_since_s is None else self._clock() - self._serving_since_s
        self._serving_since_s = None
        self._failures = lifecycle.failures_in_a_row(self._failures, served_s)
        delay_s = lifecycle.restart_delay_s(
            self._failures, self._config.restart_backoff_s, self._config.restart_backoff_max_s
        )
        handle, self._handle = self._handle, None
        if handle is not None:
            # It may hang or be half alive: nothing of it may go on beside its successor.
            handle.kill()
        self.status = replace(self.status, restarts=self.status.restarts + 1)
        self._move(Trigger.FAILED, f"{why}, restart in {delay_s:g} s")
        self._event("instance_lost", "was lost", self.status.cause, "bad")
        await asyncio.sleep(delay_s)

    def _note_serving(self, pong: Pong, cause: str) -> None:
        self._serving_since_s = self._clock()
        self.status = replace(
            self.status,
            node=pong.node,
            pid=pong.pid,
            rss_bytes=pong.rss_bytes,
            max_model_len=pong.max_model_len,
        )
        self._move(Trigger.READY, cause)

    def _move(self, trigger: Trigger, cause: str) -> None:
        state = lifecycle.next_state(self.status.state, trigger)
        log.info("%s is %s: %s", self.status.instance, state.value, cause)
        self._put(state=state, cause=cause, since_unix_s=self._wall_clock())

    def _put(self, **changes: object) -> None:
        self.status = replace(self.status, **changes)  # type: ignore[arg-type]
        self._board.put_status(self.status)

    def _event(self, kind: str, verb: str, detail: str, severity: str = "info") -> None:
        instance = self.status.instance
        self._board.put_event(kind, f"{instance} {verb}", detail, instance, severity)
