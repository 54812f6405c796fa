"""The pool's own test of moves, what follows from it, and moves that nobody reports on any more."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec
import pytest
import redis

from engine_pool import view
from engine_pool.board import Board
from engine_pool.config import PoolConfig
from engine_pool.errors import EngineFailed
from engine_pool.move_facts import FACTS, SelfTest
from engine_pool.move_steward import MoveSteward, orphans
from engine_pool.self_test import LONGEST_TOKENS, TOKENS_AFTER, run_self_test
from engine_pool.store import connect, connect_async
from engine_pool.token_log import LogTimes, TokenFrame, TokenLogReader, TokenLogWriter
from engine_pool.types import InstanceName, InstanceState
from migration.report import MoveEnd, MoveReport, MoveState
from tests.engine_pool.conftest import StoreServer
from tests.engine_pool.make import NOW_UNIX_S, status

MOVE = MoveReport(
    migration_id="m1",
    request_id="r",
    seq=3,
    state=MoveState.COPYING,
    source="i-01",
    source_incarnation="inc-1",
    destination="i-02",
    destination_incarnation="inc-2",
    started_unix_s=NOW_UNIX_S - 20,
    at_unix_s=NOW_UNIX_S - 10,
    asked_by="operator olga",
    reason="a test",
)
MOVED_AT = 6
"""Tokens at the source, of a request that moves."""
SOURCE = replace(status("i-01"), incarnation="inc-1")


@pytest.mark.parametrize(
    ("sources", "silent_s", "code"),
    [
        pytest.param([SOURCE], 10.0, None, id="its source lives"),
        pytest.param([], 10.0, "peer_lost", id="its source is gone"),
        pytest.param([], 2.0, None, id="its destination may still tell"),
        pytest.param(
            [replace(SOURCE, state=InstanceState.LOST)], 10.0, "peer_lost", id="its source is lost"
        ),
        pytest.param(
            [replace(SOURCE, incarnation="inc-9")], 10.0, "peer_lost", id="its source began anew"
        ),
        pytest.param([SOURCE], 200.0, "timed_out", id="nobody works on it"),
    ],
)
def test_a_move_is_ended_for_those_who_cannot(
    sources: list, silent_s: float, code: str | None
) -> None:
    move = replace(MOVE, at_unix_s=NOW_UNIX_S - silent_s)
    ends = orphans([move], sources, NOW_UNIX_S)
    assert [(e.state, e.code) for e in ends] == ([(MoveState.ABORTED, code)] if code else [])


def test_an_ended_move_keeps_what_its_source_had_told(store: StoreServer) -> None:
    client = redis.Redis.from_url(store.url)
    bulletin = view.Bulletin(client)
    bulletin.report_move(replace(MOVE, sent_bytes=77))
    for end in orphans([MOVE], [], NOW_UNIX_S):
        bulletin.report_move_end(end)
        bulletin.report_move_end(end)
    assert client.hlen(view.MOVES) == 0
    ((_, fields),) = client.xrange(view.MOVES_ENDED)
    told = view.decode_move(fields[b"m"])
    assert (told.state, told.sent_bytes, told.abort_code) == (MoveState.ABORTED, 77, "peer_lost")


def test_the_first_end_of_a_move_stands_when_its_source_reports_on_and_dies(
    store: StoreServer,
) -> None:
    client = connect(store.url)
    bulletin = view.Bulletin(client)
    bulletin.report_move(MOVE)
    bulletin.report_move_end(MoveEnd(MOVE.migration_id, MoveState.COMMITTED, "peer_lost", "cut"))
    bulletin.report_move(replace(MOVE, seq=MOVE.seq + 1))
    for end in orphans([MOVE], [], NOW_UNIX_S):
        bulletin.report_move_end(end)
    assert client.hlen(view.MOVES) == 0
    ((_, fields),) = client.xrange(view.MOVES_ENDED)
    assert view.decode_move(fields[b"m"]).state is MoveState.COMMITTED


class ProbedEngine:
    """An engine actor that answers a probe at once; `spoils` changes what it says after a move."""

    def __init__(self, name: str, writer: TokenLogWriter, bulletin: view.Bulletin) -> None:
        self.actor = f"actor-{name}"
        self.name = name
        self.writer = writer
        self.bulletin = bulletin
        self.peer: ProbedEngine | None = None
        self.spoils: Callable[[int], int] = lambda token: token
        self.drift: Callable[[int], int] = lambda token: token
        """Changes what it says without a move."""
        self.refusal: tuple[str, str] | None = None
        self.aborts_moves = False
        self.forbidden: list[str] = []
        self.probes = 0
        self.ended: list[str] = []
        self.running: dict[str, tuple[int, int]] = {}
        """Epoch and tokens of what has not ended here."""

    async def submit_probe(self, request_id: str, prompt_tokens: int, max_tokens: int) -> None:
        self.probes += 1
        assert self.peer is None or not self.peer.running, "two would speak into one log"
        # The one that is to be moved goes on until it is.
        self.say(request_id, 0, min(max_tokens, MOVED_AT), max_tokens, epoch=1)
        if max_tokens < LONGEST_TOKENS:
            self.say(request_id, MOVED_AT, max_tokens, max_tokens, epoch=1)

    async def migrate(self, wish: dict[str, object]) -> tuple[str, str] | None:
        if self.refusal is not None:
            return self.refusal
        assert self.peer is not None
        migration_id, state = str(wish["migration_id"]), MoveState.COMMITTED
        if self.aborts_moves:
            state = MoveState.ABORTED
        else:
            end = MOVED_AT + TOKENS_AFTER
            self.peer.say(str(wish["request_id"]), MOVED_AT, end, LONGEST_TOKENS, epoch=2)
        reason = "12 blocks free, 41 needed" if self.aborts_moves else ""
        report = replace(MOVE, migration_id=migration_id, state=state, abort_reason=reason)
        self.bulletin.report_move(replace(report, downtime_ms=9.0))
        return None

    async def abort(self, request_ids: list[str]) -> None:
        self.ended += request_ids
        for request_id in request_ids:
            if (at := self.running.pop(request_id, None)) is not None:
                epoch, tokens = at
                frame = TokenFrame(request_id, epoch, tokens, (), self.name, "abort")
                self.writer.append([frame])

    async def forbid_moves(self, why: str) -> None:
        self.forbidden.append(why)

    def say(self, request_id: str, start: int, end: int, length: int, *, epoch: int) -> None:
        if end < length:
            self.running[request_id] = (epoch, end)
        for index in range(start, end):
            token = 100 + index
            token = self.spoils(token) if epoch > 1 else self.drift(token)
            reason = "length" if index == length - 1 else None
            frame = TokenFrame(request_id, epoch, index, (token,), self.name, reason)
            taken = self.writer.append([frame], frozenset([request_id] if index == 0 else []))
            assert not taken.refused


@dataclass
class End:
    instance: InstanceName
    incarnation: str
    engine: ProbedEngine


@pytest.fixture
def ends(store: StoreServer) -> tuple[End, End]:
    writer = TokenLogWriter(connect(store.url), LogTimes())
    bulletin = view.Bulletin(connect(store.url))
    a, b = (ProbedEngine(name, writer, bulletin) for name in ("i-01", "i-02"))
    a.peer = b
    return End(InstanceName("i-01"), "inc-1", a), End(InstanceName("i-02"), "inc-2", b)


def self_test(store: StoreServer, ends: tuple[End, End]) -> SelfTest:
    async def run() -> SelfTest:
        client = connect_async(store.url)
        try:
            return await run_self_test(client, TokenLogReader(client, LogTimes()), *ends)
        finally:
            await client.aclose()

    return asyncio.run(run())


def test_the_self_test_passes_when_every_token_is_the_same(store, ends) -> None:
    test = self_test(store, ends)
    assert test.ok
    assert f"{MOVED_AT + TOKENS_AFTER} tokens" in test.detail
    assert test.downtime_ms == 9.0
    assert redis.Redis.from_url(store.url).keys("ferry:log:*") == [], "nothing is left of it"
    assert all(e.engine.ended for e in ends), "it is ended wherever it runs"


def test_the_self_test_names_the_first_token_that_differs(store, ends) -> None:
    ends[1].engine.spoils = lambda token: 7 if token == 110 else token
    test = self_test(store, ends)
    assert (test.ok, test.is_conclusive) == (False, True)
    assert test.detail == "output token 10 differs: 110 without, 7 with a move"


def test_an_engine_that_does_not_repeat_itself_proves_nothing(store, ends) -> None:
    engine = ends[0].engine
    ends[1].engine.spoils = lambda token: 7
    engine.drift = lambda token: token + engine.probes
    test = self_test(store, ends)
    assert (test.ok, test.is_conclusive) == (False, False)
    assert "repeat itself" in test.detail


def test_a_self_test_whose_move_is_refused_says_nothing_about_answers(store, ends) -> None:
    ends[0].engine.refusal = ("too_many", "i-01 has 4 moves under way")
    test = self_test(store, ends)
    assert (test.ok, test.is_conclusive) == (False, False)
    assert "4 moves under way" in test.detail


def test_a_self_test_whose_move_is_aborted_says_nothing_about_answers(store, ends) -> None:
    ends[0].engine.aborts_moves = True
    test = self_test(store, ends)
    assert (test.ok, test.is_conclusive) == (False, False)
    assert "12 blocks free" in test.detail


class Stewarded:
    """A steward that runs, with what it says."""

    def __init__(self, store: StoreServer, ends: tuple[End, End]) -> None:
        self.store = redis.Redis.from_url(store.url)
        self.config = PoolConfig(redis_url=store.url)
        self.ends = ends

    def run_until(self, claim: Callable[[], object]) -> None:
        async def run() -> None:
            board = Board(self.config.redis_url)
            steward = MoveSteward(self.config, board, lambda: self.ends)
            tasks = [asyncio.create_task(steward.run()), asyncio.create_task(board.run())]
            give_up_s = time.monotonic() + 60
            while not claim():
                assert time.monotonic() < give_up_s, "it does not happen"
                await asyncio.sleep(0.02)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await board.close()

        asyncio.run(run())

    def fact(self, name: str) -> bytes | None:
        return self.store.hget(FACTS, name)

    def events(self) -> list[str]:
        return [view.decode_event(f[b"e"]).kind for _, f in self.store.xrange(view.EVENTS)]


def test_a_self_test_that_differs_forbids_moves_everywhere_and_says_so(store, ends) -> None:
    ends[1].engine.spoils = lambda token: 7
    pool = Stewarded(store, ends)
    pool.run_until(
        lambda: all(e.engine.forbidden for e in ends) and "migration_disabled" in pool.events()
    )
    assert pool.fact("allowed") == b"0"
    assert b"differs" in (pool.fact("why") or b"")
    assert "differs" in ends[0].engine.forbidden[0]
    assert not msgspec.json.decode(pool.fact("self_test") or b"", type=SelfTest).ok


def test_a_self_test_that_cannot_be_carried_out_forbids_nothing(store, ends) -> None:
    ends[0].engine.aborts_moves = True
    pool = Stewarded(store, ends)
    pool.run_until(lambda: "migration_untested" in pool.events())
    assert pool.fact("allowed") is None
    assert ends[0].engine.forbidden == []


def test_a_passed_self_test_allows_moves(store, ends) -> None:
    pool = Stewarded(store, ends)
    pool.run_until(lambda: "migration_tested" in pool.events())
    assert pool.fact("allowed") == b"1"
    assert ends[0].engine.forbidden == []


def test_with_moves_switched_off_nothing_is_tested(store, ends) -> None:
    pool = Stewarded(store, ends)
    pool.config = replace(pool.config, migration=False)
    pool.run_until(lambda: pool.fact("allowed"))
    assert pool.fact("allowed") == b"0"
    assert b"FERRY_MIGRATION" in (pool.fact("why") or b"")
    assert ends[0].engine.probes == 0


def test_an_engine_that_does_not_take_the_probe_is_no_proof(store, ends) -> None:
    async def fails(request_id: str, prompt_tokens: int, max_tokens: int) -> None:
        raise EngineFailed("no answer to submit_probe for 10 s")

    ends[0].engine.submit_probe = fails
    test = self_test(store, ends)
    assert (test.ok, test.is_conclusive) == (False, False)
    assert "no answer" in test.detail
