"""Moves KV blocks between this engine's memory and others': `ports.KvPlane` for one rank.

Each channel has one thread of its own, so a slow or dead peer holds up nobody else. What a thread
does: `kv_line`; how bytes travel: `channels`; how much of the time copying may take: `pace`.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import torch

from migration.channel_terms import Backend, ChannelOffer, ChannelTerms
from migration.channels import Channel, join_channel, offer_channel
from migration.kv_line import Buffers, Job, Line, running_future
from migration.ports import KvBlockIo, Transfer, TransferFailed

MakeThread = Callable[[Callable[[], None], str], threading.Thread]
"""Makes a thread that is not started, of what it runs and its name."""

ENDING_S = 2.0
"""How long `shut_down` waits for the threads: a chunk's copy, a few ms, and then some."""


def daemon_thread(run: Callable[[], None], name: str) -> threading.Thread:
    """Makes a thread that does not keep its process alive."""
    return threading.Thread(target=run, name=name, daemon=True)


class LocalKvPlane:
    """The `ports.KvPlane` over the KV memory of this process."""

    def __init__(
        self,
        io: KvBlockIo,
        *,
        host: str,
        timeout_s: float,
        chunk_bytes: int,
        copy_share: float,
        backend: Backend = "gloo",
        device: torch.device | None = None,
        make_thread: MakeThread = daemon_thread,
    ) -> None:
        """Opens nothing yet.

        `host`: this host's address, which peers reach and both sockets are bound to. `timeout_s`:
        longest wait for a connection and for each chunk. `chunk_bytes`: the same on all engines of
        a pool. `copy_share`: of the time, above 0 up to 1, for transfers that are not urgent.
        `device`: of the KV, for NCCL.
        """
        if not 0.0 < copy_share <= 1.0:
            raise ValueError(f"copy_share is above 0 and at most 1, not {copy_share:g}")
        if timeout_s <= 0 or chunk_bytes < 1:
            raise ValueError(f"no use of {timeout_s:g} s and chunks of {chunk_bytes} bytes")
        self._io = io
        self._terms = ChannelTerms(
            host, backend, timeout_s, chunk_bytes, device or torch.device("cpu")
        )
        self._copy_share = copy_share
        self._make_thread = make_thread
        self._buffers = Buffers(io, chunk_bytes)
        self._lock = threading.Lock()
        self._lines: dict[str, tuple[Line, threading.Thread]] = {}

    def offer(self, channel: str) -> "Future[str]":
        """See `ports.KvPlane`."""
        answer: Future[str] = running_future()

        def connect() -> "Future[Channel]":
            try:
                offer, connecting = offer_channel(self._terms)
            except (OSError, RuntimeError) as error:
                failure = TransferFailed(f"no channel could be offered: {error}")
                answer.set_exception(failure)
                raise failure from error
            answer.set_result(offer.as_text())
            return connecting

        if self._open(channel, connect) is None:
            answer.set_exception(TransferFailed(f"there is a channel {channel!r} already"))
        return answer

    def join(self, channel: str, offer: str) -> "Future[None]":
        """See `ports.KvPlane`."""

        def connect() -> "Future[Channel]":
            return join_channel(ChannelOffer.from_text(offer), self._terms)

        line = self._open(channel, connect)
        if line is not None:
            return line.connected
        refused: Future[None] = Future()
        refused.set_exception(TransferFailed(f"there is a channel {channel!r} already"))
        return refused

    def send(self, channel: str, block_ids: Sequence[int], *, urgent: bool) -> "Future[Transfer]":
        """See `ports.KvPlane`."""
        ids = tuple(block_ids)
        return self._submit(channel, Job(True, len(ids), self._io.block_bytes, ids, urgent))

    def receive(self, channel: str, block_ids: Sequence[int]) -> "Future[Transfer]":
        """See `ports.KvPlane`."""
        ids = tuple(block_ids)
        return self._submit(channel, Job(False, len(ids), self._io.block_bytes, ids, True))

    def measure_send(self, channel: str, size_bytes: int) -> "Future[Transfer]":
        """See `ports.KvPlane`."""
        return self._submit(channel, Job(True, size_bytes, 1, None, True))

    def measure_receive(self, channel: str, size_bytes: int) -> "Future[Transfer]":
        """See `ports.KvPlane`."""
        return self._submit(channel, Job(False, size_bytes, 1, None, True))

    def close(self, channel: str) -> None:
        """See `ports.KvPlane`."""
        with self._lock:
            line, _ = self._lines.pop(channel, (None, None))
        if line is not None:
            line.close()

    def shut_down(self) -> None:
        """Closes all channels and waits a moment for the threads to end."""
        with self._lock:
            lines = list(self._lines.values())
            self._lines.clear()
        for line, _ in lines:
            line.close()
        until_s = time.monotonic() + ENDING_S
        for _, thread in lines:
            thread.join(max(0.0, until_s - time.monotonic()))

    def _open(self, channel: str, connect: "Callable[[], Future[Channel]]") -> Line | None:
        """Starts a line; None when there is one of that name."""
        line = Line(
            connect,
            self._io,
            self._buffers,
            timeout_s=self._terms.timeout_s,
            copy_share=self._copy_share,
        )
        thread = self._make_thread(line.run, f"ferry-kv-{channel}")
        with self._lock:
            if channel in self._lines:
                return None
            self._lines[channel] = (line, thread)
        thread.start()
        return line

    def _submit(self, channel: str, job: Job) -> "Future[Transfer]":
        with self._lock:
            line, _ = self._lines.get(channel, (None, None))
        if line is None:
            job.future.set_exception(TransferFailed(f"there is no channel {channel!r}"))
        else:
            line.submit(job)
        return job.future
