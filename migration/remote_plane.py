"""A `KvPlane` whose memory is in another process of the same engine (a rank's worker).

The two speak over a connection of their own, a socket on this machine, in small messages: what is
to be done, and what became of it. Blocks never pass here. Nothing waits for the engine's steps: a
call reaches the worker while its step runs, and the end of a transfer is known when it has ended.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Literal, TypeVar, cast

import msgspec

from migration.ports import KvPlane, Transfer, TransferFailed

log = logging.getLogger(__name__)

T = TypeVar("T")


class PlaneTerms(msgspec.Struct, frozen=True, array_like=True):
    """What a plane of one rank is told when it is opened."""

    host: str
    """This host's address, which peers reach."""
    timeout_s: float
    """Longest wait for a connection and for each chunk."""
    chunk_bytes: int
    copy_share: float
    """Of the time, above 0 up to 1, for transfers that are not urgent."""


Method = Literal[
    "open",
    "offer",
    "join",
    "send",
    "receive",
    "measure_send",
    "measure_receive",
    "close",
    "shut_down",
]


class _Call(msgspec.Struct, frozen=True, array_like=True):
    number: int
    method: Method
    channel: str = ""
    offer: str = ""
    block_ids: tuple[int, ...] = ()
    size_bytes: int = 0
    is_urgent: bool = False
    terms: PlaneTerms | None = None


class _Answer(msgspec.Struct, frozen=True, array_like=True):
    number: int
    error: str | None = None
    """Why it failed; None: it did not."""
    offer: str | None = None
    transfer: Transfer | None = None


_encode = msgspec.msgpack.encode
_read_call = msgspec.msgpack.Decoder(_Call).decode
_read_answer = msgspec.msgpack.Decoder(_Answer).decode


class RemoteKvPlane:
    """This process's end. Any thread; every method returns at once."""

    def __init__(self, connection: Connection, on_end: Callable[[], None]) -> None:
        """`on_end` is called once, in a thread of its own, when the other process hangs up."""
        self._connection = connection
        self._on_end = on_end
        self._sending = threading.Lock()
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[object]] = {}
        self._last_number = 0
        self._is_over = False
        threading.Thread(target=self._run, name="ferry-kv-worker", daemon=True).start()

    def open(self, terms: PlaneTerms) -> "Future[None]":
        """Opens the other process's plane; before anything else is asked of it."""
        return cast("Future[None]", self._ask("open", terms=terms))

    def offer(self, channel: str) -> "Future[str]":
        return cast("Future[str]", self._ask("offer", channel))

    def join(self, channel: str, offer: str) -> "Future[None]":
        return cast("Future[None]", self._ask("join", channel, offer=offer))

    def send(self, channel: str, block_ids: Sequence[int], *, urgent: bool) -> "Future[Transfer]":
        ids = tuple(block_ids)
        return self._transfer("send", channel, block_ids=ids, urgent=urgent)

    def receive(self, channel: str, block_ids: Sequence[int]) -> "Future[Transfer]":
        return self._transfer("receive", channel, block_ids=tuple(block_ids))

    def measure_send(self, channel: str, size_bytes: int) -> "Future[Transfer]":
        return self._transfer("measure_send", channel, size_bytes=size_bytes)

    def measure_receive(self, channel: str, size_bytes: int) -> "Future[Transfer]":
        return self._transfer("measure_receive", channel, size_bytes=size_bytes)

    def close(self, channel: str) -> None:
        self._ask("close", channel)

    def shut_down(self) -> None:
        self._ask("shut_down")

    def _transfer(
        self,
        method: Method,
        channel: str,
        *,
        block_ids: tuple[int, ...] = (),
        size_bytes: int = 0,
        urgent: bool = False,
    ) -> "Future[Transfer]":
        asked = self._ask(
            method, channel, block_ids=block_ids, size_bytes=size_bytes, urgent=urgent
        )
        return cast("Future[Transfer]", asked)

    def _ask(
        self,
        method: Method,
        channel: str = "",
        *,
        offer: str = "",
        block_ids: tuple[int, ...] = (),
        size_bytes: int = 0,
        urgent: bool = False,
        terms: PlaneTerms | None = None,
    ) -> "Future[object]":
        future: Future[object] = Future()
        # What it stands for goes on even if nobody wants it any more.
        future.set_running_or_notify_cancel()
        with self._sending:
            number = self._wait_for(future)
            if number is not None:
                call = _Call(number, method, channel, offer, block_ids, size_bytes, urgent, terms)
                # When it has hung up, the reading thread sees it too and fails all that waits.
                with contextlib.suppress(OSError):
                    self._connection.send_bytes(_encode(call))
        return future

    def _wait_for(self, future: "Future[object]") -> int | None:
        """Returns the number of a call; None: there is nobody any more, and the future fails."""
        with self._lock:
            if not self._is_over:
                self._last_number += 1
                self._waiting[self._last_number] = future
                return self._last_number
        future.set_exception(_gone())
        return None

    def _run(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                self._settle(_read_answer(self._connection.recv_bytes()))
        with self._lock:
            self._is_over = True
            left = list(self._waiting.values())
            self._waiting.clear()
        for future in left:
            future.set_exception(_gone())
        self._on_end()

    def _settle(self, answer: _Answer) -> None:
        with self._lock:
            future = self._waiting.pop(answer.number)
        if answer.error is not None:
            future.set_exception(TransferFailed(answer.error))
        else:
            future.set_result(answer.transfer or answer.offer)


def serve_plane(connection: Connection, open_plane: Callable[[PlaneTerms], KvPlane]) -> None:
    """Does what a `RemoteKvPlane` asks, until its process hangs up."""
    server = _Server(connection, open_plane)
    try:
        while True:
            server.take(_read_call(connection.recv_bytes()))
    except (EOFError, OSError):
        log.info("the engine's process is gone")
    finally:
        server.end()


class _Server:
    def __init__(self, connection: Connection, open_plane: Callable[[PlaneTerms], KvPlane]) -> None:
        self._connection = connection
        self._open_plane = open_plane
        self._plane: KvPlane | None = None
        self._lock = threading.Lock()

    def take(self, call: _Call) -> None:
        try:
            future = self._begin(call)
        except Exception as error:
            log.exception("%s of the KV plane failed", call.method)
            self._send(_Answer(call.number, f"{call.method} failed: {error!r}"))
            return
        if future is None:
            self._send(_Answer(call.number))
        else:
            future.add_done_callback(lambda done: self._done(call.number, done))

    def end(self) -> None:
        if self._plane is not None:
            self._plane.shut_down()

    def _begin(self, call: _Call) -> "Future[str] | Future[Transfer] | Future[None] | None":
        """Returns None for what is done at once."""
        if call.terms is not None:
            self._plane = self._open_plane(call.terms)
            return None
        plane = self._plane
        assert plane is not None, "the first call opens the plane"
        match call.method:
            case "offer":
                return plane.offer(call.channel)
            case "join":
                return plane.join(call.channel, call.offer)
            case "send":
                return plane.send(call.channel, call.block_ids, urgent=call.is_urgent)
            case "receive":
                return plane.receive(call.channel, call.block_ids)
            case "measure_send":
                return plane.measure_send(call.channel, call.size_bytes)
            case "measure_receive":
                return plane.measure_receive(call.channel, call.size_bytes)
            case "close":
                plane.close(call.channel)
            case _:
                plane.shut_down()
        return None

    def _done(self, number: int, future: "Future[T]") -> None:
        error = future.exception()
        if error is not None:
            self._send(_Answer(number, str(error) or type(error).__name__))
            return
        result = future.result()
        self._send(
            _Answer(
                number,
                offer=result if isinstance(result, str) else None,
                transfer=result if isinstance(result, Transfer) else None,
            )
        )

    def _send(self, answer: _Answer) -> None:
        # Nobody is left to be told when it has hung up.
        with self._lock, contextlib.suppress(OSError):
            self._connection.send_bytes(_encode(answer))


def _gone() -> TransferFailed:
    return TransferFailed("a worker process of this engine has ended")
