"""The thread that owns an engine: takes requests and aborts between two steps, turns outputs into
frames.

Everything that waits (the store, Ray) is elsewhere: this thread only computes. All requests that
have arrived are added before a step, so that a burst is prefilled as one batch. What a live move
needs of the engine happens here too, between two steps (`between_steps`, step_moves.py).
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, TypeVar

from engine_pool.errors import (
    EngineFailed,
    EngineRefused,
    InstanceLeaving,
    ReplayRefused,
    RequestExpired,
)
from engine_pool.load_book import LoadBook
from engine_pool.ports import Engine, EngineLoad, EngineRequest, StepOutput
from engine_pool.step_streams import StepClock, Stream, with_times
from engine_pool.token_log import StreamError, TokenFrame
from engine_pool.types import RequestId

log = logging.getLogger(__name__)

IDLE_WAIT_S = 1.0
"""Longest sleep of an idle loop: bounds how late an expired request is seen, costs nothing."""

T = TypeVar("T")

Refused = list[tuple[str, str]]
"""(request id, reason) of each request that was not taken."""


class FrameSink(Protocol):
    """Takes a step's frames. Must not block."""

    def publish(self, frames: Sequence[TokenFrame], firsts: frozenset[str]) -> None: ...


@dataclass(frozen=True, slots=True)
class _Submit:
    requests: list[EngineRequest]
    answer: "Future[Refused]"


@dataclass(frozen=True, slots=True)
class _End:
    request_ids: tuple[RequestId, ...] | None
    """None: all."""
    error: StreamError | None
    """None: the client's own wish, which ends the stream with finish_reason abort."""
    silently: bool = False
    """No last frame: the stream belongs to somebody else now, or is gone."""


@dataclass(frozen=True, slots=True)
class _Call:
    action: Callable[[], None]


class StepLoop:
    """Owns one engine. Every method may be called from any thread, and returns at once."""

    def __init__(
        self,
        make_engine: Callable[[], Engine],
        book: LoadBook,
        sink: FrameSink,
        *,
        max_age_s: float,
        on_death: Callable[[BaseException], None],
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`wall_clock`: Unix seconds, to compare with the arrival at the gateway."""
        self._make_engine = make_engine
        self._book = book
        self._sink = sink
        self._max_age_s = max_age_s
        self._on_death = on_death
        self.clock = clock
        self._wall_clock = wall_clock
        self.step_clock = StepClock()
        self._commands: queue.SimpleQueue[_Submit | _End | _Call | None] = queue.SimpleQueue()
        self._streams: dict[RequestId, Stream] = {}
        self._unbegun: set[RequestId] = set()
        """Requests that no step was seen with yet."""
        self._unsettled: list[Callable[[], bool]] = []
        self._next_expiry_check_s = 0.0
        self._is_stopping = False
        self._ended = threading.Event()
        self.ready: Future[None] = Future()
        """Done when the engine takes requests; its exception says why it cannot."""
        self._thread = threading.Thread(target=self._run, name="engine-step", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_ready(self) -> bool:
        """Whether the engine takes requests."""
        is_up = self.ready.done() and self.ready.exception() is None
        return is_up and not self._is_stopping

    @property
    def engine(self) -> Engine:
        """The engine, once it is ready. Only the step thread calls what changes it."""
        return self._engine

    @property
    def max_model_len(self) -> int | None:
        """Tokens: longest prompt plus output; None until the engine is ready."""
        return self._engine.max_model_len if self.is_ready else None

    def submit(self, requests: list[EngineRequest]) -> "Future[Refused]":
        """Queues requests for the next step; the answer says which were refused."""
        answer: Future[Refused] = Future()
        if self._is_stopping:
            answer.set_result([(r.request_id, "the engine is stopping") for r in requests])
            return answer
        self._book.received(requests)
        self._commands.put(_Submit(requests, answer))
        return answer

    def abort(self, request_ids: Sequence[str]) -> None:
        """Ends requests because their client left."""
        self._commands.put(_End(tuple(map(RequestId, request_ids)), None))

    def fail(self, request_ids: Sequence[str] | None, error: StreamError) -> None:
        """Ends requests (None: all of them) with an error as their streams' last frame."""
        ids = None if request_ids is None else tuple(map(RequestId, request_ids))
        self._commands.put(_End(ids, error))

    def drop(self, request_ids: Sequence[str]) -> None:
        """Ends requests whose log takes nothing from this engine any more, without a last frame."""
        self._commands.put(_End(tuple(map(RequestId, request_ids)), None, silently=True))

    def between_steps(self, action: Callable[[Engine], T]) -> "Future[T]":
        """Runs `action` in the step thread, in the order of all that is asked of it.

        The future fails with EngineFailed when the engine is stopping; never when it hangs: bound
        the wait.
        """
        answer: Future[T] = Future()

        def call() -> None:
            try:
                answer.set_result(action(self._engine))
            except BaseException as error:
                # The engine's books may be half changed: it cannot go on.
                answer.set_exception(error)
                raise

        if self._is_stopping:
            answer.set_exception(EngineFailed("the engine is stopping"))
        else:
            self._commands.put(_Call(call))
        return answer

    def at_each_boundary(self, check: Callable[[], bool]) -> None:
        """Calls `check` between all steps from now on, until it is true. In the step thread."""
        if not check():
            self._unsettled.append(check)

    def stream(self, request_id: str) -> Stream | None:
        """Returns a request of this engine. In the step thread."""
        return self._streams.get(RequestId(request_id))

    def take_in(self, request: EngineRequest, stream: Stream) -> None:
        """Makes a request that a move brought one of this loop. In the step thread."""
        assert request.request_id not in self._streams, "one engine has a request once"
        self._streams[request.request_id] = stream
        if stream.position == 0:
            self._unbegun.add(request.request_id)
        self._book.taken((), self._engine.load())

    def let_go(self, request_id: str) -> None:
        """Forgets a request that a move took away, without a frame. In the step thread."""
        del self._streams[RequestId(request_id)]
        self._book.ended([RequestId(request_id)], self._engine.load(), elsewhere=True)

    def stop(self, timeout_s: float) -> bool:
        """Ends the loop after what is queued. Returns whether that was in time.

        The thread goes on to close the engine: `join` waits for that.
        """
        self._is_stopping = True
        self._commands.put(None)
        return self._ended.wait(timeout_s) if self._thread.is_alive() else True

    def join(self, timeout_s: float) -> None:
        """Waits for the engine to be closed."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._engine = self._make_engine()
            self._book.taken((), self._engine.load())
        except BaseException as error:
            self._ended.set()
            self.ready.set_exception(EngineFailed(f"{type(error).__name__}: {error}"))
            log.error("the engine could not start", exc_info=error)
            return
        self.ready.set_result(None)
        try:
            while not self._is_stopping:
                self._turn()
            self._take_commands(wait=False)
            self._ended.set()
            self._engine.close()
        except BaseException as error:
            log.error("the engine broke", exc_info=error)
            self._is_stopping = True
            self._ended.set()
            self._on_death(error)

    def _turn(self) -> None:
        """One round: commands, expired requests, one step if there is work."""
        self._take_commands(wait=not self._engine.has_work())
        self._unsettled = [check for check in self._unsettled if not check()]
        self._expire()
        if self._engine.has_work() and not self._is_stopping:
            self._step()

    def _take_commands(self, *, wait: bool) -> None:
        """Takes everything that has arrived; an idle loop waits for the first command."""
        try:
            command = (
                self._commands.get(timeout=IDLE_WAIT_S) if wait else self._commands.get_nowait()
            )
            while True:
                if isinstance(command, _Submit):
                    self._add(command)
                elif isinstance(command, _End):
                    self._end(command)
                elif isinstance(command, _Call):
                    command.action()
                command = self._commands.get_nowait()
        except queue.Empty:
            return

    def _add(self, command: _Submit) -> None:
        refused: Refused = []
        for request in command.requests:
            if request.request_id in self._streams:
                refused.append((request.request_id, "a request of this id already runs here"))
                continue
            try:
                self._engine.add(request)
            except EngineRefused as why:
                refused.append((request.request_id, str(why)))
            else:
                expires_at_s = self.clock() + self._max_age_s
                before = len(request.output_token_ids)
                self._streams[request.request_id] = Stream(request, expires_at_s, before)
                self._unbegun.add(request.request_id)
        self._book.taken([r.request_id for r in command.requests], self._engine.load())
        command.answer.set_result(refused)

    def _end(self, command: _End) -> None:
        wanted = tuple(self._streams) if command.request_ids is None else command.request_ids
        known = []
        for request_id in wanted:
            stream = self._streams.get(request_id)
            if stream is None:
                continue
            if stream.end_parked is not None and not self._is_stopping:
                stream.end_parked(command.error)
            else:
                known.append(request_id)
        if not known:
            return
        self._engine.abort(known)
        frames, firsts = [], set()
        for request_id in known:
            stream = self._streams.pop(request_id)
            if stream.watcher is not None:
                stream.watcher.on_ended()
            if stream.position == 0:
                firsts.add(request_id)
            reason = None if command.error else "abort"
            frames.append(self._frame(stream, (), reason, error=command.error))
        leave = command.error is not None and command.error.code == InstanceLeaving.code
        self._book.ended(known, self._engine.load(), elsewhere=leave)
        if not command.silently:
            self._sink.publish(frames, frozenset(firsts))

    def _expire(self) -> None:
        now_s = self.clock()
        if now_s < self._next_expiry_check_s:
            return
        self._next_expiry_check_s = now_s + IDLE_WAIT_S
        old = tuple(i for i, s in self._streams.items() if s.expires_at_s <= now_s)
        if old:
            message = f"The request ran longer than {self._max_age_s:.0f} s and was ended."
            self._end(_End(old, StreamError(RequestExpired.code, message)))

    def _step(self) -> None:
        began_s, began_unix_s = time.perf_counter(), self._wall_clock()
        outputs = self._engine.step()
        step_ms = (time.perf_counter() - began_s) * 1000
        self.step_clock.note(step_ms)
        frames, firsts, ended = [], set(), []
        prompts = tokens = 0
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is None:
                continue  # ended a moment ago; the engine still had it in its batch
            error = StreamError(ReplayRefused.code, output.refusal) if output.refusal else None
            is_end = output.finish_reason is not None or error is not None
            if not output.token_ids and not is_end:
                continue  # a frame in the middle that moves nothing would use up an entry id
            frame = self._frame(stream, output.token_ids, output.finish_reason, output, error)
            if stream.position == 0:
                firsts.add(output.request_id)
                prompts += stream.request.prompt_tokens
                frame = with_times(frame, stream, began_unix_s, self._wall_clock())
                self._unbegun.discard(output.request_id)
            frames.append(frame)
            stream.position += len(output.token_ids)
            tokens += len(output.token_ids)
            if stream.watcher is not None:
                stream.watcher.on_tokens(len(output.token_ids), self.clock())
            if is_end:
                ended.append(output.request_id)
                del self._streams[output.request_id]
                if stream.watcher is not None:
                    stream.watcher.on_ended()
        if frames:
            self._sink.publish(frames, frozenset(firsts))
        load = self._engine.load()
        self._note_begun(load, began_unix_s)
        self._book.stepped(load=load, step_ms=step_ms, prompts=prompts, outputs=tokens)
        if ended:
            self._book.ended(ended, load)

    def _note_begun(self, load: EngineLoad, began_unix_s: float) -> None:
        """Notes which requests had their first step: a prefill may take several of them."""
        if not self._unbegun:
            return
        for running in load.running:
            if running.request_id in self._unbegun:
                self._unbegun.discard(running.request_id)
                if stream := self._streams.get(running.request_id):
                    stream.begun_unix_s = began_unix_s
        # Those that were ended or went elsewhere before.
        self._unbegun &= self._streams.keys()

    def _frame(
        self,
        stream: Stream,
        token_ids: tuple[int, ...],
        finish_reason: str | None,
        output: StepOutput | None = None,
        error: StreamError | None = None,
    ) -> TokenFrame:
        return TokenFrame(
            request_id=stream.request.request_id,
            epoch=stream.request.epoch,
            start=stream.position,
            token_ids=token_ids,
            instance=self._book.instance,
            finish_reason=finish_reason,
            stop_reason=output.stop_reason if output else None,
            cached_tokens=output.cached_tokens if output else 0,
            detail=output.detail if output else None,
            error=error,
        )
