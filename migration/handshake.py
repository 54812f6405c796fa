"""Makes sure that both ends of a fresh socket hold the same key, within a time.

It is the challenge of the standard library's `multiprocessing.connection`: each side has the other
sign a random message (HMAC), so the key itself never travels.
"""

import multiprocessing
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 5, 2, 3
"""A host that vanished is given up after 11 s of silence."""


class HandshakeFailed(Exception):
    """The other side has another key, is no peer of ours at all, or was too slow."""


def shake_hands(fresh: socket.socket, key: bytes, timeout_s: float, *, is_listener: bool) -> None:
    """Authenticates both sides of a connected socket and prepares it for messages.

    Raises:
        HandshakeFailed: the socket is of no use any more.
    """
    try:
        # `Connection` closes its descriptor, so it gets one of its own.
        connection = Connection(os.dup(fresh.fileno()))
    except OSError as error:
        raise HandshakeFailed(str(error)) from error
    try:
        with _cut_off(fresh, timeout_s):
            _prepare(fresh)
            if is_listener:
                deliver_challenge(connection, key)
                answer_challenge(connection, key)
            else:
                answer_challenge(connection, key)
                deliver_challenge(connection, key)
    except multiprocessing.AuthenticationError as error:
        raise HandshakeFailed("the keys differ") from error
    except (EOFError, OSError) as error:
        why = str(error) or f"the other side left, or took longer than {timeout_s:g} s"
        raise HandshakeFailed(why) from error
    except AssertionError as error:  # what was received is not shown: it may be anything
        raise HandshakeFailed("the other side speaks something else") from error
    finally:
        connection.close()


def shut(connection: socket.socket) -> None:
    """Ends a socket's reads and writes, in other threads too, and keeps its descriptor."""
    with suppress(OSError):  # it is not connected any more
        connection.shutdown(socket.SHUT_RDWR)


def _prepare(fresh: socket.socket) -> None:
    fresh.settimeout(None)
    tcp = socket.IPPROTO_TCP
    fresh.setsockopt(tcp, socket.TCP_NODELAY, 1)
    fresh.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    fresh.setsockopt(tcp, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    fresh.setsockopt(tcp, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    fresh.setsockopt(tcp, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)


@contextmanager
def _cut_off(connection: socket.socket, after_s: float) -> Iterator[None]:
    """Shuts a socket unless the block ends in time. A socket's own timeout counts from byte to
    byte, so a stranger who sends one now and then would never end."""
    timer = threading.Timer(after_s, shut, args=(connection,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
