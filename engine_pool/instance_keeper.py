"""Keeps one instance as it is wanted: starts its engine, watches it, drains and ends it, starts it
anew after a death.

One task an instance. What follows from what is policy (wishes, lifecycle, health); this is the
acting part. What is wanted is looked at in every turn, so it may change at any time.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from engine_pool.config import PoolConfig
from engine_pool.engine_handle import EngineHandle, EngineLauncher
from engine_pool.engine_look import EngineLook
from engine_pool.errors import EngineFailed
from engine_pool.instance_record import InstanceRecord, Notices
from engine_pool.instance_steps import CORDONED, DRAINING, InstanceSteps
from engine_pool.instance_wishes import InstanceWishes
from engine_pool.instance_words import drain_words, failure_cause, start_words
from engine_pool.oom import oom_kills
from engine_pool.policy import lifecycle
from engine_pool.policy.lifecycle import Trigger
from engine_pool.policy.wishes import (
    NOTHING,
    Facts,
    InstanceWish,
    Step,
    WantedState,
    in_words,
    is_renewal_due,
    next_step,
)
from engine_pool.ports import Pong
from engine_pool.types import CRASH_LOOP_FAILURES, InstanceState, InstanceStatus

log = logging.getLogger(__name__)

PING_INTERVAL_S: Final = 1.0
RSS_CHANGE: Final = 0.05
"""A memory size is reported again when it has changed by this share."""
STOP_TIMEOUT_S: Final = 1.5
"""How long an engine may take to end its streams; the supervisor kills the pool after 3 s."""


class InstanceKeeper:
    """Owns one instance. `run` until cancelled, then `stop`."""

    def __init__(
        self,
        status: InstanceStatus,
        config: PoolConfig,
        launcher: EngineLauncher,
        board: Notices,
        starts: asyncio.Semaphore,
        *,
        obstacle: Callable[[], str] = lambda: "",
        oom_kills: Callable[[], int] = oom_kills,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`status` is STOPPED; `starts` bounds how many engines start at the same time;
        `obstacle`: why its requests do not move away; `oom_kills`: see oom.py."""
        self._record = InstanceRecord(status, board, wall_clock)
        self._config = config
        self._launcher = launcher
        self._starts = starts
        self._steps = InstanceSteps(self._record, obstacle, wall_clock)
        self._oom_kills = oom_kills
        self._clock = clock
        self._wall_clock = wall_clock
        self._handle: EngineHandle | None = None
        self._look = EngineLook()
        self._wishes = InstanceWishes(status.instance)
        self._woken = asyncio.Event()
        self._failures = 0
        self._failed_unix_s: float | None = None
        self._last_failure = ""
        self._retry_at_s = 0.0
        self._serving_since_s: float | None = None

    @property
    def status(self) -> InstanceStatus:
        return self._record.status

    @property
    def handle(self) -> EngineHandle | None:
        """The engine's, from its start to its end."""
        return self._handle

    def use(
        self,
        config: PoolConfig,
        pools: InstanceWish = NOTHING,
        ending_nodes: Mapping[str, InstanceWish] | None = None,
    ) -> None:
        """Goes on with these settings and wishes (InstanceWishes.use)."""
        self._config = config
        self._wishes.use(config, pools, ending_nodes or {})
        self._woken.set()

    def adopt(self, handle: EngineHandle, pong: Pong) -> None:
        """Takes over an engine that a former pool process started and that serves, or is cordoned
        or drained."""
        self._handle = handle
        self._look = EngineLook(pong=pong)
        self._record.status = replace(
            self.status, incarnation=pong.incarnation, actor=handle.actor, drain=None
        )
        if pong.door and not self._config.knows_wishes:
            wanted = WantedState.CORDONED if pong.door == CORDONED else WantedState.DRAINED
            self._wishes.keep_as_found(wanted)
        cause = "went on serving while the pool process was restarted"
        self._record.move(Trigger.START, "found running")
        self._note_serving(pong, cause, pong.launched_unix_s)
        if pong.door:
            trigger = Trigger.CORDON if pong.door == CORDONED else Trigger.DRAIN
            self._record.move(trigger, f"was {pong.door} before the pool process started")
        self._record.event("instance_adopted", "was found running", cause)

    async def run(self) -> None:
        while True:
            try:
                if self._handle is None:
                    await self._until_start()
                    await self._bring_up()
                if self._handle is not None and (why := await self._watch(self._handle)):
                    raise EngineFailed(why)
            except EngineFailed as error:
                self._note_failure(str(error))

    async def stop(self) -> None:
        """Ends the engine and its streams. Call it when `run` has been cancelled."""
        if self.status.state in (InstanceState.STOPPED, InstanceState.LOST):
            return
        await self._end_engine("the pool is stopped", "the pool was stopped")

    def _wish(self) -> InstanceWish:
        return self._wishes.now(
            self.status.node,
            has_engine=self._handle is not None,
            engines_own=self._look.own_wish,
        )

    def _next(self, wish: InstanceWish) -> Step:
        has_engine = self._handle is not None
        pong = self._look.pong
        return next_step(
            wish,
            Facts(
                state=self.status.state,
                now_unix_s=self._wall_clock(),
                engine_started_unix_s=self.status.engine_started_unix_s if has_engine else None,
                door=pong.door if pong is not None else "",
                empty_since_unix_s=self._look.empty_since_unix_s,
                leftover_done_unix_s=self._look.leftover_done_unix_s,
                is_retry_due=asyncio.get_running_loop().time() >= self._retry_at_s,
                failed_unix_s=self._failed_unix_s,
            ),
        )

    def _show(self, wish: InstanceWish) -> None:
        self._record.put(wanted=wish.wanted.value, wanted_by=wish.by, wanted_reason=wish.reason)

    async def _wait(self, longest_s: float | None) -> None:
        """Waits until something is wanted anew, or so long."""
        try:
            async with asyncio.timeout(longest_s):
                await self._woken.wait()
        except TimeoutError:
            return
        self._woken.clear()

    async def _until_start(self) -> None:
        """Waits until an engine is wanted and, after a failure, its time has come."""
        while True:
            wish = self._wish()
            self._show(wish)
            match self._next(wish):
                case Step.START:
                    if is_renewal_due(wish, self._failed_unix_s):
                        self._failures = 0
                    return
                case Step.STOP:
                    cause = f"not started again, {in_words(wish)}; it ended: {self._last_failure}"
                    self._record.move(Trigger.STOP, cause)
                case _ if self.status.engine_started_unix_s is None and not self._last_failure:
                    self._record.put(cause=f"not started, {in_words(wish)}")
            is_lost = self.status.state is InstanceState.LOST
            left_s = self._retry_at_s - asyncio.get_running_loop().time()
            await self._wait(max(0.0, left_s) if is_lost else None)

    async def _bring_up(self) -> None:
        """Starts an engine and waits until it serves; ends it where it is not wanted any more.
        Raises: EngineFailed."""
        cause = start_words(self.status, self._failures)
        blank: dict[str, object] = {
            "incarnation": uuid.uuid4().hex[:12],
            "actor": "",
            "pid": None,
            "rss_bytes": None,
            "drain": None,
            "failures": self._failures,
            "engine_started_unix_s": None,
            "is_outdated": False,
        }
        waits = ", waits until another instance has started"
        words = f"{cause}{waits}" if self._starts.locked() else f"{cause}, loads the model"
        self._last_failure = ""
        self._look = EngineLook()
        self._record.move(Trigger.START, words, **blank)
        if not await self._gets_turn():
            await self._end_engine("not wanted any more", in_words(self._wish()))
            return
        try:
            began_s, began_unix_s = self._clock(), self._wall_clock()
            self._record.put(cause=f"{cause}, loads the model", engine_started_unix_s=began_unix_s)
            self._record.event("instance_starting", "starts", cause)
            handle = self._launcher.launch(self.status.instance, self.status.incarnation)
            self._handle = handle
            self._record.put(actor=handle.actor)
            pong = await self._start_or_end(handle)
        finally:
            self._starts.release()
        if pong is None:
            await self._end_engine("its start is broken off", in_words(self._wish()))
            return
        took = f"ready after {self._clock() - began_s:.1f} s"
        await self._open_for_business(handle, pong, took, began_unix_s)

    async def _gets_turn(self) -> bool:
        """Waits for its turn to start; False: it is not wanted any more."""
        turn = asyncio.ensure_future(self._starts.acquire())
        try:
            return await self._unless_stopped(turn)
        finally:
            turn.cancel()

    async def _start_or_end(self, handle: EngineHandle) -> Pong | None:
        """Waits until the engine has started or its process has ended. None: it is not wanted any
        more. Raises: EngineFailed."""
        start = asyncio.ensure_future(handle.start(self._config.start_timeout_s))
        end = asyncio.ensure_future(handle.wait_end())
        try:
            if not await self._unless_stopped(start, end):
                return None
            if start.done():
                return start.result()
            raise EngineFailed(f"{end.result()} while it started")
        finally:
            start.cancel()
            end.cancel()

    async def _unless_stopped(self, *work: "asyncio.Future[Any]") -> bool:
        """Waits for the first of them; False: the instance is to be stopped before."""
        while not any(one.done() for one in work):
            wish = self._wish()
            self._show(wish)
            if self._next(wish) is Step.STOP:
                return False
            woken = asyncio.ensure_future(self._woken.wait())
            try:
                await asyncio.wait((*work, woken), return_when=asyncio.FIRST_COMPLETED)
            finally:
                woken.cancel()
            self._woken.clear()
        return True

    async def _open_for_business(
        self, handle: EngineHandle, pong: Pong, cause: str, started_unix_s: float
    ) -> None:
        """Serves, unless something else is wanted: then its door is closed before anybody sees
        it."""
        # Its node's wish counts from here on.
        self._record.status = replace(self.status, node=pong.node)
        wanted = self._wish().wanted
        if wanted is not WantedState.SERVING:
            await handle.close_door(CORDONED if wanted is WantedState.CORDONED else DRAINING)
            pong = await handle.ping(self._config.lost_after_s)
        self._look.note(pong, self._clock(), self._wall_clock())
        self._note_serving(pong, cause, started_unix_s)
        if wanted is WantedState.CORDONED:
            self._record.move(Trigger.CORDON, in_words(self._wish()))
        elif wanted is not WantedState.SERVING:
            self._record.move(Trigger.DRAIN, in_words(self._wish()))
        self._record.event("instance_serving", "serves", cause)

    async def _watch(self, handle: EngineHandle) -> str:
        """Returns why the engine cannot be relied on any more, in words; "": it ended as
        wanted."""
        end = asyncio.ensure_future(handle.wait_end())
        turns = asyncio.ensure_future(self._turns(handle))
        try:
            await asyncio.wait((end, turns), return_when=asyncio.FIRST_COMPLETED)
            # The end of a process that was stopped is seen before, after or at once with the answer
            # to its stop: what was wanted is no failure.
            if self.status.state in (InstanceState.STOPPING, InstanceState.STOPPED):
                return await turns
            return end.result() if end.done() else turns.result()
        finally:
            end.cancel()
            turns.cancel()

    async def _turns(self, handle: EngineHandle) -> str:
        """Looks at the engine once a second, and whenever something is wanted anew."""
        while True:
            await self._wait(PING_INTERVAL_S)
            pong = await handle.ping(self._config.lost_after_s)
            self._look.oom_kills = self._oom_kills()
            stalled_s = self._look.note(pong, self._clock(), self._wall_clock())
            if stalled_s >= self._config.stalled_after_s:
                return f"no step for {stalled_s:.0f} s with {pong.running} requests running"
            self._note_pong(pong)
            wish = self._wish()
            self._show(wish)
            step = self._next(wish)
            try:
                await self._steps.take(step, wish, handle, self._look)
            except EngineFailed as error:
                # It answers pings, so it lives; the next turn tries again.
                log.warning("%s: %s", self.status.instance, error)
            if step is Step.STOP:
                words = drain_words(wish)
                self._record.event("instance_stopped", "is ended", words)
                await self._end_engine(words, words)
                return ""

    def _note_pong(self, pong: Pong) -> None:
        known = self.status.rss_bytes or 0
        if abs(pong.rss_bytes - known) > RSS_CHANGE * known:
            self._record.put(rss_bytes=pong.rss_bytes)
        self._record.put(is_outdated=pong.fingerprint != self._launcher.fingerprint)
        since_s = self._serving_since_s
        is_stable = since_s is not None and self._clock() - since_s >= lifecycle.STABLE_AFTER_S
        if self._failures and is_stable:
            self._failures = 0
            self._record.put(failures=0)

    async def _end_engine(self, why: str, after: str) -> None:
        """Ends the engine, whatever it does. `why`, `after`: causes of STOPPING and STOPPED."""
        if self.status.state is not InstanceState.STOPPING:
            self._record.move(Trigger.STOP, why)
        if self._handle is not None:
            await self._handle.stop(STOP_TIMEOUT_S)
            self._handle = None
        self._serving_since_s = None
        self._record.move(Trigger.EXITED, after)

    def _note_failure(self, why: str) -> None:
        """Notes that the engine is gone, and when it is started again."""
        served_s = 0.0 if self._serving_since_s is None else self._clock() - self._serving_since_s
        self._serving_since_s = None
        handle, self._handle = self._handle, None
        if handle is not None:
            # It may hang or be half alive: nothing of it may go on beside its successor.
            handle.kill()
        if self._look.own_wish is not None:
            self._note_left(why)
            return
        if self._look.pong is not None and self._oom_kills() > self._look.oom_kills:
            megabytes = (self.status.rss_bytes or 0) / 1e6
            why = f"out of memory: the kernel ended a process; it used {megabytes:,.0f} MB last"
        self._failures = lifecycle.failures_in_a_row(self._failures, served_s)
        delay_s = lifecycle.restart_delay_s(
            self._failures, self._config.restart_backoff_s, self._config.restart_backoff_max_s
        )
        self._last_failure = why
        self._failed_unix_s = self._wall_clock()
        self._retry_at_s = asyncio.get_running_loop().time() + delay_s
        self._record.move(
            Trigger.FAILED,
            failure_cause(why, self._failures, delay_s),
            restarts=self.status.restarts + 1,
            failures=self._failures,
        )
        cause = self.status.cause
        self._record.event("instance_lost", "was lost", cause, "bad")
        if self._failures == CRASH_LOOP_FAILURES:
            self._record.event("instance_crash_loop", "is in a crash loop", cause, "bad")

    def _note_left(self, why: str) -> None:
        """Its process was told to end, and did: no failure of its own."""
        self._last_failure = f"its process was told to end (SIGTERM); {why}"
        self._retry_at_s = 0.0
        self._record.move(Trigger.FAILED, self._last_failure, restarts=self.status.restarts + 1)
        self._record.event("instance_left", "has left", self._last_failure, "warn")

    def _note_serving(self, pong: Pong, cause: str, started_unix_s: float) -> None:
        self._serving_since_s = self._clock()
        self._record.move(
            Trigger.READY,
            cause,
            node=pong.node,
            pid=pong.pid,
            rss_bytes=pong.rss_bytes,
            max_model_len=pong.max_model_len,
            engine_started_unix_s=started_unix_s,
            is_outdated=pong.fingerprint != self._launcher.fingerprint,
        )
