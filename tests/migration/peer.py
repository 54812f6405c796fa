"""A process of its own with KV memory and a `LocalKvPlane`, told what to do through a pipe."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from multiprocessing.connection import Connection

import torch

from migration.kv_plane import LocalKvPlane
from migration.ports import TransferFailed

HOST = "127.0.0.1"
ANSWER_S = 60.0
"""Longest a test waits for the other process, which imports torch on a busy machine."""


class FakeBlocks:
    """KV memory as one plain tensor. It can be made to stop in the middle of a transfer."""

    is_on_gpu = False

    def __init__(self, blocks: int, block_bytes: int, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        self.kv = torch.randint(0, 256, (blocks, block_bytes), dtype=torch.uint8, generator=random)
        self.stop_after: int | None = None
        self.stopped = threading.Event()
        self.go_on = threading.Event()
        self.touches = 0
        self.rows_touched: list[int] = []

    @property
    def block_bytes(self) -> int:
        return self.kv.shape[1]

    def new_buffer(self, blocks: int) -> torch.Tensor:
        return torch.empty((blocks, self.block_bytes), dtype=torch.uint8)

    def gather(self, block_ids: Sequence[int], buffer: object) -> None:
        self._touch(block_ids)
        assert isinstance(buffer, torch.Tensor)
        torch.index_select(self.kv, 0, torch.tensor(block_ids), out=buffer[: len(block_ids)])

    def scatter(self, block_ids: Sequence[int], buffer: object) -> None:
        self._touch(block_ids)
        assert isinstance(buffer, torch.Tensor)
        self.kv.index_copy_(0, torch.tensor(block_ids), buffer[: len(block_ids)])

    def _touch(self, block_ids: Sequence[int]) -> None:
        if self.touches == self.stop_after:
            self.stopped.set()
            assert self.go_on.wait(ANSWER_S)
        self.touches += 1
        self.rows_touched.append(len(block_ids))


def make_plane(
    io: FakeBlocks, *, timeout_s: float = 20.0, chunk_bytes: int, copy_share: float = 1.0
) -> LocalKvPlane:
    return LocalKvPlane(
        io, host=HOST, timeout_s=timeout_s, chunk_bytes=chunk_bytes, copy_share=copy_share
    )


class Peer:
    """The other process, seen from the test."""

    def __init__(
        self,
        *,
        blocks: int = 64,
        block_bytes: int = 4096,
        seed: int = 7,
        timeout_s: float = 20.0,
        chunk_bytes: int = 16384,
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        args = (theirs, blocks, block_bytes, seed, timeout_s, chunk_bytes)
        self.process = context.Process(target=_serve, args=args, daemon=True)
        self.process.start()
        theirs.close()
        self.memory = FakeBlocks(blocks, block_bytes, seed)
        """A copy of what the process's memory held at first."""

    def ask(self, method: str, *args: object, **more: object) -> object:
        """Calls a method of the process's plane, or of its own commands."""
        self.tell(method, *args, **more)
        return self.answer()

    def tell(self, method: str, *args: object, **more: object) -> None:
        """Begins a call; its answer is to be fetched."""
        self._pipe.send((method, args, more))

    def answer(self) -> object:
        assert self._pipe.poll(ANSWER_S), "the peer process does not answer"
        outcome = self._pipe.recv()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def kill(self) -> None:
        """Ends the process without a farewell."""
        self.process.kill()
        self.process.join(ANSWER_S)

    def stop(self) -> None:
        """Makes the process hang: it lives, and does nothing any more."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGSTOP)


@contextmanager
def running(peer: Peer) -> Iterator[Peer]:
    try:
        yield peer
    finally:
        peer.kill()


def connect(plane: LocalKvPlane, peer: Peer, channel: str) -> None:
    """Joins a channel that the peer offers; done when both ends are connected."""
    offer = peer.ask("offer", channel)
    assert isinstance(offer, str)
    plane.join(channel, offer).result(ANSWER_S)


def _serve(
    pipe: Connection, blocks: int, block_bytes: int, seed: int, timeout_s: float, chunk_bytes: int
) -> None:
    io = FakeBlocks(blocks, block_bytes, seed)
    plane = make_plane(io, timeout_s=timeout_s, chunk_bytes=chunk_bytes)
    while True:
        method, args, more = pipe.recv()
        try:
            if method == "read":
                outcome: object = io.kv[list(args)].clone().numpy().tobytes()
            elif method == "stop_after":
                io.stop_after, outcome = args[0], None
            elif method == "await_stop":
                outcome = io.stopped.wait(ANSWER_S)
            else:
                outcome = getattr(plane, method)(*args, **more)
            pipe.send(outcome.result(ANSWER_S) if isinstance(outcome, Future) else outcome)
        except TransferFailed as error:
            pipe.send(error)
