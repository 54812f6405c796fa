"""Planes of several ranks: each rank's memory is served at the other end of a connection, as in an
engine's worker processes."""

import os
import socket
import threading
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import pytest
import torch

from migration.kv_plane import LocalKvPlane
from migration.ports import Transfer, TransferFailed
from migration.ranked_plane import RankedKvPlane, together
from migration.remote_plane import PlaneTerms, RemoteKvPlane, serve_plane
from tests.migration.peer import HOST, FakeBlocks

RANKS = 3
BLOCK_BYTES = 1024
TERMS = PlaneTerms(host=HOST, timeout_s=20.0, chunk_bytes=4 * BLOCK_BYTES, copy_share=1.0)
WAIT_S = 120.0


class Ranks:
    """The workers of one engine, and its plane."""

    def __init__(self, seed: int, ranks: int = RANKS) -> None:
        self.memory = [FakeBlocks(32, BLOCK_BYTES, seed + n) for n in range(ranks)]
        self.ends: list[Connection] = []
        self.serving: list[threading.Thread] = []
        self.hung_up = [threading.Event() for _ in range(ranks)]
        planes = []
        for memory, hung_up in zip(self.memory, self.hung_up, strict=True):
            ours, theirs = Pipe()
            self.ends.append(theirs)
            self.serving.append(threading.Thread(target=serve, args=(theirs, memory), daemon=True))
            self.serving[-1].start()
            planes.append(RemoteKvPlane(ours, hung_up.set))
        for one in planes:
            one.open(TERMS).result(WAIT_S)
        self.remotes = planes
        self.plane = RankedKvPlane(planes)


def serve(connection: Connection, memory: FakeBlocks) -> None:
    def open_plane(terms: PlaneTerms) -> LocalKvPlane:
        return LocalKvPlane(
            memory,
            host=terms.host,
            timeout_s=terms.timeout_s,
            chunk_bytes=terms.chunk_bytes,
            copy_share=terms.copy_share,
        )

    serve_plane(connection, open_plane)


def hang_up(end: Connection) -> None:
    """Does what the system does with the ends of a killed process."""
    with socket.socket(fileno=os.dup(end.fileno())) as one:
        one.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def source() -> Iterator[Ranks]:
    ranks = Ranks(seed=1)
    yield ranks
    ranks.plane.shut_down()


@pytest.fixture
def destination() -> Iterator[Ranks]:
    ranks = Ranks(seed=101)
    yield ranks
    ranks.plane.shut_down()


@pytest.fixture
def channel(source: Ranks, destination: Ranks) -> str:
    destination.plane.join("c", source.plane.offer("c").result(WAIT_S)).result(WAIT_S)
    return "c"


def test_each_rank_gets_its_own_shard(source: Ranks, destination: Ranks, channel: str):
    receiving = destination.plane.receive(channel, [4, 5, 6])
    sent = source.plane.send(channel, [9, 1, 30], urgent=True).result(WAIT_S)
    received = receiving.result(WAIT_S)
    assert sent.bytes == received.bytes == 3 * RANKS * BLOCK_BYTES
    for there, here in zip(source.memory, destination.memory, strict=True):
        assert torch.equal(here.kv[[4, 5, 6]], there.kv[[9, 1, 30]])


def test_a_transfer_is_done_when_its_slowest_rank_is(
    source: Ranks, destination: Ranks, channel: str
):
    slow = destination.memory[2]
    slow.stop_next(after=0)
    receiving = destination.plane.receive(channel, [4])
    sending = source.plane.send(channel, [9], urgent=True)
    assert slow.stopped.wait(WAIT_S)
    assert not receiving.done()
    assert not sending.done()
    slow.go_on.set()
    assert receiving.result(WAIT_S).bytes == sending.result(WAIT_S).bytes


def test_the_time_of_a_transfer_is_its_slowest_ranks():
    both = together([Transfer(10, 5.0, 1.0), Transfer(12, 3.0, 2.0)])
    assert both == Transfer(22, 5.0, 2.0)


def test_a_rank_that_fails_closes_the_channel_on_all(
    source: Ranks, destination: Ranks, channel: str
):
    """And the future waits for the others: until then they may touch the blocks."""
    stopped = destination.memory[0]
    stopped.stop_next(after=0)
    receiving = destination.plane.receive(channel, [4])
    sending = source.plane.send(channel, [9], urgent=True)
    assert stopped.stopped.wait(WAIT_S)
    destination.remotes[1].close(channel)
    # That rank had ended well; the next transfer finds it closed.
    failing = destination.plane.receive(channel, [5])
    assert not failing.done()
    stopped.go_on.set()
    # Whether the rank hears first of the closing or of the transfer is open; either tells it.
    with pytest.raises(TransferFailed, match=r"there is no channel|the channel was closed"):
        failing.result(WAIT_S)
    for transfer in (receiving, sending):
        transfer.exception(WAIT_S)
    for remote in destination.remotes:
        with pytest.raises(TransferFailed, match="there is no channel"):
            remote.receive(channel, [6]).result(WAIT_S)
    with pytest.raises(TransferFailed):
        source.plane.send(channel, [9], urgent=True).result(WAIT_S)


def test_a_measurement_is_shared_among_the_ranks(source: Ranks, destination: Ranks, channel: str):
    receiving = destination.plane.measure_receive(channel, 10_000)
    sent = source.plane.measure_send(channel, 10_000).result(WAIT_S)
    assert sent.bytes == receiving.result(WAIT_S).bytes == 10_002


def test_engines_of_different_numbers_of_ranks_open_no_channel(source: Ranks):
    fewer = Ranks(seed=201, ranks=2)
    offer = source.plane.offer("c").result(WAIT_S)
    with pytest.raises(TransferFailed, match="3 ranks offer a channel, 2 are here"):
        fewer.plane.join("c", offer).result(WAIT_S)
    with pytest.raises(TransferFailed, match="not an offer of a channel"):
        fewer.plane.join("c", "nonsense").result(WAIT_S)
    fewer.plane.shut_down()


def test_a_worker_that_is_gone_fails_what_waits_and_is_told_once(
    source: Ranks, destination: Ranks, channel: str
):
    receiving = destination.plane.receive(channel, [4])
    hang_up(destination.ends[1])
    assert destination.hung_up[1].wait(WAIT_S)
    with pytest.raises(TransferFailed, match="a worker process of this engine has ended"):
        receiving.result(WAIT_S)
    # The rank that lives may have closed the channel by now, and then says so first.
    with pytest.raises(TransferFailed, match=r"a worker process .* has ended|there is no channel"):
        destination.plane.receive(channel, [5]).result(WAIT_S)
    with pytest.raises(TransferFailed):
        source.plane.send(channel, [9], urgent=True).result(WAIT_S)
    assert not destination.hung_up[0].is_set()


def test_a_worker_shuts_its_plane_down_when_the_engines_process_is_gone(
    source: Ranks, destination: Ranks, channel: str
):
    receiving = destination.plane.receive(channel, [4])
    for end in source.ends:
        hang_up(end)
    for thread in source.serving:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    with pytest.raises(TransferFailed):
        receiving.result(WAIT_S)
