"""Control links: messages, strangers and deaths."""

import multiprocessing
import os
import queue
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import pytest

from migration.framing import HEADER, MOST_MESSAGE_BYTES
from migration.handshake import shake_hands
from migration.links import MOST_HANDSHAKES, Invitation, Link, LinkFailed, LinkListener, connect

HOST = "127.0.0.1"
ANSWER_S = 120.0
HASTY_S = 0.5


class Ear:
    """Keeps what the callbacks of one side's links are told."""

    def __init__(self) -> None:
        self.links: queue.Queue[Link] = queue.Queue()
        self.messages: queue.Queue[bytes] = queue.Queue()
        self.closed: queue.Queue[Link] = queue.Queue()
        self.threads: set[str] = set()

    def on_link(self, link: Link) -> None:
        self.links.put(link)

    def on_message(self, link: Link, message: bytes) -> None:
        self.threads.add(threading.current_thread().name)
        self.messages.put(message)

    def on_closed(self, link: Link) -> None:
        self.threads.add(threading.current_thread().name)
        self.closed.put(link)


def listen(ear: Ear, timeout_s: float = 10.0) -> LinkListener:
    return LinkListener(HOST, ear.on_link, ear.on_message, ear.on_closed, timeout_s=timeout_s)


def dial(invitation: Invitation, ear: Ear, timeout_s: float = 10.0) -> Link:
    return connect(invitation, timeout_s, ear.on_message, ear.on_closed)


@pytest.fixture
def here() -> Ear:
    return Ear()


@pytest.fixture
def there() -> Ear:
    return Ear()


@pytest.fixture
def listener(there: Ear) -> Iterator[LinkListener]:
    listener = listen(there)
    yield listener
    listener.close()


@pytest.fixture
def link(listener: LinkListener, here: Ear) -> Iterator[Link]:
    link = dial(listener.invitation, here)
    yield link
    link.close()


@pytest.mark.parametrize("size_bytes", [0, 1, 200, 70_000, MOST_MESSAGE_BYTES])
def test_a_message_arrives_whole_in_both_directions(
    link: Link, here: Ear, there: Ear, size_bytes: int
):
    message = os.urandom(min(size_bytes, 1 << 20)).ljust(size_bytes, b"x")
    link.send(message)
    assert there.messages.get(timeout=ANSWER_S) == message
    there.links.get(timeout=ANSWER_S).send(message)
    assert here.messages.get(timeout=ANSWER_S) == message


def test_a_message_over_the_limit_is_refused_and_the_link_goes_on(link: Link, there: Ear):
    with pytest.raises(ValueError, match="at most 67108864 bytes, not 67108865"):
        link.send(bytes(MOST_MESSAGE_BYTES + 1))
    link.send(b"next")
    assert there.messages.get(timeout=ANSWER_S) == b"next"


def test_messages_of_many_threads_do_not_mix_and_keep_each_threads_order(link: Link, there: Ear):
    def send_all(name: int) -> None:
        for number in range(50):
            link.send(bytes([name, number]) * 20_000)

    threads = [threading.Thread(target=send_all, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    got = [there.messages.get(timeout=ANSWER_S) for _ in range(200)]
    for thread in threads:
        thread.join(ANSWER_S)
    assert all(message == message[:2] * 20_000 for message in got)
    for name in range(4):
        assert [message[1] for message in got if message[0] == name] == list(range(50))


@pytest.mark.parametrize("side", ["here", "there"])
def test_closing_is_told_once_at_both_ends_in_the_reader_thread(
    link: Link, here: Ear, there: Ear, side: str
):
    other = there.links.get(timeout=ANSWER_S)
    closing = link if side == "here" else other
    closing.close()
    closing.close()
    assert here.closed.get(timeout=ANSWER_S) is link
    assert there.closed.get(timeout=ANSWER_S) is other
    for end in (link, other):
        with pytest.raises(LinkFailed):
            end.send(b"late")
        end.close()
    assert here.closed.empty()
    assert there.closed.empty()
    assert here.threads == there.threads == {"ferry-link"}


def test_a_link_may_be_closed_from_its_own_callback(listener: LinkListener, there: Ear, here: Ear):
    link = connect(listener.invitation, 10.0, lambda link, _: link.close(), here.on_closed)
    there.links.get(timeout=ANSWER_S).send(b"go away")
    assert here.closed.get(timeout=ANSWER_S) is link


def test_a_callback_that_fails_ends_its_link_and_no_other(
    listener: LinkListener, link: Link, there: Ear, here: Ear
):
    def fail(link: Link, message: bytes) -> None:
        raise RuntimeError("a bug")

    healthy_end = there.links.get(timeout=ANSWER_S)
    failing = connect(listener.invitation, 10.0, fail, here.on_closed)
    there.links.get(timeout=ANSWER_S).send(b"unexpected")
    assert here.closed.get(timeout=ANSWER_S) is failing
    healthy_end.send(b"still here")
    assert here.messages.get(timeout=ANSWER_S) == b"still here"


def test_a_peer_that_does_not_read_breaks_the_link(here: Ear, there: Ear):
    listener = listen(there, timeout_s=HASTY_S)
    with authenticated(listener.invitation):
        link = there.links.get(timeout=ANSWER_S)
        with pytest.raises(LinkFailed, match="does not read"):
            link.send(bytes(MOST_MESSAGE_BYTES))
        assert there.closed.get(timeout=ANSWER_S) is link
    listener.close()


@pytest.mark.parametrize("size_bytes", [-1, MOST_MESSAGE_BYTES + 1])
def test_an_announced_size_that_cannot_be_breaks_the_link(
    listener: LinkListener, there: Ear, size_bytes: int
):
    with authenticated(listener.invitation) as peer:
        peer.sendall(HEADER.pack(size_bytes))
        assert there.closed.get(timeout=ANSWER_S) is there.links.get(timeout=ANSWER_S)
    assert there.messages.empty()


def test_a_message_that_stops_half_way_is_not_waited_for_longer_than_agreed(there: Ear):
    listener = listen(there, timeout_s=HASTY_S)
    with authenticated(listener.invitation) as peer:
        peer.sendall(HEADER.pack(100) + b"half")
        assert there.closed.get(timeout=ANSWER_S) is there.links.get(timeout=ANSWER_S)
    assert there.messages.empty()
    listener.close()


def test_a_wrong_key_gets_no_link_and_harms_nobody(
    listener: LinkListener, link: Link, here: Ear, there: Ear
):
    there.links.get(timeout=ANSWER_S)
    with pytest.raises(LinkFailed, match="the keys differ"):
        dial(replace(listener.invitation, key=bytes(32)), here)
    link.send(b"undisturbed")
    assert there.messages.get(timeout=ANSWER_S) == b"undisturbed"
    assert there.links.empty()


@pytest.mark.parametrize(
    "greeting",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", id="a web browser"),
        pytest.param(bytes(10_000), id="zeros"),
        pytest.param(b"\xff" * 10_000, id="ones"),
        pytest.param(b"", id="a port scanner"),
    ],
)
def test_garbage_is_turned_away(listener: LinkListener, here: Ear, there: Ear, greeting: bytes):
    with socket.create_connection((HOST, listener.invitation.port)) as stranger:
        # It may be turned away before it has said all.
        with suppress(OSError):
            stranger.sendall(greeting)
            stranger.shutdown(socket.SHUT_WR)
        stranger.settimeout(ANSWER_S)
        read_all(stranger)
    assert there.links.empty()
    dial(listener.invitation, here).send(b"welcome")
    assert there.messages.get(timeout=ANSWER_S) == b"welcome"


def test_strangers_who_say_nothing_do_not_keep_a_peer_out(
    listener: LinkListener, here: Ear, there: Ear
):
    address = (HOST, listener.invitation.port)
    silent = [socket.create_connection(address) for _ in range(3 * MOST_HANDSHAKES)]
    dial(listener.invitation, here).send(b"welcome")
    assert there.messages.get(timeout=ANSWER_S) == b"welcome"
    for stranger in silent:
        stranger.close()


def test_a_handshake_without_end_is_cut_off(there: Ear):
    listener = listen(there, timeout_s=HASTY_S)
    with socket.create_connection((HOST, listener.invitation.port)) as stranger:
        stranger.settimeout(ANSWER_S)
        read_all(stranger)  # comes to an end because the listener ends it
    assert there.links.empty()
    listener.close()


def test_a_listener_that_is_no_peer_is_left_in_time(here: Ear):
    with socket.create_server((HOST, 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(LinkFailed, match="longer than"):
            dial(Invitation(HOST, port, b"k"), here, timeout_s=HASTY_S)


def test_a_closed_listener_takes_nobody_and_its_links_go_on(
    listener: LinkListener, link: Link, here: Ear, there: Ear
):
    there.links.get(timeout=ANSWER_S)
    listener.close()
    with pytest.raises(LinkFailed):
        dial(listener.invitation, here, timeout_s=HASTY_S)
    link.send(b"still here")
    assert there.messages.get(timeout=ANSWER_S) == b"still here"


def test_an_invitation_does_not_show_its_key(listener: LinkListener):
    invitation = listener.invitation
    assert str(invitation.port) in repr(invitation)
    assert repr(invitation.key)[2:-1] not in repr(invitation)
    assert "key" not in repr(invitation)


def test_a_link_is_closed_at_once_when_its_peer_is_killed(here: Ear):
    with echoing_process() as (process, invitation):
        link = dial(invitation, here)
        link.send(b"hello")
        assert here.messages.get(timeout=ANSWER_S) == b"hello"
        process.kill()
        assert here.closed.get(timeout=ANSWER_S) is link


def test_a_peer_that_hangs_is_not_waited_for_longer_than_agreed(here: Ear):
    with echoing_process() as (process, invitation):
        link = dial(invitation, here, timeout_s=HASTY_S)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(LinkFailed):
            link.send(bytes(MOST_MESSAGE_BYTES))
        assert here.closed.get(timeout=ANSWER_S) is link
        with pytest.raises(LinkFailed, match="longer than"):
            dial(invitation, here, timeout_s=HASTY_S)


@contextmanager
def authenticated(invitation: Invitation) -> Iterator[socket.socket]:
    """Yields the bare socket of a peer that holds an invitation."""
    with socket.create_connection((invitation.host, invitation.port)) as peer:
        shake_hands(peer, invitation.key, ANSWER_S, is_listener=False)
        yield peer


def read_all(stranger: socket.socket) -> None:
    """Reads until the other side ends the connection, in whatever way."""
    with suppress(ConnectionError):
        while stranger.recv(65536):
            pass


@contextmanager
def echoing_process() -> Iterator[tuple[BaseProcess, Invitation]]:
    """Yields a process that sends every message back, and how to reach it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=echo, args=(theirs,), daemon=True)
    process.start()
    assert ours.poll(ANSWER_S), "the other process does not start"
    try:
        yield process, ours.recv()
    finally:
        process.kill()
        process.join(ANSWER_S)


def echo(pipe: Connection) -> None:
    ear = Ear()
    listener = LinkListener(
        HOST, ear.on_link, lambda link, message: link.send(message), ear.on_closed, timeout_s=10.0
    )
    pipe.send(listener.invitation)
    pipe.poll(None)
