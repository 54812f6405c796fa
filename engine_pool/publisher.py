"""The thread that brings an engine's tokens and load reports to the store, so that no step waits
for it.

One script call takes all frames that wait (several steps together when it is behind). What the
store answers decides what the engine goes on with: a refused stream is somebody else's or gone, a
stream that nobody hears is abandoned after a grace period, and when the store stays away for
`store_timeout_s` everything is given up with a typed error, which is delivered once the store is
back. Memory is bounded by MAX_PENDING_FRAMES.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import redis

from engine_pool.absence import RETRY_MAX_S, StoreAbsence, Unheard
from engine_pool.errors import StoreUnavailable, StreamAbandoned
from engine_pool.frames import combine, error_frame
from engine_pool.load_book import LoadBook
from engine_pool.log_end import after_gaps, taken_before
from engine_pool.pool_keys import FIRST, PoolKeys
from engine_pool.token_log import StreamError, TokenFrame, TokenLogWriter
from engine_pool.view import Bulletin
from migration.report import MoveEnd, MoveReport

log = logging.getLogger(__name__)

MAX_FRAMES_A_CALL = 512
"""Bounds how long one script call keeps the store busy: about 4 ms at 8 us a frame."""
MAX_PENDING_MOVES = 1000
"""Reports of moves that wait for the store, one a move; older ones are dropped beyond it."""
MAX_PENDING_FRAMES = 50_000
"""Frames that wait for the store, about 10 MB; more counts as a store that is away."""


@dataclass(frozen=True, slots=True)
class PublisherTimes:
    """The parts of PoolConfig that the publisher follows."""

    report_interval_s: float
    report_min_gap_s: float
    store_timeout_s: float
    orphan_grace_s: float


class Producer(Protocol):
    """What the publisher tells the step loop. Neither call blocks."""

    def fail(self, request_ids: Sequence[str] | None, error: StreamError) -> None: ...

    def drop(self, request_ids: Sequence[str]) -> None: ...


@dataclass(slots=True)
class _Batch:
    frames: list[TokenFrame]
    firsts: frozenset[str]
    count: int
    """Frames as they were queued, before some were joined."""
    tries: int = 0


class Publisher:
    """Owns the engine's connection to the store. `publish` may be called from any thread."""

    def __init__(
        self,
        store: "redis.Redis[bytes]",
        writer: TokenLogWriter,
        book: LoadBook,
        times: PublisherTimes,
        clock: Callable[[], float] = time.monotonic,
        keys: PoolKeys = FIRST,
    ) -> None:
        self._store = store
        self._writer = writer
        self._bulletin = Bulletin(store, keys)
        self._book = book
        self._times = times
        self._clock = clock
        self._producer: Producer | None = None
        self._wake = threading.Condition()
        self._pending: deque[tuple[TokenFrame, bool]] = deque()
        """Frames, and whether each is its request's first."""
        self._batch: _Batch | None = None
        self._absence = StoreAbsence()
        self._unheard = Unheard()
        self._gapped: set[str] = set()
        """Requests whose frames were given up: only an error may follow, right after the log's
        end."""
        self._published = self._settled = 0
        """Frames that were ever queued, and those that the log has or refused or that were given
        up."""
        self._awaited: deque[tuple[int, Callable[[], None]]] = deque()
        """Who is to be told when that many frames are settled; in rising order."""
        self._moves: dict[str, MoveReport | MoveEnd] = {}
        self._reported_version = -1
        self._reported_at_s = float("-inf")
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="token-publisher", daemon=True)

    def start(self, producer: Producer) -> None:
        self._producer = producer
        self._thread.start()

    def publish(self, frames: Sequence[TokenFrame], firsts: frozenset[str]) -> None:
        """Queues a step's frames; `firsts` names the requests whose first frame is among them."""
        with self._wake:
            self._pending.extend((f, f.request_id in firsts) for f in frames)
            self._published += len(frames)
            self._wake.notify()

    def when_logged(self, tell: Callable[[], None]) -> None:
        """Calls `tell`, in the publisher's thread, once all frames queued so far are in the log.

        Not while the store is away: bound the wait.
        """
        with self._wake:
            self._awaited.append((self._published, tell))
            self._wake.notify()

    def report_move(self, move: MoveReport) -> None:
        """Shows where a move is, soon; of several reports of a move the newest."""
        self._note_move(move)

    def report_move_end(self, end: MoveEnd) -> None:
        """Ends a move in the view whose source cannot say so any more."""
        self._note_move(end)

    def _note_move(self, move: MoveReport | MoveEnd) -> None:
        with self._wake:
            self._moves[move.migration_id] = move
            while len(self._moves) > MAX_PENDING_MOVES:
                del self._moves[next(iter(self._moves))]
            self._wake.notify()

    def nudge(self) -> None:
        """Says that the load has changed without a frame."""
        with self._wake:
            self._wake.notify()

    def stop(self, timeout_s: float) -> None:
        """Delivers what waits, as far as the store takes it within the time, and ends the
        thread."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    @property
    def is_store_away(self) -> bool:
        return self._absence.is_away

    def _run(self) -> None:
        while True:
            with self._wake:
                if self._is_stopping and (self.is_store_away or not self._has_news()):
                    return
                if not self._is_due():
                    self._wake.wait(self._sleep_s())
                if not self._is_due():
                    continue
            try:
                self.turn()
            except Exception as error:
                log.error("the publisher failed; its streams are given up", exc_info=error)
                self._give_up(f"the publisher failed: {type(error).__name__}")
                time.sleep(RETRY_MAX_S)

    def _has_frames(self) -> bool:
        return self._batch is not None or bool(self._pending)

    def _has_news(self) -> bool:
        return self._has_frames() or bool(self._awaited) or bool(self._moves)

    def _is_due(self) -> bool:
        if self._is_stopping:
            return True
        now_s = self._clock()
        if self.is_store_away:
            return now_s >= self._absence.retry_at_s
        return self._has_news() or self._is_report_due(now_s)

    def _is_report_due(self, now_s: float) -> bool:
        return now_s >= self._report_due_at_s()

    def _report_due_at_s(self) -> float:
        has_news = self._book.version != self._reported_version
        times = self._times
        wait_s = times.report_min_gap_s if has_news else times.report_interval_s
        return self._reported_at_s + wait_s

    def _sleep_s(self) -> float:
        due_at_s = self._absence.retry_at_s if self.is_store_away else self._report_due_at_s()
        return max(0.0, due_at_s - self._clock())

    def turn(self) -> None:
        """One round: frames that wait, then abandoned streams, then a load report if one is due."""
        if self.is_store_away and self._clock() < self._absence.retry_at_s:
            return
        began_s = self._clock()
        try:
            self._append_pending()
            self._tell_logged()
            self._fail_abandoned()
            self._report_moves()
            # While the store is away, a report is what finds out that it is back.
            if self.is_store_away or self._is_report_due(self._clock()):
                self._report()
        except redis.RedisError as error:
            self._note_failure(error, began_s)
        else:
            self._note_success()

    def _append_pending(self) -> None:
        while self._batch is not None or self._take_batch():
            batch = self._batch
            assert batch is not None
            batch.tries += 1
            if self._gapped:
                batch.frames = after_gaps(self._store, batch.frames, self._gapped)
            if batch.frames:
                appended = self._writer.append(batch.frames, batch.firsts)
                refused = set(appended.refused)
                if refused and batch.tries > 1:
                    lost = [f for f in batch.frames if f.request_id in refused]
                    refused -= taken_before(self._store, lost)
                self._note_answers(batch.frames, refused, set(appended.unheard))
            self._settled += batch.count
            self._batch = None

    def _take_batch(self) -> bool:
        with self._wake:
            count = min(len(self._pending), MAX_FRAMES_A_CALL)
            taken = [self._pending.popleft() for _ in range(count)]
        if not taken:
            return False
        firsts = frozenset(f.request_id for f, is_first in taken if is_first)
        frames = combine([f for f, _ in taken])
        self._batch = _Batch(frames, firsts & {f.request_id for f in frames}, len(taken))
        return True

    def _tell_logged(self) -> None:
        with self._wake:
            due = []
            while self._awaited and self._awaited[0][0] <= self._settled:
                due.append(self._awaited.popleft()[1])
        for tell in due:
            tell()

    def _report_moves(self) -> None:
        with self._wake:
            waiting = list(self._moves.values())
        for move in waiting:
            if isinstance(move, MoveEnd):
                self._bulletin.report_move_end(move)
            else:
                self._bulletin.report_move(move)
            with self._wake:
                # A newer one may have come meanwhile.
                if self._moves.get(move.migration_id) is move:
                    del self._moves[move.migration_id]

    def _note_answers(
        self, frames: Sequence[TokenFrame], refused: set[str], unheard: set[str]
    ) -> None:
        now_s = self._clock()
        for frame in frames:
            request_id = frame.request_id
            if frame.is_last:
                self._gapped.discard(request_id)
            is_over = frame.is_last or request_id in refused
            self._unheard.note(request_id, now_s, is_heard=is_over or request_id not in unheard)
        if refused:
            log.warning("the store refused %d streams; their requests end here", len(refused))
            self._tell().drop(sorted(refused))

    def _fail_abandoned(self) -> None:
        grace_s = self._times.orphan_grace_s
        abandoned = self._unheard.take_older(grace_s, self._clock())
        if abandoned:
            message = f"No web process read this stream for {grace_s:.0f} s, so it was ended."
            self._tell().fail(abandoned, StreamError(StreamAbandoned.code, message))

    def _report(self) -> None:
        version = self._book.version
        load = self._book.compose()
        # Also after a failure: a report is never worth more than the next one.
        self._reported_version, self._reported_at_s = version, self._clock()
        if load is not None:
            self._bulletin.report_load(load)
            self._book.reported(load)

    def _note_success(self) -> None:
        away_s = self._absence.succeeded(self._clock())
        if away_s is not None:
            log.warning("the store is back after %.1f s", away_s)

    def _note_failure(self, error: redis.RedisError, began_s: float) -> None:
        if not self.is_store_away:
            log.warning("the store does not answer: %s", type(error).__name__)
        away_s = self._absence.failed(began_s, self._clock())
        if away_s >= self._times.store_timeout_s or len(self._pending) > MAX_PENDING_FRAMES:
            self._give_up(f"the store did not answer for {away_s:.1f} s")

    def _give_up(self, why: str) -> None:
        """Drops the frames that wait, keeping one error frame a stream, and tells the engine to
        end all."""
        error = StreamError(StoreUnavailable.code, f"The stream was given up: {why}.")
        with self._wake:
            waiting = (self._batch.frames if self._batch else []) + [f for f, _ in self._pending]
            kept: dict[str, TokenFrame] = {}
            for frame in waiting:
                self._gapped.add(frame.request_id)
                if frame.error is not None:
                    kept[frame.request_id] = frame
                elif frame.is_last:
                    # The engine has ended it already and will not say so again.
                    kept[frame.request_id] = error_frame(frame, 0, error)
            # Those who wait for the log hear nothing: the streams that they wait for are ended.
            self._awaited.clear()
            self._settled += (self._batch.count if self._batch else 0) + len(self._pending)
            self._batch = None
            newest = list(kept.values())[-MAX_PENDING_FRAMES // 2 :]
            self._pending = deque((f, False) for f in newest)
            self._published += len(newest)
        self._unheard.forget()
        if not all(f.error is not None for f in waiting):
            log.error("%s: every stream of this engine is given up", why)
        self._tell().fail(None, error)

    def _tell(self) -> Producer:
        assert self._producer is not None, "start() names the producer"
        return self._producer
