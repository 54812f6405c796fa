"""What a test can hold back inside an engine's process: messages, the log, copies, steps."""

import threading
from collections.abc import Callable

from migration.links import Link
from migration.messages import decode

LONGEST_S = 60.0
"""Nothing is held longer: a test that forgets a valve fails, and does not hang."""


class Valve:
    """Shut, it keeps whoever comes by waiting."""

    def __init__(self) -> None:
        self._is_open = threading.Event()
        self._is_open.set()
        self._reached = threading.Event()

    @property
    def is_shut(self) -> bool:
        return not self._is_open.is_set()

    @property
    def is_reached(self) -> bool:
        """Whether somebody has come by since it was shut."""
        return self._reached.is_set()

    def shut(self) -> None:
        self._reached.clear()
        self._is_open.clear()

    def open(self) -> None:
        self._is_open.set()

    def come_by(self) -> None:
        if self.is_shut:
            self._reached.set()
            self._is_open.wait(LONGEST_S)


class MessageGate:
    """Stands in for `Link.send`: keeps back messages of some names, with all that follows them on
    their link, or loses them."""

    def __init__(self, send: Callable[[Link, bytes], None]) -> None:
        self._send = send
        self._lock = threading.RLock()
        self._held: set[str] = set()
        self._lost: set[str] = set()
        self._waiting: dict[Link, list[bytes]] = {}
        self._links: set[Link] = set()
        self.stopped: list[str] = []
        """Names of the messages that were kept back or lost."""

    def hold(self, name: str) -> None:
        with self._lock:
            self._held.add(name)

    def lose(self, name: str) -> None:
        with self._lock:
            self._lost.add(name)

    def let(self) -> None:
        """Sends what waits, and holds and loses nothing from now on."""
        with self._lock:
            self._held.clear()
            self._lost.clear()
            waiting, self._waiting = self._waiting, {}
            for link, blobs in waiting.items():
                for blob in blobs:
                    self._send_if_open(link, blob)

    def cut(self) -> None:
        """Closes all links that were ever used, as a broken network would."""
        with self._lock:
            for link in self._links:
                link.close()

    def send(self, link: Link, blob: bytes) -> None:
        name = type(decode(blob)).__name__
        with self._lock:
            self._links.add(link)
            if name in self._lost:
                self.stopped.append(name)
            elif name in self._held or link in self._waiting:
                self.stopped.append(name)
                self._waiting.setdefault(link, []).append(blob)
            else:
                self._send(link, blob)

    def _send_if_open(self, link: Link, blob: bytes) -> None:
        try:
            self._send(link, blob)
        except OSError:
            return  # its peer is gone, which the link has told already
