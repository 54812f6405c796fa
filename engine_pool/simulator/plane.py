"""The memory's side of a move for a simulated engine: implements migration.ports.KvPlane.

Nothing is sent: each end waits for as long as the copy of a 7B model's blocks would take
(costs.py). So a channel is no more than a name, and the two ends need not see each other.
"""

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, Protocol

from engine_pool.simulator.costs import BLOCK_SIZE_TOKENS, KV_TOKEN_BYTES, CopyCosts
from migration.ports import Transfer, TransferFailed

BLOCK_BYTES: Final = BLOCK_SIZE_TOKENS * KV_TOKEN_BYTES
OFFER: Final = "simulated"
IDLE_WAIT_S: Final = 1.0
"""Longest sleep of the timer's thread: it is woken for anything new."""
ENDING_S: Final = 2.0
"""How long `shut_down` waits for that thread, which never computes."""


class Timer(Protocol):
    """Runs things later, in a thread of its own."""

    def call_at(self, at_s: float, run: Callable[[], None]) -> None:
        """Runs `run`, which must not wait, at that time of `time.monotonic`."""

    def stop(self) -> None:
        """Forgets what is left and ends the thread."""


class TimerThread:
    """One thread, started with the first call."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="simulated-copies", daemon=True)

    def call_at(self, at_s: float, run: Callable[[], None]) -> None:
        with self._changed:
            if self._is_stopping:
                return
            if not self._thread.is_alive():
                self._thread.start()
            heapq.heappush(self._due, (at_s, next(self._numbers), run))
            self._changed.notify()

    def stop(self) -> None:
        with self._changed:
            self._is_stopping = True
            self._due.clear()
            self._changed.notify()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(ENDING_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._is_stopping:
                    return
                left_s = self._due[0][0] - time.monotonic() if self._due else IDLE_WAIT_S
                if left_s > 0:
                    self._changed.wait(min(left_s, IDLE_WAIT_S))
                    continue
                run = heapq.heappop(self._due)[2]
            run()


@dataclass(slots=True)
class _Channel:
    free_at_s: float = 0.0
    """When the transfers that were asked for are done: one goes after the other."""
    going_on: set["Future[Transfer]"] = field(default_factory=set)


class SimulatedPlane:
    """The `ports.KvPlane` of an engine without KV memory. Any thread."""

    def __init__(
        self,
        costs: CopyCosts | None = None,
        timer: Timer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._costs = costs or CopyCosts()
        self._timer = timer or TimerThread()
        self._clock = clock
        self._lock = threading.Lock()
        self._channels: dict[str, _Channel] = {}

    def offer(self, channel: str) -> "Future[str]":
        """See `ports.KvPlane`."""
        answer: Future[str] = Future()
        if self._open(channel):
            answer.set_result(OFFER)
        else:
            answer.set_exception(TransferFailed(f"there is a channel {channel!r} already"))
        return answer

    def join(self, channel: str, offer: str) -> "Future[None]":
        """See `ports.KvPlane`."""
        answer: Future[None] = Future()
        if offer != OFFER:
            answer.set_exception(TransferFailed(f"{offer[:40]!r} is no simulated engine's offer"))
        elif self._open(channel):
            answer.set_result(None)
        else:
            answer.set_exception(TransferFailed(f"there is a channel {channel!r} already"))
        return answer

    def send(self, channel: str, block_ids: Sequence[int], *, urgent: bool) -> "Future[Transfer]":
        """See `ports.KvPlane`. Urgent or not: the model's times are those of an unhurried copy."""
        return self._copy(channel, len(block_ids))

    def receive(self, channel: str, block_ids: Sequence[int]) -> "Future[Transfer]":
        """See `ports.KvPlane`."""
        return self._copy(channel, len(block_ids))

    def close(self, channel: str) -> None:
        """See `ports.KvPlane`."""
        with self._lock:
            closed = self._channels.pop(channel, None)
            broken = list(closed.going_on) if closed else []
        for transfer in broken:
            transfer.set_exception(TransferFailed(f"channel {channel} was closed"))

    def measure_send(self, channel: str, size_bytes: int) -> "Future[Transfer]":
        """See `ports.KvPlane`."""
        return self._wait(channel, size_bytes, self._costs.bytes_ms(size_bytes))

    def measure_receive(self, channel: str, size_bytes: int) -> "Future[Transfer]":
        """See `ports.KvPlane`."""
        return self._wait(channel, size_bytes, self._costs.bytes_ms(size_bytes))

    def shut_down(self) -> None:
        """See `ports.KvPlane`."""
        for channel in list(self._channels):
            self.close(channel)
        self._timer.stop()

    def _open(self, channel: str) -> bool:
        with self._lock:
            if channel in self._channels:
                return False
            self._channels[channel] = _Channel()
            return True

    def _copy(self, channel: str, blocks: int) -> "Future[Transfer]":
        return self._wait(channel, blocks * BLOCK_BYTES, self._costs.copy_ms(blocks))

    def _wait(self, name: str, size_bytes: int, took_ms: float) -> "Future[Transfer]":
        """Returns a future that is done after the channel's earlier transfers and this one."""
        transfer: Future[Transfer] = Future()
        # Only a closed channel ends it early.
        transfer.set_running_or_notify_cancel()
        with self._lock:
            channel = self._channels.get(name)
            if channel is not None:
                channel.free_at_s = max(channel.free_at_s, self._clock()) + took_ms / 1000
                channel.going_on.add(transfer)
                at_s = channel.free_at_s
        if channel is None:
            transfer.set_exception(TransferFailed(f"there is no channel {name!r}"))
            return transfer

        def finish() -> None:
            with self._lock:
                is_mine = transfer in channel.going_on and self._channels.get(name) is channel
                channel.going_on.discard(transfer)
            if is_mine:
                transfer.set_result(Transfer(size_bytes, took_ms))

        self._timer.call_at(at_s, finish)
        return transfer
