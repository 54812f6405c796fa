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

from migration.kv_plane import LocalKvPlane, MakeThread, daemon_thread
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

    def stop_next(self, after: int) -> None:
        """Makes it stop once in front of the next touch after so many."""
        self.stopped.clear()
        self.go_on.clear()
        self.stop_after = after

    def _touch(self, block_ids: Sequence[int]) -> None:
        if self.touches == self.stop_after:
            self.stop_after = None
            self.stopped.set()
            assert self.go_on.wait(ANSWER_S)
        self.touches += 1
        self.rows_touched.append(len(block_ids))


def make_plane(
    io: FakeBlocks,
    *,
    chunk_bytes: int,
    timeout_s: float = 20.0,
    copy_share: float = 1.0,
    make_thread: MakeThread = daemon_thread,
) -> LocalKvPlane:
    return LocalKvPlane(
        io,
        host=HOST,
        timeout_s=timeout_s,
        chunk_bytes=chunk_bytes,
        copy_share=copy_share,
        make_thread=make_thread,
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

    def begin(self, method: str, *args: object, **more: object) -> "Begun":
        """Calls a method of the process's plane that returns a future."""
        return Begun(self, self._command("begin", method, *args, **more))

    def ask(self, method: str, *args: object, **more: object) -> object:
        """Calls such a method and waits for what comes of it."""
        return self.begin(method, *args, **more).result()

    def close(self, channel: str) -> None:
        self._command("close", channel)

    def read(self, block_ids: Sequence[int]) -> bytes:
        """Returns what is in its memory."""
        content = self._command("read", *block_ids)
        assert isinstance(content, bytes)
        return content

    def stop_after(self, touches: int) -> None:
        """Makes its memory stop in front of the next touch after so many."""
        self._command("stop_after", touches)

    def await_stop(self) -> None:
        assert self._command("await_stop"), "the peer's memory did not get that far"

    def go_on(self) -> None:
        """Lets its memory go on where it stopped."""
        self._command("go_on")

    def _command(self, name: str, *args: object, **more: object) -> object:
        self._pipe.send((name, args, more))
        assert self._pipe.poll(ANSWER_S), "the peer process does not answer"
        outcome = self._pipe.recv()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def kill(self) -> None:
        """Ends the process without a farewell."""
        self.process.kill()
        self.process.join(ANSWER_S)

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Stops the process for a while: it lives, and does nothing."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)


class Begun:
    """A future in the other process."""

    def __init__(self, peer: Peer, number: object) -> None:
        self._peer = peer
        self._number = number

    def result(self) -> object:
        return self._peer._command("result", self._number)


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
    futures: list[Future[object]] = []
    while True:
        name, args, more = pipe.recv()
        outcome: object = None
        try:
            if name == "begin":
                futures.append(getattr(plane, args[0])(*args[1:], **more))
                outcome = len(futures) - 1
            elif name == "result":
                outcome = futures[args[0]].result(ANSWER_S)
            elif name == "close":
                plane.close(*args)
            elif name == "read":
                outcome = io.kv[list(args)].numpy().tobytes()
            elif name == "stop_after":
                io.stop_next(io.touches + args[0])
            elif name == "go_on":
                io.go_on.set()
            else:
                outcome = io.stopped.wait(ANSWER_S)
        except TransferFailed as error:
            outcome = error
        pipe.send(outcome)
