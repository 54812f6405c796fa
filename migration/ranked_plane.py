"""The `KvPlane` of an engine whose KV lies in several ranks: each moves its shard over a channel of
its own.

The ranks' channels have one name and one fate: a transfer has ended when it has on all ranks, and
when one fails the channel is closed on all of them.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

import msgspec

from migration.ports import KvPlane, Transfer, TransferFailed

T = TypeVar("T")
R = TypeVar("R")

_read_offers = msgspec.json.Decoder(list[str]).decode


class RankedKvPlane:
    """See `ports.KvPlane`. The order of the ranks is the same at both ends of a channel."""

    def __init__(self, planes: Sequence[KvPlane]) -> None:
        """`planes`: one a rank."""
        self._planes = tuple(planes)

    def offer(self, channel: str) -> "Future[str]":
        return self._all(channel, [p.offer(channel) for p in self._planes], _as_text)

    def join(self, channel: str, offer: str) -> "Future[None]":
        try:
            offers = _read_offers(offer)
        except msgspec.DecodeError:
            return _failed(f"not an offer of a channel: {offer[:200]!r}")
        if len(offers) != len(self._planes):
            return _failed(f"{len(offers)} ranks offer a channel, {len(self._planes)} are here")
        joined = [p.join(channel, one) for p, one in zip(self._planes, offers, strict=True)]
        return self._all(channel, joined, _nothing)

    def send(self, channel: str, block_ids: Sequence[int], *, urgent: bool) -> "Future[Transfer]":
        sent = [p.send(channel, block_ids, urgent=urgent) for p in self._planes]
        return self._all(channel, sent, together)

    def receive(self, channel: str, block_ids: Sequence[int]) -> "Future[Transfer]":
        received = [p.receive(channel, block_ids) for p in self._planes]
        return self._all(channel, received, together)

    def measure_send(self, channel: str, size_bytes: int) -> "Future[Transfer]":
        size = self._share(size_bytes)
        return self._all(channel, [p.measure_send(channel, size) for p in self._planes], together)

    def measure_receive(self, channel: str, size_bytes: int) -> "Future[Transfer]":
        size = self._share(size_bytes)
        received = [p.measure_receive(channel, size) for p in self._planes]
        return self._all(channel, received, together)

    def close(self, channel: str) -> None:
        for plane in self._planes:
            plane.close(channel)

    def shut_down(self) -> None:
        for plane in self._planes:
            plane.shut_down()

    def _share(self, size_bytes: int) -> int:
        """Returns a rank's part of a measurement, rounded up: a few bytes more in all."""
        return -(-size_bytes // len(self._planes))

    def _all(
        self, channel: str, parts: "Sequence[Future[T]]", merge: Callable[[list[T]], R]
    ) -> "Future[R]":
        """Returns what is done when all ranks are, also when one has failed: until then another one
        may touch its blocks."""
        answer: Future[R] = Future()
        answer.set_running_or_notify_cancel()
        lock = threading.Lock()
        left, errors = len(parts), list[BaseException]()

        def one_done(part: "Future[T]") -> None:
            nonlocal left
            error = part.exception()
            with lock:
                left -= 1
                is_last = left == 0
                is_first_error = error is not None and not errors
                if error is not None:
                    errors.append(error)
            if is_first_error:
                self.close(channel)
            if is_last and errors:
                answer.set_exception(errors[0])
            elif is_last:
                answer.set_result(merge([part.result() for part in parts]))

        for part in parts:
            part.add_done_callback(one_done)
        return answer


def together(transfers: Sequence[Transfer]) -> Transfer:
    """Returns a transfer of all ranks: they run side by side, so the slowest counts."""
    return Transfer(
        bytes=sum(t.bytes for t in transfers),
        took_ms=max(t.took_ms for t in transfers),
        gather_ms=max(t.gather_ms for t in transfers),
    )


def _as_text(offers: list[str]) -> str:
    return msgspec.json.encode(offers).decode()


def _nothing(parts: list[None]) -> None:
    return None


def _failed(why: str) -> "Future[None]":
    future: Future[None] = Future()
    future.set_exception(TransferFailed(why))
    return future
