"""kill -9 of either side in every state of a move: engines in processes of their own, real links, a
real log."""

import time
from collections.abc import Iterator

import pytest

from engine_pool import view
from engine_pool.move_steward import ORPHAN_AFTER_S, orphans
from migration.report import MoveState
from tests.engine_pool.conftest import StoreServer
from tests.engine_pool.test_simulated_moves import unmoved
from tests.migration.engine_process import EngineProcess
from tests.migration.moments import (
    MOMENTS,
    MOVE,
    MOVED,
    QUICK,
    Heir,
    Moment,
    begin,
    long_answer,
)
from tests.migration.rig import Rig, until

TRAVEL_TOKENS = 120
"""Of an answer that is moved there and back."""
each_moment = pytest.mark.parametrize("moment", MOMENTS, ids=lambda m: m.name)
OWN = {"i-01": "own-a", "i-02": "own-b"}


@pytest.fixture
def rig(store: StoreServer) -> Iterator[Rig]:
    """Two engines that decode: a request that will move, and one of each engine's own."""
    two = Rig(store)
    try:
        two.submit(two.a, long_answer(MOVED), long_answer(OWN["i-01"], prompt_tokens=20))
        two.submit(two.b, long_answer(OWN["i-02"], prompt_tokens=20))
        until(lambda: len(two.tokens(MOVED)) > 3 and two.tokens("own-b"), "all decode")
        yield two
    finally:
        two.end()


def bring_to(rig: Rig, moment: Moment) -> None:
    moment.bring(rig)
    until(lambda: rig.a.state(MOVE) == moment.source, f"the source is {moment.source}")
    until(lambda: rig.b.state(MOVE) == moment.destination, f"there it is {moment.destination}")


@each_moment
def test_a_killed_destination_costs_the_source_nothing(rig: Rig, moment: Moment) -> None:
    bring_to(rig, moment)
    rig.b.kill()
    fresh = rig.new("i-02")
    rig.a.ask("hurry", QUICK)
    rig.a.ask("open_all")
    check_stream(rig, moment.without_destination)
    check_survivor(rig, rig.a, fresh)
    report = rig.wait_move(MOVE)
    goes_on = moment.without_destination is Heir.SURVIVOR
    assert report.state is (MoveState.ABORTED if goes_on else MoveState.COMMITTED)
    if goes_on:
        assert report.abort_code == "peer_lost"
        assert "i-02" in report.abort_reason
        assert rig.instances(MOVED) == ["i-01"]


@each_moment
def test_a_killed_source_leaves_nothing_behind_at_the_destination(rig: Rig, moment: Moment) -> None:
    bring_to(rig, moment)
    rig.a.kill()
    fresh = rig.new("i-01")
    rig.b.ask("hurry", QUICK)
    rig.b.ask("open_all")
    check_stream(rig, moment.without_source)
    check_survivor(rig, rig.b, fresh)
    end_orphans(rig)
    if report := rig.ended_move(MOVE):
        lives = moment.without_source is Heir.SURVIVOR
        assert report.state is (MoveState.COMMITTED if lives else MoveState.ABORTED)
        assert lives or report.abort_code == "peer_lost"


def test_a_move_whose_two_sides_die_is_ended_by_the_steward(rig: Rig) -> None:
    rig.b.ask("hold", "Ack")
    begin(rig)
    until(lambda: MOVE in rig.moves_under_way(), "the move is in the view")
    rig.a.kill()
    rig.b.kill()
    end_orphans(rig)
    report = rig.ended_move(MOVE)
    assert report is not None
    assert (report.state, report.abort_code) == (MoveState.ABORTED, "peer_lost")
    assert "i-01" in report.abort_reason


def check_stream(rig: Rig, heir: Heir) -> None:
    """The moved answer is whole, or right up to where its engine was killed."""
    whole = unmoved(long_answer(MOVED))
    if heir is Heir.SURVIVOR:
        assert rig.wait_end(MOVED).finish_reason == "length"
        assert rig.tokens(MOVED) == whole
        return
    said = rig.tokens(MOVED)
    assert said == whole[: len(said)]
    assert 3 < len(said) < len(whole)


def check_survivor(rig: Rig, survivor: EngineProcess, fresh: EngineProcess) -> None:
    """It answered its own request, holds nothing, and moves requests to and from the engine that
    replaces the dead one."""
    own = OWN[survivor.name]
    rig.wait_end(own)
    assert rig.tokens(own) == unmoved(long_answer(own, prompt_tokens=20))
    rig.wait_empty(survivor)
    fresh.wait_ready()
    back_and_forth = long_answer("next", tokens=TRAVEL_TOKENS)
    rig.submit(survivor, back_and_forth)
    survivor.ask("hurry", 1.0)
    until(lambda: rig.tokens("next"), "it decodes")
    ends = [survivor, fresh]
    for name in ("there", "back"):
        assert rig.migrate("next", *ends, name) == ""
        ends.reverse()
        until(lambda: rig.instances("next")[-1] == ends[0].name, "it is there")
    for process in ends:
        process.ask("hurry", QUICK)
    rig.wait_end("next")
    assert rig.tokens("next") == unmoved(back_and_forth)
    for name, process in (("there", survivor), ("back", fresh)):
        assert rig.wait_move(name).state is MoveState.COMMITTED
        rig.wait_empty(process)


def end_orphans(rig: Rig) -> None:
    """What the pool process does in a while with moves whose source died."""
    moves = list(rig.moves_under_way().values())
    for end in orphans(moves, [], time.time() + ORPHAN_AFTER_S):
        view.Bulletin(rig.redis).report_move_end(end)
    assert not rig.moves_under_way()
