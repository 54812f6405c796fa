"""Engines whose model is split over two worker processes: they serve, and their requests move, each
rank's blocks over a channel of its own.

Two engines are five processes, so one pair does for everything that does not end an engine.
"""

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine_pool.config import PoolConfig
from engine_pool.errors import EngineFailed
from engine_pool.vllm_plane import plane_terms
from migration.ports import KvPlane, TransferFailed
from tests.engine_pool.vllm_pair import (
    MAX_RUNNING,
    Pair,
    forget_prefixes,
    make_engine,
    prompt_of,
    run_unmoved,
    wish,
)

pytestmark = pytest.mark.slow

RANKS = 2
WAIT_S = 120.0
GREEDY = {"max_tokens": 20}
SEEDED = {"temperature": 0.9, "seed": 11, "top_p": 0.9, "frequency_penalty": 0.7}
CHANNEL = "there"


class RankedPair(Pair):
    """Blocks go through the engines' planes, from worker to worker."""

    def __init__(self, engines, planes: "tuple[KvPlane, KvPlane]") -> None:
        super().__init__(*engines)
        self._planes = planes
        self.copied_bytes = 0

    def copy(self, source, sent: Sequence[int], destination, into: Sequence[int]) -> None:
        if not sent:
            return
        at = self.engines.index(source)
        receiving = self._planes[1 - at].receive(CHANNEL, into)
        there = self._planes[at].send(CHANNEL, sent, urgent=True).result(WAIT_S)
        assert receiving.result(WAIT_S).bytes == there.bytes
        self.copied_bytes += there.bytes


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[object, object]]:
    both = make_engine("i-01", RANKS), make_engine("i-02", RANKS)
    yield both
    for engine in both:
        engine.close()
    assert multiprocessing.active_children() == []


@pytest.fixture(scope="module")
def planes(engines) -> "Iterator[tuple[KvPlane, KvPlane]]":
    terms = plane_terms(PoolConfig(), "127.0.0.1")
    source, destination = (engine.open_plane(terms) for engine in engines)
    connect(source, destination, CHANNEL)
    yield source, destination
    for plane in (source, destination):
        plane.shut_down()


@pytest.fixture
def pair(engines, planes) -> Iterator[RankedPair]:
    one = RankedPair(engines, planes)
    forget_prefixes(one)
    yield one
    for engine in engines:
        assert not engine.has_work()
        assert engine.load().used_tokens == 0
        assert engine._scheduler.requests == {}
        assert engine._scheduler.max_num_active_reqs == MAX_RUNNING


def connect(source: KvPlane, destination: KvPlane, channel: str) -> None:
    offer = source.offer(channel).result(WAIT_S)
    destination.join(channel, offer).result(WAIT_S)


def test_the_blocks_of_all_ranks_are_one_shape(engines):
    first, second = (engine.moves.shape for engine in engines)
    assert first == second
    assert first.ranks == RANKS
    # As many bytes as in one process: the ranks share the KV heads.
    assert first.block_bytes == 65536
    assert engines[0].kv is None
    assert [e.load().capacity_tokens for e in engines] == [39 * 128] * 2


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_a_moved_request_answers_as_one_that_stayed(pair, sampling):
    [stayed] = run_unmoved(pair, wish(prompt_of(300), **sampling))
    moved = pair.add(wish(prompt_of(300), **sampling))
    pair.until(moved, 5)
    there = pair.move(moved, steps=2)
    pair.until(moved, 12)
    back = pair.move(moved)
    pair.finish()
    assert pair.answers[moved] == stayed
    sent = there.sent_blocks + back.sent_blocks
    assert sent >= 3
    assert pair.copied_bytes == sent * pair.engines[0].moves.shape.block_bytes


def test_a_request_that_comes_back_before_the_next_step_goes_on(pair):
    [stayed] = run_unmoved(pair, wish(prompt_of(200), **SEEDED))
    moved = pair.add(wish(prompt_of(200), **SEEDED))
    pair.until(moved, 4)
    pair.move(moved)
    pair.move(moved)
    pair.finish()
    assert pair.answers[moved] == stayed


def test_a_copy_ends_while_the_engines_take_no_step(pair, planes):
    """No call of vLLM's carries it, so no step holds it up, nor an engine that is idle."""
    source, destination = planes
    receiving = destination.receive(CHANNEL, [1, 2])
    sent = source.send(CHANNEL, [3, 4], urgent=False).result(WAIT_S)
    assert receiving.result(WAIT_S).bytes == sent.bytes == 2 * 65536


def test_the_way_between_two_engines_is_measured_on_all_ranks(planes):
    source, destination = planes
    connect(source, destination, "measured")
    receiving = destination.measure_receive("measured", 1_000_001)
    assert source.measure_send("measured", 1_000_001).result(WAIT_S).bytes >= 1_000_001
    assert receiving.result(WAIT_S).bytes >= 1_000_001
    source.close("measured")
    destination.close("measured")


def test_a_channel_that_one_rank_loses_fails_on_all(planes):
    source, destination = planes
    connect(source, destination, "lost")
    receiving = destination.receive("lost", [1])
    source._planes[1].close("lost")
    with pytest.raises(TransferFailed):
        receiving.result(WAIT_S)
    for rank in source._planes:
        with pytest.raises(TransferFailed):
            rank.send("lost", [1], urgent=True).result(WAIT_S)
    source.close("lost")


def test_a_worker_that_dies_ends_its_engine(engines, planes):
    """The last test: this engine is of no use any more."""
    engine, plane = engines[1], planes[1]
    engine.add(wish(prompt_of(100), max_tokens=1500))

    def serve() -> None:
        while engine.has_work():
            engine.step()

    with ThreadPoolExecutor(1) as steps:
        serving = steps.submit(serve)
        engine._core.model_executor.workers[1].proc.kill()
        assert serving.exception(WAIT_S) is not None
    assert engine.has_work()
    with pytest.raises(EngineFailed, match="a worker process of the engine has ended"):
        engine.step()
    with pytest.raises(TransferFailed, match="a worker process of this engine has ended"):
        plane.receive(CHANNEL, [1]).result(WAIT_S)
