"""One end of one channel at work: a thread that copies blocks between KV memory and the wire.

A transfer is cut into chunks. Source: gather, send, rest. Destination: receive, answer, write; it
answers the last chunk when that is written, so a send that ended well means blocks that are there.
"""

import logging
import queue
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from migration.channels import LAST_TAG, Channel
from migration.pace import Chunk, cut, rest_s, rows_in_chunk
from migration.ports import KvBlockIo, Transfer, TransferFailed
from migration.torch_threads import use_one_torch_thread

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Job:
    """A transfer that was asked for: so many rows, each a block or a byte of a measurement."""

    is_send: bool
    rows: int
    row_bytes: int
    block_ids: Sequence[int] | None
    """None: a measurement, which reads and writes nothing but buffers."""
    is_urgent: bool
    future: "Future[Transfer]" = field(default_factory=Future)


class Buffers:
    """The transfers' buffers, of one chunk each: made when all others are in use, and kept."""

    def __init__(self, io: KvBlockIo, chunk_bytes: int) -> None:
        self._io = io
        self._blocks = rows_in_chunk(io.block_bytes, chunk_bytes)
        self._free: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()

    @property
    def size_bytes(self) -> int:
        return self._blocks * self._io.block_bytes

    def take(self) -> torch.Tensor:
        """Returns a uint8 tensor of (blocks, block_bytes); the caller gives it back."""
        try:
            return self._free.get_nowait()
        except queue.Empty:
            buffer = self._io.new_buffer(self._blocks)
            assert isinstance(buffer, torch.Tensor)
            return buffer

    def give_back(self, buffer: torch.Tensor) -> None:
        self._free.put(buffer)


class Line:
    """A channel's end and its transfers, in the order in which they are submitted."""

    def __init__(
        self,
        connect: "Callable[[], Future[Channel]]",
        io: KvBlockIo,
        buffers: Buffers,
        *,
        timeout_s: float,
        copy_share: float,
    ) -> None:
        """Does nothing yet. `connect` is called once, by the thread that runs `run`."""
        self._connect = connect
        self._io = io
        self._buffers = buffers
        self._timeout_s = timeout_s
        self._copy_share = copy_share
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._connecting: Future[Channel] | None = None
        self._closing = threading.Event()
        self._why_over = ""
        self._transfers = 0
        self._rest_until_s = 0.0
        """What is not urgent rests until then. It rests before a chunk, not after it: the last
        blocks of a move, for which its request stands still, must not wait for a rest."""
        self.connected: Future[None] = running_future()

    def submit(self, job: Job) -> None:
        """Queues a transfer. On a broken line it fails."""
        self._jobs.put(job)
        if self._why_over:
            self._fail_queued()

    def close(self) -> None:
        """Breaks the line: what has not begun fails now, what has, soon. Any thread, repeatedly."""
        self._why_over = self._why_over or "the channel was closed at this end"
        self._closing.set()
        # Gloo takes up to 10 ms for it, and the caller may be an engine's step thread.
        threading.Thread(target=self._break_channel, name="ferry-kv-break", daemon=True).start()
        self._fail_queued()

    def run(self) -> None:
        """Connects and carries transfers until the line breaks."""
        use_one_torch_thread()
        try:
            channel = self._connected_channel()
            while not self._closing.is_set():
                job = self._jobs.get()
                if job is not None:
                    self._carry(job, channel)
        except TransferFailed as error:
            self._why_over = self._why_over or str(error)
        self._break_channel()
        self._fail_queued()

    def _connected_channel(self) -> Channel:
        try:
            self._connecting = self._connect()
            if self._closing.is_set():
                self._connecting.cancel()
            channel = self._connecting.result(timeout=self._timeout_s)
        except (TimeoutError, CancelledError, TransferFailed) as error:
            why = str(error) or f"not connected within {self._timeout_s:g} s"
            failure = TransferFailed(self._why_over or why)
            self.connected.set_exception(failure)
            raise failure from error
        self.connected.set_result(None)
        return channel

    def _carry(self, job: Job, channel: Channel) -> None:
        if not job.future.set_running_or_notify_cancel():
            raise TransferFailed("a transfer was cancelled at this end only")
        buffer = self._buffers.take()
        try:
            carry = self._send if job.is_send else self._receive
            transfer = carry(job, channel, buffer)
        except TransferFailed as error:
            job.future.set_exception(TransferFailed(self._why_over or str(error)))
            raise
        except Exception as error:
            logger.exception("KV memory failed in a transfer of %d rows", job.rows)
            failure = TransferFailed(f"the KV memory failed: {error!r}")
            job.future.set_exception(failure)
            raise failure from error
        finally:
            self._buffers.give_back(buffer)
        job.future.set_result(transfer)

    def _send(self, job: Job, channel: Channel, buffer: torch.Tensor) -> Transfer:
        started_s, gather_s = time.monotonic(), 0.0
        for index, chunk in enumerate(self._begin(job)):
            if not job.is_urgent:
                self._closing.wait(max(0.0, self._rest_until_s - time.monotonic()))
            self._stop_if_closed()
            chunk_s = time.monotonic()
            if job.block_ids is not None:
                self._io.gather(_ids(job.block_ids, chunk), buffer)
                gather_s += time.monotonic() - chunk_s
            channel.send(_wire(buffer, job, chunk), self._tag(job, index))
            if not job.is_urgent:
                now_s = time.monotonic()
                self._rest_until_s = now_s + rest_s(now_s - chunk_s, self._copy_share)
        return _transfer(job, started_s, gather_s)

    def _receive(self, job: Job, channel: Channel, buffer: torch.Tensor) -> Transfer:
        started_s, scatter_s = time.monotonic(), 0.0
        chunks = self._begin(job)
        for index, chunk in enumerate(chunks):
            tag, is_last = self._tag(job, index), index == len(chunks) - 1
            channel.receive(_wire(buffer, job, chunk), tag)
            if not is_last:
                channel.answer(tag)
            self._stop_if_closed()
            if job.block_ids is not None:
                chunk_s = time.monotonic()
                self._io.scatter(_ids(job.block_ids, chunk), buffer)
                scatter_s += time.monotonic() - chunk_s
            if is_last:
                self._stop_if_closed()
                channel.answer(tag)
        return _transfer(job, started_s, scatter_s)

    def _stop_if_closed(self) -> None:
        """The channel breaks a moment after `close`, and must carry nothing more until then."""
        if self._closing.is_set():
            raise TransferFailed(self._why_over)

    def _begin(self, job: Job) -> Sequence[Chunk]:
        self._transfers += 1
        return cut(job.rows, rows_in_chunk(job.row_bytes, self._buffers.size_bytes))

    def _tag(self, job: Job, index: int) -> int:
        """Returns the number under which both ends know a message. Ends that do not agree on a
        transfer's size then fail by timeout; gloo would end the process if a message were longer
        than its buffer."""
        known = f"{self._transfers} {job.rows} {job.row_bytes} {index}"
        return zlib.crc32(known.encode()) & LAST_TAG

    def _break_channel(self) -> None:
        connecting = self._connecting
        if connecting is None or connecting.cancel() or connecting.cancelled():
            return
        if connecting.exception() is None:
            connecting.result().close()

    def _fail_queued(self) -> None:
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is not None and job.future.set_running_or_notify_cancel():
                job.future.set_exception(TransferFailed(self._why_over))
        self._jobs.put(None)  # wakes the thread, whoever took the one before


def running_future() -> "Future[T]":
    """Returns a future that a waiter cannot cancel: what it stands for goes on anyway."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()
    return future


def _ids(block_ids: Sequence[int], chunk: Chunk) -> Sequence[int]:
    return block_ids[chunk.first_row : chunk.first_row + chunk.rows]


def _wire(buffer: torch.Tensor, job: Job, chunk: Chunk) -> torch.Tensor:
    return buffer.view(-1)[: chunk.rows * job.row_bytes]


def _transfer(job: Job, started_s: float, blocks_s: float) -> Transfer:
    took_ms = (time.monotonic() - started_s) * 1000
    return Transfer(job.rows * job.row_bytes, took_ms, blocks_s * 1000)
