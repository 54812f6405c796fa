"""Sends requests whose engines were lost to other engines, where they go on after their last token.

The web process that reads a stream does it: what the request is it has in hand, the tokens are in
the log. First the old producer is shut out of the log by a fence that names the life that was lost;
so an engine that only seemed to be dead cannot append any more. Then the log is read, and the rules
say what happens (replay_rules.py). What may go on waits here in the order of class and arrival; a
few at a time are offered to the freest instances, again and again until one takes them or the wait
was too long. What cannot go on ends with a typed error, in the log: a later reader sees the same.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import redis

from engine_pool.config import PoolConfig
from engine_pool.errors import (
    InstanceLost,
    NoInstance,
    PoolError,
    RequestTooLarge,
    StoreUnavailable,
)
from engine_pool.live_view import LiveView
from engine_pool.log_history import History, read_history
from engine_pool.log_marks import Lost, Marked
from engine_pool.ports import EngineRequest
from engine_pool.replay_rules import (
    RETRY_AFTER_S,
    TRIAL_MAX_S,
    Life,
    Over,
    is_pool_over,
    nobody,
    one_a_life,
    turn,
    verdict,
)
from engine_pool.replay_tally import Cause, Tally
from engine_pool.stream import Stream
from engine_pool.submission import Submission
from engine_pool.token_log import StreamError, TokenLogReader
from engine_pool.token_reader import TokenReader
from engine_pool.types import InstanceName, InstanceStatus
from engine_pool.whereabouts import is_alive, other_place

logger = logging.getLogger(__name__)

STORE_TIMEOUT_S: Final = 10.0
"""For one question to the log; a burst of lost requests keeps the process busy for a second."""
IDLE_WAIT_S: Final = 5.0
"""Between two looks when nothing waits; who comes wakes the loop."""


class Sender(Protocol):
    """The dispatcher."""

    async def send_again(
        self, submission: Submission, excluded: Collection[InstanceName]
    ) -> tuple[InstanceStatus, PoolError | None]:
        """Offers a request, whose log is open, to the instance that suits it best.

        Returns that instance and why it did not take it: None: it did; EngineRefused; InstanceLost:
        it is not known. Raises: NoInstance, RequestTooLarge; StoreUnavailable, nothing is sent
        then.
        """


@dataclass(slots=True, eq=False)
class _Waiting:
    """A lost request on its way to another engine."""

    stream: Stream
    lost: Lost
    cause: Cause
    since_s: float
    retry_at_s: float = 0.0
    is_under_way: bool = False
    request: EngineRequest | None = None
    """What is sent; None until its producer is shut out and the rules have allowed it."""
    is_suspect: bool = False
    excluded: set[InstanceName] = field(default_factory=set)
    """Instances that have not taken it."""


@dataclass(frozen=True, slots=True)
class _Trial:
    """A suspect that was sent to an instance and has no token from there yet."""

    stream: Stream
    tokens: int
    since_s: float


class Replays:
    """One a pool and web process; `run` is the caller's task, ended by cancelling it."""

    def __init__(
        self,
        live: LiveView,
        reader: TokenReader,
        log: TokenLogReader,
        sender: Sender,
        config: PoolConfig,
    ) -> None:
        self._live = live
        self._reader = reader
        self._log = log
        self._sender = sender
        self._config = config
        self._waiting: dict[str, _Waiting] = {}
        self._trials: dict[InstanceName, _Trial] = {}
        self._one_suspect = asyncio.Lock()
        """Held while one is offered: the next one must know where it went."""
        self._wake = asyncio.Event()
        self.tally = Tally()
        reader.on_leaving = self._on_leaving

    @property
    def waiting(self) -> int:
        """Requests that are on their way to another engine."""
        return len(self._waiting)

    def use(self, config: PoolConfig) -> None:
        """Goes on with these settings."""
        self._config = config

    def take(self, stream: Stream, lost: Lost, cause: Cause) -> None:
        """Brings a lost request elsewhere, soon. Nothing for one that is on its way already."""
        known = self._waiting.get(stream.request_id)
        if known is not None and known.stream is stream:
            return
        self._waiting[stream.request_id] = _Waiting(stream, lost, cause, time.monotonic())
        self._wake.set()

    async def run(self) -> None:
        """Works for ever."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                for waiting in self._due(time.monotonic()):
                    waiting.is_under_way = True
                    name = f"replay of {waiting.stream.request_id}"
                    tasks.create_task(self._attempt(waiting), name=name)
                await self._sleep()

    def _on_leaving(self, stream: Stream, lost: Lost) -> None:
        """Its engine has shut itself out of the log."""
        instance = InstanceName(lost.instance)
        stream.place_at(instance, self._live.statuses.get(instance))
        self.take(stream, lost, Cause.LEFT)

    def _due(self, now_s: float) -> list[_Waiting]:
        """Returns who is tried now, the first one first."""
        under_way = sum(w.is_under_way for w in self._waiting.values())
        ready = [w for w in self._waiting.values() if not w.is_under_way and w.retry_at_s <= now_s]
        ready.sort(key=_turn)
        return ready[: max(0, self._config.replays_at_once - under_way)]

    async def _sleep(self) -> None:
        """Returns when somebody came or is done, or is to be tried again."""
        now_s = time.monotonic()
        idle = [w.retry_at_s - now_s for w in self._waiting.values() if not w.is_under_way]
        # Who is ready and finds no free place is tried when one is done, which wakes this.
        wait_s = min((s for s in idle if s > 0), default=IDLE_WAIT_S)
        try:
            async with asyncio.timeout(wait_s):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _attempt(self, w: _Waiting) -> None:
        try:
            if self._is_open(w) and (w.request is not None or await self._prepare(w)):
                async with self._one_suspect if w.is_suspect else contextlib.nullcontext():
                    await self._send(w)
        except (redis.RedisError, OSError, TimeoutError, StoreUnavailable) as error:
            # The reader ends the stream, if the store stays away.
            logger.warning("replay of %s waits: %s", w.stream.request_id, error)
            self._retry(w)
        except Exception as error:
            # One request's trouble must not end the others'.
            logger.exception("replay of %s failed", w.stream.request_id)
            self._drop(w)
            self._reader.fail(w.stream, PoolError(f"Its replay failed: {type(error).__name__}."))
        finally:
            w.is_under_way = False
            if not self._is_open(w):
                self._drop(w)
            self._wake.set()

    async def _prepare(self, w: _Waiting) -> bool:
        """Shuts the old producer out and asks the rules. Returns whether it is to be sent."""
        if w.cause is Cause.LEFT and not w.lost.incarnation:
            epoch = await self._fence_left(w)
        else:
            epoch = await self._fence_lost(w)
        if epoch is None:
            self._drop(w)
            return False
        async with asyncio.timeout(STORE_TIMEOUT_S):
            history = await read_history(self._log, w.stream.request_id)
        w.stream.note_lost(Marked(epoch, w.lost))
        lives = one_a_life(history.lives)
        decided = verdict(
            lives, is_on=self._config.replay, why_not=_why_not(w.stream, history, lives)
        )
        if isinstance(decided, Over):
            await self._end(w, decided)
            return False
        w.is_suspect = decided.is_suspect
        w.request = self._request(w, epoch, history)
        return True

    async def _fence_left(self, w: _Waiting) -> int | None:
        """Of an engine that has said so in the log itself."""
        async with asyncio.timeout(STORE_TIMEOUT_S):
            epoch, _ = await self._log.fence(w.stream.request_id)
        if epoch is None:
            self._reader.reread(w.stream.request_id)
        return epoch

    async def _fence_lost(self, w: _Waiting) -> int | None:
        """Returns the epoch to go on with; None: the request is not lost, or has ended."""
        stream, lost = w.stream, InstanceName(w.lost.instance)
        async with asyncio.timeout(STORE_TIMEOUT_S):
            last_entry, frame = await self._log.newest(stream.request_id)
        if not self._is_open(w) or stream.instance != lost:
            return None
        if place := other_place(self._live, stream):
            stream.place_at(place.instance, place)
            return None
        if frame is not None and frame.end > stream.end and frame.instance != lost:
            status = self._live.statuses.get(InstanceName(frame.instance))
            if is_alive(status, ""):
                # Its frames are on their way here, or are read now: they take the stream there.
                self._reader.reread(stream.request_id)
                stream.absent_ticks = 0
                return None
        async with asyncio.timeout(STORE_TIMEOUT_S):
            epoch = await self._log.fence_lost(w.lost, if_last=last_entry)
        if epoch is None:
            # A frame came between the two: looked at anew by the next ticks.
            self._reader.reread(stream.request_id)
            stream.absent_ticks = 0
        return epoch

    def _request(self, w: _Waiting, epoch: int, history: History) -> EngineRequest:
        assert w.stream.order is not None, "the rules refuse what has none"
        [request] = w.stream.order.requests
        return replace(request, epoch=epoch, output_token_ids=tuple(history.token_ids))

    async def _send(self, w: _Waiting) -> None:
        stream, now_s = w.stream, time.monotonic()
        assert w.request is not None
        assert stream.order is not None
        if is_pool_over(self._live.statuses.values()):
            await self._end(w, Over(InstanceLost.code, f"{w.lost.why} The pool is being stopped."))
            return
        excluded = w.excluded | (self._on_trial(now_s) if w.is_suspect else set())
        submission = replace(stream.order, requests=[w.request])
        try:
            status, failure = await self._sender.send_again(submission, excluded)
        except (NoInstance, RequestTooLarge):
            await self._wait_on(w, now_s)
            return
        if failure is None:
            self._sent(w, status)
            return
        logger.warning("%s: not taken by %s: %s", stream.request_id, status.instance, failure)
        w.excluded.add(status.instance)
        if isinstance(failure, InstanceLost):
            await self._shut_out_again(w)

    async def _wait_on(self, w: _Waiting, now_s: float) -> None:
        """Nobody has taken it: it waits, unless it has waited for too long."""
        if now_s - w.since_s >= self._config.replay_wait_s:
            await self._end(w, nobody(w.lost.why, self._config.replay_wait_s))
            return
        w.excluded.clear()
        self._retry(w)

    def _sent(self, w: _Waiting, status: InstanceStatus) -> None:
        assert w.request is not None
        self._drop(w)
        self.tally.replayed[w.cause] += 1
        if self._is_read(w.stream):
            w.stream.place_at(status.instance, status)
        if w.is_suspect:
            tokens = len(w.request.output_token_ids)
            self._trials[status.instance] = _Trial(w.stream, tokens, time.monotonic())
        logger.warning(
            "%s goes on at %s after %d tokens: %s",
            w.stream.request_id, status.instance, len(w.request.output_token_ids), w.lost.why,
        )  # fmt: skip

    async def _shut_out_again(self, w: _Waiting) -> None:
        """An instance may have taken it without an answer: that one is shut out, too."""
        assert w.request is not None
        async with asyncio.timeout(STORE_TIMEOUT_S):
            epoch, _ = await self._log.fence(w.stream.request_id)
            if epoch is None:
                self._drop(w)
                self._reader.reread(w.stream.request_id)
                return
            history = await read_history(self._log, w.stream.request_id)
        w.request = self._request(w, epoch, history)

    def _on_trial(self, now_s: float) -> set[InstanceName]:
        """Returns the instances at which a suspect is being tried."""
        for instance, trial in list(self._trials.items()):
            is_there = self._is_read(trial.stream) and trial.stream.instance == instance
            is_barren = trial.stream.end <= trial.tokens
            if not (is_there and is_barren) or now_s - trial.since_s > TRIAL_MAX_S:
                del self._trials[instance]
        return set(self._trials)

    async def _end(self, w: _Waiting, over: Over) -> None:
        """Closes the log with an error, for this reader and for later ones."""
        self.tally.ended[over.code] += 1
        error = StreamError(over.code, over.message)
        async with asyncio.timeout(STORE_TIMEOUT_S):
            await self._log.end_with_error(
                w.stream.request_id, instance=w.lost.instance, error=error
            )
        self._drop(w)

    def _retry(self, w: _Waiting) -> None:
        w.retry_at_s = time.monotonic() + RETRY_AFTER_S

    def _drop(self, w: _Waiting) -> None:
        if self._waiting.get(w.stream.request_id) is w:
            del self._waiting[w.stream.request_id]

    def _is_open(self, w: _Waiting) -> bool:
        return self._is_read(w.stream)

    def _is_read(self, stream: Stream) -> bool:
        return stream in self._reader.streams_of([stream.request_id])


def _turn(w: _Waiting) -> tuple[int, float]:
    if w.stream.order is None:
        return (0, 0.0)  # it only ends
    [request] = w.stream.order.requests
    return turn(request.priority_class, request.arrival_unix_s)


def _why_not(stream: Stream, history: History, lives: list[Life]) -> str:
    if stream.why_no_replay:
        return stream.why_no_replay
    if stream.order is None:
        return "what it asked for is no longer known"
    if not history.is_whole:
        return "its log has a gap"
    return ""
