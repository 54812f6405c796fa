"""KV blocks between processes: the other end of every channel here is a process of its own."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

import pytest
import torch

from migration import kv_line
from migration.kv_plane import LocalKvPlane, daemon_thread
from migration.ports import Transfer, TransferFailed
from tests.migration.peer import (
    ANSWER_S,
    FakeBlocks,
    Peer,
    connect,
    make_plane,
    running,
)

BLOCK_BYTES = 4096
CHUNK_BYTES = 4 * BLOCK_BYTES
HASTY_S = 1.0
"""Timeout where one is waited for; long enough for a busy machine to connect two processes."""


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    """One process for the tests that leave it in good health."""
    with running(Peer(block_bytes=BLOCK_BYTES, chunk_bytes=CHUNK_BYTES)) as process:
        yield process


@pytest.fixture(scope="module")
def second() -> Iterator[Peer]:
    """Another one, which may hang for a while."""
    with running(Peer(block_bytes=BLOCK_BYTES, chunk_bytes=CHUNK_BYTES, seed=8)) as process:
        yield process


@pytest.fixture
def io() -> FakeBlocks:
    return FakeBlocks(blocks=64, block_bytes=BLOCK_BYTES, seed=1)


@pytest.fixture
def plane(io: FakeBlocks) -> Iterator[LocalKvPlane]:
    plane = make_plane(io, chunk_bytes=CHUNK_BYTES)
    yield plane
    plane.shut_down()


@pytest.fixture
def channel(plane: LocalKvPlane, peer: Peer, request: pytest.FixtureRequest) -> Iterator[str]:
    """A connected channel to the peer."""
    name = request.node.name
    connect(plane, peer, name)
    yield name
    peer.close(name)


@pytest.mark.parametrize("blocks", [1, 3, 4, 5, 32, 64])
def test_blocks_arrive_bit_identical_where_they_belong(
    plane: LocalKvPlane, peer: Peer, io: FakeBlocks, channel: str, blocks: int
):
    source, destination = list(range(blocks))[::-1], torch.randperm(64)[:blocks].tolist()
    before = io.kv.clone()
    receiving = plane.receive(channel, destination)
    sent = peer.ask("send", channel, source, urgent=True)
    received = receiving.result(ANSWER_S)
    assert torch.equal(io.kv[destination], peer.memory.kv[source])
    others = [block for block in range(64) if block not in destination]
    assert torch.equal(io.kv[others], before[others])
    assert isinstance(sent, Transfer)
    assert sent.bytes == received.bytes == blocks * BLOCK_BYTES
    assert max(io.rows_touched) <= 4


def test_blocks_are_there_when_the_sender_is_told(
    plane: LocalKvPlane, peer: Peer, io: FakeBlocks, channel: str
):
    receiving = peer.begin("receive", channel, [60, 61, 62])
    plane.send(channel, [7, 8, 9], urgent=False).result(ANSWER_S)
    assert peer.read([60, 61, 62]) == io.kv[[7, 8, 9]].numpy().tobytes()
    receiving.result()


def test_transfers_of_a_channel_run_in_the_order_they_are_asked_for(
    plane: LocalKvPlane, peer: Peer, io: FakeBlocks, channel: str
):
    receiving = [plane.receive(channel, [block]) for block in (10, 11)]
    back = plane.send(channel, [10], urgent=True)
    begun = [
        peer.begin("send", channel, [20], urgent=True),
        peer.begin("send", channel, [21], urgent=False),
        peer.begin("receive", channel, [63]),
    ]
    for future in (*receiving, back):
        future.result(ANSWER_S)
    for theirs in begun:
        theirs.result()
    assert torch.equal(io.kv[[10, 11]], peer.memory.kv[[20, 21]])
    assert peer.read([63]) == peer.memory.kv[20].numpy().tobytes()


def test_two_channels_of_a_pair_carry_at_the_same_time(
    plane: LocalKvPlane, peer: Peer, io: FakeBlocks, channel: str
):
    connect(plane, peer, "second")
    io.stop_next(after=2)  # the first channel's third chunk: it is in the middle then
    first, first_sent = (
        plane.receive(channel, range(16)),
        peer.begin("send", channel, range(16), urgent=True),
    )
    assert io.stopped.wait(ANSWER_S)
    second = plane.receive("second", [40])
    peer.ask("send", "second", [41], urgent=True)
    second.result(ANSWER_S)
    assert not first.done()
    io.go_on.set()
    first.result(ANSWER_S)
    first_sent.result()
    assert torch.equal(io.kv[:16], peer.memory.kv[:16])
    assert torch.equal(io.kv[40], peer.memory.kv[41])
    peer.close("second")


def test_a_measurement_touches_no_block(
    plane: LocalKvPlane, peer: Peer, io: FakeBlocks, channel: str
):
    receiving = plane.measure_receive(channel, 100_001)
    sent = peer.ask("measure_send", channel, 100_001)
    assert isinstance(sent, Transfer)
    assert sent.bytes == receiving.result(ANSWER_S).bytes == 100_001
    assert io.touches == 0


def test_three_processes_exchange_blocks(
    plane: LocalKvPlane, peer: Peer, second: Peer, io: FakeBlocks
):
    peer.ask("join", "aside", second.ask("offer", "aside"))
    connect(plane, second, "here")
    aside = second.begin("receive", "aside", [5])
    peer.ask("send", "aside", [30], urgent=True)
    aside.result()
    receiving = plane.receive("here", [0, 1])
    second.ask("send", "here", [5, 6], urgent=True)
    receiving.result(ANSWER_S)
    assert torch.equal(io.kv[0], peer.memory.kv[30])
    assert torch.equal(io.kv[1], second.memory.kv[6])
    peer.close("aside")
    second.close("aside")
    second.close("here")


@pytest.mark.parametrize("victim", ["sender", "receiver"])
def test_a_transfer_fails_when_its_peer_is_killed_and_other_channels_go_on(
    plane: LocalKvPlane, peer: Peer, io: FakeBlocks, channel: str, victim: str
):
    with running(Peer(block_bytes=BLOCK_BYTES, chunk_bytes=CHUNK_BYTES)) as doomed:
        connect(plane, doomed, "doomed")
        transfers = [begin_half(plane, doomed, "doomed", victim), plane.receive("doomed", [33])]
        doomed.kill()
        assert_all_fail(transfers)
        assert_all_fail([plane.send("doomed", [0], urgent=True)])
        assert_carries(plane, peer, io, channel)


@pytest.mark.parametrize("victim", ["sender", "receiver"])
def test_a_transfer_fails_in_time_when_its_peer_hangs_and_other_channels_go_on(
    peer: Peer, second: Peer, io: FakeBlocks, victim: str
):
    hasty = make_plane(io, chunk_bytes=CHUNK_BYTES, timeout_s=HASTY_S)
    healthy, hanging = f"healthy-{victim}", f"hanging-{victim}"
    connect(hasty, peer, healthy)
    connect(hasty, second, hanging)
    transfers = [begin_half(hasty, second, hanging, victim), hasty.receive(hanging, [33])]
    with second.hanging():
        assert_all_fail(transfers)
        assert_carries(hasty, peer, io, healthy)
    hasty.shut_down()
    second.go_on()
    second.close(hanging)
    peer.close(healthy)


def test_joining_a_peer_that_hangs_fails_in_time(second: Peer, io: FakeBlocks):
    hasty = make_plane(io, chunk_bytes=CHUNK_BYTES, timeout_s=HASTY_S)
    offer = second.ask("offer", "late")
    assert isinstance(offer, str)
    with second.hanging():
        joining, receiving = hasty.join("late", offer), hasty.receive("late", [1])
        with pytest.raises(TransferFailed, match="not connected"):
            joining.result(ANSWER_S)
        assert_all_fail([receiving])
    hasty.shut_down()
    second.close("late")


def test_closing_in_mid_transfer_ends_it_at_both_ends_and_leaves_the_blocks_alone(
    plane: LocalKvPlane, second: Peer, io: FakeBlocks
):
    connect(plane, second, "closing")
    second.stop_after(2)
    receiving, queued = plane.receive("closing", range(32)), plane.receive("closing", [40])
    sending = second.begin("send", "closing", range(32), urgent=False)
    second.await_stop()
    plane.close("closing")
    for future in (receiving, queued):
        with pytest.raises(TransferFailed, match="closed at this end"):
            future.result(ANSWER_S)
    after = io.kv.clone()
    second.go_on()
    with pytest.raises(TransferFailed):
        sending.result()
    assert torch.equal(io.kv, after)
    second.close("closing")


def test_a_receive_that_is_closed_while_it_writes_is_over_only_when_it_has_written(
    plane: LocalKvPlane, peer: Peer, io: FakeBlocks, channel: str
):
    io.stop_next(after=1)
    receiving = plane.receive(channel, range(12))
    sending = peer.begin("send", channel, range(12), urgent=True)
    assert io.stopped.wait(ANSWER_S)
    plane.close(channel)
    assert not receiving.done()
    io.go_on.set()
    with pytest.raises(TransferFailed, match="closed at this end"):
        receiving.result(ANSWER_S)
    with pytest.raises(TransferFailed):
        sending.result()
    assert io.rows_touched == [4, 4]


def test_memory_that_fails_breaks_its_channel_and_no_other(
    plane: LocalKvPlane, peer: Peer, io: FakeBlocks, channel: str
):
    connect(plane, peer, "healthy")
    receiving = plane.receive(channel, [1000])
    sending = peer.begin("send", channel, [1], urgent=True)
    with pytest.raises(TransferFailed, match="KV memory failed"):
        receiving.result(ANSWER_S)
    with pytest.raises(TransferFailed):
        sending.result()
    assert_carries(plane, peer, io, "healthy")
    peer.close("healthy")


def test_a_channel_can_be_made_again_under_its_name(
    plane: LocalKvPlane, peer: Peer, io: FakeBlocks
):
    for _ in range(2):
        connect(plane, peer, "again")
        assert_carries(plane, peer, io, "again")
        plane.close("again")
        peer.close("again")


def test_what_is_asked_of_no_channel_fails_in_the_future(plane: LocalKvPlane):
    plane.close("nowhere")
    assert_all_fail([plane.receive("nowhere", [1]), plane.measure_send("nowhere", 5)])


def test_a_channel_has_one_end_in_a_plane(plane: LocalKvPlane):
    offer = plane.offer("twice").result(ANSWER_S)
    with pytest.raises(TransferFailed, match="already"):
        plane.offer("twice").result(ANSWER_S)
    with pytest.raises(TransferFailed, match="already"):
        plane.join("twice", offer).result(ANSWER_S)


def test_only_senders_in_no_hurry_rest(peer: Peer, io: FakeBlocks, monkeypatch: pytest.MonkeyPatch):
    shares: list[float] = []

    def rest_s(busy_s: float, copy_share: float) -> float:
        shares.append(copy_share)
        return 0.0

    monkeypatch.setattr(kv_line, "rest_s", rest_s)
    slow = make_plane(io, chunk_bytes=CHUNK_BYTES, copy_share=0.5)
    connect(slow, peer, "paced")
    for urgent in (True, False):
        receiving = peer.begin("receive", "paced", range(12))
        slow.send("paced", range(12), urgent=urgent).result(ANSWER_S)
        receiving.result()
        assert shares == ([] if urgent else [0.5] * 3)
    slow.shut_down()


def test_the_last_blocks_of_a_move_do_not_wait_for_a_rest(
    peer: Peer, io: FakeBlocks, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(kv_line, "rest_s", lambda busy_s, copy_share: 10 * ANSWER_S)
    slow = make_plane(io, chunk_bytes=CHUNK_BYTES, copy_share=0.5)
    connect(slow, peer, "unrested")
    for urgent in (False, True):
        receiving = peer.begin("receive", "unrested", range(1))
        slow.send("unrested", range(1), urgent=urgent).result(ANSWER_S)
        receiving.result()
    slow.shut_down()


def test_shutting_down_ends_every_thread_and_transfer(peer: Peer, io: FakeBlocks):
    threads: list[threading.Thread] = []

    def make_thread(run: Callable[[], None], name: str) -> threading.Thread:
        threads.append(daemon_thread(run, name))
        return threads[-1]

    plane = make_plane(io, chunk_bytes=CHUNK_BYTES, make_thread=make_thread)
    connect(plane, peer, "connected")
    waiting = [plane.receive("connected", [1])]
    plane.offer("unanswered").result(ANSWER_S)
    waiting.append(plane.receive("unanswered", [2]))
    plane.shut_down()
    assert_all_fail(waiting)
    assert [thread.name for thread in threads] == ["ferry-kv-connected", "ferry-kv-unanswered"]
    assert all(thread.daemon and not thread.is_alive() for thread in threads)


TORCH_THREADS = """
from concurrent.futures import ThreadPoolExecutor
import torch
from migration.torch_threads import use_one_torch_thread

def in_new_thread(work):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: (work(), torch.get_num_threads())[1]).result()

torch.set_num_threads(3)
print(in_new_thread(use_one_torch_thread), in_new_thread(lambda: None), torch.get_num_threads())
"""


def test_copying_threads_use_one_torch_thread_and_others_keep_theirs():
    # In a process of its own: an engine in this one takes torch's setter away.
    command = [sys.executable, "-c", TORCH_THREADS]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.split() == ["1", "3", "3"]


def begin_half(plane: LocalKvPlane, other: Peer, channel: str, victim: str) -> "Future[Transfer]":
    """Begins a transfer that stops at the other end after two of its eight chunks."""
    other.stop_after(2)
    if victim == "sender":
        future = plane.receive(channel, range(32))
        other.begin("send", channel, range(32), urgent=True)
    else:
        future = plane.send(channel, range(32), urgent=True)
        other.begin("receive", channel, range(32))
    other.await_stop()
    return future


def assert_all_fail(futures: "Sequence[Future[Transfer]]") -> None:
    for future in futures:
        with pytest.raises(TransferFailed):
            future.result(ANSWER_S)


def assert_carries(plane: LocalKvPlane, other: Peer, io: FakeBlocks, channel: str) -> None:
    receiving = plane.receive(channel, [50])
    other.ask("send", channel, [51], urgent=True)
    receiving.result(ANSWER_S)
    assert torch.equal(io.kv[50], other.memory.kv[51])
