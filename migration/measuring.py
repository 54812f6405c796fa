"""Measures the way between two engines: echoes for the round trip, a transfer for the rate."""

import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Final

from migration import messages
from migration.office import PeerLink
from migration.ports import KvPlane, KvShape, Transfer, TransferFailed
from migration.stages import Way

ECHOES: Final = 5
"""Round trips that are measured; the fastest counts, as the others waited for a processor."""


@dataclass(slots=True)
class _Measurement:
    link: PeerLink
    size_bytes: int
    answer: "Future[Way]"
    channel: str
    echoes: int = 0
    sent_s: float = 0.0
    round_trip_ms: float = float("inf")
    is_sending: bool = False


class Measurements:
    """An agent's. `begin`: any thread; all else: the agent's."""

    def __init__(
        self,
        plane: KvPlane,
        shape: KvShape,
        send: Callable[[PeerLink, messages.Message], None],
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        self._plane = plane
        self._shape = shape
        self._send = send
        self._post = post
        self._mine: dict[str, _Measurement] = {}

    def begin(self, link: PeerLink, size_bytes: int, answer: "Future[Way]") -> None:
        """Measures over a link. `answer` fails with TransferFailed."""
        name = uuid.uuid4().hex[:12]
        one = _Measurement(link, size_bytes, answer, f"measure-{name}")
        self._post(partial(self._begin, name, one))

    def on_message(self, link: PeerLink, message: messages.Measure | messages.Measured) -> None:
        if isinstance(message, messages.Measure):
            self._asked(link, message)
        elif (one := self._mine.get(message.move)) is not None:
            self._answered(message, one)

    def on_closed(self, link: PeerLink) -> None:
        for name in [n for n, one in self._mine.items() if one.link is link]:
            self._fail(name, "the connection was lost")

    def _begin(self, name: str, one: _Measurement) -> None:
        self._mine[name] = one
        self._echo(name, one)

    def _echo(self, name: str, one: _Measurement) -> None:
        one.sent_s = time.perf_counter()
        self._send(one.link, messages.Measure(name, "", None, 0, self._shape))

    def _answered(self, message: messages.Measured, one: _Measurement) -> None:
        took_ms = (time.perf_counter() - one.sent_s) * 1000
        if message.error:
            self._fail(message.move, message.error)
        elif one.is_sending:
            rate = one.size_bytes / max(1e-6, (took_ms - one.round_trip_ms) / 1000)
            self._plane.close(one.channel)
            del self._mine[message.move]
            one.answer.set_result(Way(rate, one.round_trip_ms))
        else:
            one.round_trip_ms = min(one.round_trip_ms, took_ms)
            one.echoes += 1
            if one.echoes < ECHOES:
                self._echo(message.move, one)
            else:
                self._open(message.move, one)

    def _open(self, name: str, one: _Measurement) -> None:
        self._plane.offer(one.channel).add_done_callback(
            lambda offer: self._post(partial(self._offered, name, one, offer))
        )

    def _offered(self, name: str, one: _Measurement, offer: "Future[str]") -> None:
        if (error := offer.exception()) is not None:
            self._fail(name, str(error))
            return
        # A small transfer first: it waits until both ends are open.
        one.is_sending = True
        self._send(
            one.link,
            messages.Measure(name, one.channel, offer.result(), one.size_bytes, self._shape),
        )
        self._plane.measure_send(one.channel, 1).add_done_callback(
            lambda sent: self._post(partial(self._is_open, name, one, sent))
        )

    def _is_open(self, name: str, one: _Measurement, sent: "Future[Transfer]") -> None:
        if (error := sent.exception()) is not None:
            self._fail(name, str(error))
            return
        one.sent_s = time.perf_counter()
        self._plane.measure_send(one.channel, one.size_bytes)

    def _asked(self, link: PeerLink, message: messages.Measure) -> None:
        if message.shape != self._shape:
            self._send(link, messages.Measured(message.move, "their KV caches differ"))
        elif message.offer is None:
            self._send(link, messages.Measured(message.move, ""))
        else:
            self._plane.join(message.channel, message.offer)
            self._plane.measure_receive(message.channel, 1)
            self._plane.measure_receive(message.channel, message.size_bytes).add_done_callback(
                lambda got: self._post(partial(self._received, link, message, got))
            )

    def _received(self, link: PeerLink, message: messages.Measure, got: "Future[Transfer]") -> None:
        error = got.exception()
        self._send(link, messages.Measured(message.move, "" if error is None else str(error)))
        self._plane.close(message.channel)

    def _fail(self, name: str, why: str) -> None:
        one = self._mine.pop(name, None)
        if one is not None:
            self._plane.close(one.channel)
            one.answer.set_exception(TransferFailed(why))
