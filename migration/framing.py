"""Writes and reads whole messages on a non-blocking socket, each with a length in front.

The frames are those of a multiprocessing `Connection`, whose own calls know no timeout.
"""

import select
import socket
import struct
import time

MOST_MESSAGE_BYTES = 64 * 1024 * 1024
"""A request with ten million tokens fits; a length that a bug makes up mostly does not."""

HEADER = struct.Struct("!i")


def write_message(connection: socket.socket, message: bytes, until_s: float) -> None:
    """Hands a message to the kernel, until a time of the monotonic clock.

    Raises:
        OSError: the connection has ended, or the peer does not read; part of the message may be
            sent, so the connection is of no use any more.
    """
    # In one piece: a small message is one packet and wakes the reader once.
    rest = memoryview(HEADER.pack(len(message)) + message)
    while rest:
        try:
            rest = rest[connection.send(rest) :]
        except BlockingIOError:
            left_s = until_s - time.monotonic()
            if left_s <= 0 or not _is_ready(connection, select.POLLOUT, left_s):
                raise TimeoutError("the peer does not read") from None


def read_message(connection: socket.socket, stall_s: float) -> bytes | None:
    """Waits for a message, however long, and then at most `stall_s` for each next piece of it.
    None: the peer has left.

    Raises:
        OSError: the connection broke, or what comes is not a message.
    """
    _is_ready(connection, select.POLLIN, None)
    header = bytearray(HEADER.size)
    if not _fill(memoryview(header), connection, stall_s):
        return None
    size = HEADER.unpack(header)[0]
    if not 0 <= size <= MOST_MESSAGE_BYTES:
        raise OSError(f"the peer announced a message of {size} bytes")
    message = bytearray(size)
    if not _fill(memoryview(message), connection, stall_s):
        raise OSError("the peer left in the middle of a message")
    return bytes(message)


def _fill(rest: memoryview, connection: socket.socket, stall_s: float) -> bool:
    """Reads until it is full; says whether it is, or the peer left."""
    while rest:
        try:
            read = connection.recv_into(rest)
        except BlockingIOError:
            if not _is_ready(connection, select.POLLIN, stall_s):
                raise TimeoutError("the peer stopped in the middle of a message") from None
            continue
        if read == 0:
            return False
        rest = rest[read:]
    return True


def _is_ready(connection: socket.socket, event: int, timeout_s: float | None) -> bool:
    """Waits until a socket can be read or written, or has ended; says whether it came to that."""
    poll = select.poll()
    poll.register(connection, event)
    return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))
