"""Carries control messages between two engine processes: authenticated, whole, in order.

Who may connect holds an invitation. Nothing is encrypted, so the hosts must trust the network
between them; strangers on it are turned away without disturbing anybody (`handshake`).

The death of a process closes its sockets, so the other side knows at once; a dead host is found by
TCP's keepalive.
"""

import logging
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from migration.framing import MOST_MESSAGE_BYTES, read_message, write_message
from migration.handshake import HandshakeFailed, shake_hands, shut

logger = logging.getLogger(__name__)

KEY_BYTES = 32
"""Not to be guessed."""

MOST_HANDSHAKES = 16
"""At once. One more turns the oldest away: an honest one takes milliseconds, so that one is a port
scanner that says nothing."""

ACCEPT_PAUSE_S = 0.05
"""After a connection could not be accepted, which may be for want of descriptors."""


class LinkFailed(ConnectionError):
    """A link could not be made, or is broken."""


@dataclass(frozen=True, slots=True)
class Invitation:
    """What a process must know to connect to a listener. The key is a secret."""

    host: str
    port: int
    key: bytes = field(repr=False)


class Link:
    """One end of a connection. Its callbacks run in its reader thread, one after the other; one
    that waits keeps the messages behind it waiting."""

    def __init__(
        self,
        connection: socket.socket,
        on_message: "OnMessage",
        on_closed: "OnClosed",
        timeout_s: float,
    ) -> None:
        """Takes over an authenticated socket. Nothing is read before `read_until_closed`."""
        connection.setblocking(False)
        self._socket = connection
        self._on_message = on_message
        self._on_closed = on_closed
        self._timeout_s = timeout_s
        self._sending = threading.Lock()
        self._ending = threading.Lock()
        self._is_closed = False

    def send(self, message: bytes) -> None:
        """Sends a message; any thread. On return it may still be on its way.

        Raises:
            ValueError: it is longer than MOST_MESSAGE_BYTES; nothing of it is sent.
            LinkFailed: the link is broken, or is now because the peer does not read in time.
        """
        if len(message) > MOST_MESSAGE_BYTES:
            raise ValueError(
                f"a message has at most {MOST_MESSAGE_BYTES} bytes, not {len(message)}"
            )
        until_s = time.monotonic() + self._timeout_s
        if not self._sending.acquire(timeout=self._timeout_s):
            self.close()
            raise LinkFailed(f"the peer did not read for {self._timeout_s:g} s")
        try:
            write_message(self._socket, message, until_s)
        except OSError as error:
            self.close()
            raise LinkFailed(f"the link is closed: {error}") from error
        finally:
            self._sending.release()

    def close(self) -> None:
        """Ends the link; any thread, repeatedly. `on_closed` follows in the reader thread."""
        self._is_closed = True
        with self._ending:
            shut(self._socket)

    def read_until_closed(self) -> None:
        """Delivers messages until the link ends: the reader thread's own function."""
        try:
            while (message := read_message(self._socket, self._timeout_s)) is not None:
                if self._is_closed:
                    break
                self._on_message(self, message)
        except OSError as error:
            logger.info("a link broke: %s", error)
        except Exception:
            logger.exception("a message broke its link")
        self.close()
        # Nobody may be using the descriptor: it can be another file's as soon as it is closed.
        with self._sending, self._ending:
            self._socket.close()
        try:
            self._on_closed(self)
        except Exception:
            logger.exception("the end of a link could not be dealt with")


OnLink = Callable[[Link], None]
OnMessage = Callable[[Link, bytes], None]
OnClosed = Callable[[Link], None]


class LinkListener:
    """Takes connections of those who hold its invitation."""

    def __init__(
        self,
        host: str,
        on_link: OnLink,
        on_message: OnMessage,
        on_closed: OnClosed,
        *,
        timeout_s: float,
    ) -> None:
        """Listens on a free port of an address of this host.

        `on_link` is called for a new link before its first message, in the thread that will read
        it. `timeout_s`: for a handshake, and for a peer to read or finish a message.

        Raises:
            OSError: this host does not have that address.
        """
        self._on_link = on_link
        self._on_message = on_message
        self._on_closed = on_closed
        self._timeout_s = timeout_s
        family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
        self._socket = socket.create_server((host, 0), family=family, backlog=MOST_HANDSHAKES)
        port = self._socket.getsockname()[1]
        self.invitation = Invitation(host, port, secrets.token_bytes(KEY_BYTES))
        self._lock = threading.Lock()
        self._handshakes: deque[socket.socket] = deque()
        self._is_closed = False
        threading.Thread(target=self._accept, name="ferry-link-accept", daemon=True).start()

    def close(self) -> None:
        """Takes no more links. Those it has go on."""
        self._is_closed = True
        shut(self._socket)

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                fresh, _ = self._socket.accept()
            except OSError as error:
                if not self._is_closed:
                    logger.warning("a connection could not be accepted: %s", error)
                    time.sleep(ACCEPT_PAUSE_S)
                continue
            self._make_room(fresh)
            threading.Thread(
                target=self._welcome, args=(fresh,), name="ferry-link", daemon=True
            ).start()
        self._socket.close()

    def _make_room(self, fresh: socket.socket) -> None:
        with self._lock:
            self._handshakes.append(fresh)
            if len(self._handshakes) > MOST_HANDSHAKES:
                shut(self._handshakes.popleft())

    def _welcome(self, fresh: socket.socket) -> None:
        try:
            shake_hands(fresh, self.invitation.key, self._timeout_s, is_listener=True)
        except HandshakeFailed as error:
            logger.warning("a connection was turned away: %s", error)
            fresh.close()
            return
        finally:
            with self._lock:
                if fresh in self._handshakes:
                    self._handshakes.remove(fresh)
        link = Link(fresh, self._on_message, self._on_closed, self._timeout_s)
        try:
            self._on_link(link)
        except Exception:
            logger.exception("a new link could not be dealt with")
            link.close()
        link.read_until_closed()


def connect(
    invitation: Invitation, timeout_s: float, on_message: OnMessage, on_closed: OnClosed
) -> Link:
    """Accepts an invitation. Callbacks may run before it returns; `timeout_s` is for connecting,
    and for the peer to read or finish a message.

    Raises:
        LinkFailed: nobody listens there, or not with this key.
    """
    until_s = time.monotonic() + timeout_s
    where = f"{invitation.host}:{invitation.port}"
    try:
        fresh = socket.create_connection((invitation.host, invitation.port), timeout_s)
    except OSError as error:
        raise LinkFailed(f"no connection to {where}: {error}") from error
    try:
        left_s = max(0.0, until_s - time.monotonic())
        shake_hands(fresh, invitation.key, left_s, is_listener=False)
    except HandshakeFailed as error:
        fresh.close()
        raise LinkFailed(f"no link to {where}: {error}") from error
    link = Link(fresh, on_message, on_closed, timeout_s)
    threading.Thread(target=link.read_until_closed, name="ferry-link", daemon=True).start()
    return link
