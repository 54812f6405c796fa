"""A destination that hangs, links that break: nobody dies, and each side must find out alone."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from migration.protocol import DestinationState as D
from migration.protocol import SourceState as S
from migration.report import MoveState
from tests.engine_pool.conftest import StoreServer
from tests.engine_pool.test_simulated_moves import unmoved
from tests.migration import moments
from tests.migration.moments import MOVE, MOVED, QUICK, begin, long_answer, stopped
from tests.migration.rig import PATIENT, Rig, until

HASTY_S = 2.0
"""Longer than a test needs to stop a process on a busy machine, short enough to wait for."""
HASTY = replace(
    PATIENT,
    migration_stage_timeout_s=HASTY_S,
    migration_pause_timeout_s=HASTY_S,
    migration_commit_timeout_s=HASTY_S,
)


@pytest.fixture
def hasty(store: StoreServer) -> Iterator[Rig]:
    """Two engines whose moves are given up soon."""
    yield from serve(Rig(store, HASTY))


@pytest.fixture
def patient(store: StoreServer) -> Iterator[Rig]:
    """Two engines whose moves wait for as long as it takes."""
    yield from serve(Rig(store))


def serve(two: Rig) -> Iterator[Rig]:
    try:
        two.submit(two.a, long_answer(MOVED))
        two.submit(two.b, long_answer("own-b", prompt_tokens=20))
        until(lambda: len(two.tokens(MOVED)) > 3 and two.tokens("own-b"), "both decode")
        yield two
    finally:
        two.end()


def while_copying(rig: Rig) -> None:
    rig.b.ask("shut", "copies")
    begin(rig)
    until(lambda: rig.a.state(MOVE) == S.COPYING, "it copies")


@pytest.mark.parametrize(
    ("bring", "why"),
    [
        pytest.param(while_copying, "copying", id="copying"),
        pytest.param(moments.paused, "paused, tokens logged", id="paused"),
        pytest.param(moments.committing, "committing", id="committing"),
        pytest.param(moments.adopted_in_silence, "committing", id="adopted"),
    ],
)
def test_a_hanging_destination_is_given_up_and_decodes_nothing_twice(
    hasty: Rig, bring: Callable[[Rig], None], why: str
) -> None:
    bring(hasty)
    hasty.b.stop()
    hasty.a.ask("let")
    report = hasty.wait_move(MOVE)
    assert (report.state, report.abort_code) == (MoveState.ABORTED, "timed_out")
    assert report.abort_reason == f"i-02 did not answer while {why}"
    hasty.a.ask("hurry", QUICK)
    assert hasty.wait_end(MOVED).finish_reason == "length", "it went on while the other hung"
    frames = hasty.frames(MOVED)
    assert hasty.tokens(MOVED) == unmoved(long_answer(MOVED))
    assert {frame.instance for frame in frames} == {"i-01"}
    hasty.b.go_on()
    check_in_order(hasty)
    assert hasty.frames(MOVED) == frames, "the log took nothing more"


def test_a_commit_that_was_lost_with_its_link_is_refused_for_good(patient: Rig) -> None:
    patient.a.ask("lose", "Commit")
    begin(patient)
    stopped(patient, "a", "Commit")
    until(lambda: patient.b.state(MOVE) == D.LOADED, "all but the commit is there")
    patient.b.ask("cut")
    report = patient.wait_own_report(MOVE)
    assert (report.state, report.abort_code) == (MoveState.ABORTED, "peer_lost")
    assert [m.name for m in report.messages][-2:] == ["Ask", "Refused"]
    finish(patient)
    assert patient.tokens(MOVED) == unmoved(long_answer(MOVED))
    assert patient.instances(MOVED) == ["i-01"]
    check_in_order(patient)


def test_an_answer_that_was_lost_with_its_link_is_asked_for(patient: Rig) -> None:
    patient.b.ask("lose", "Committed")
    begin(patient)
    stopped(patient, "b", "Committed")
    patient.b.ask("let")
    patient.b.ask("cut")
    report = patient.wait_own_report(MOVE)
    assert report.state is MoveState.COMMITTED
    finish(patient)
    assert patient.tokens(MOVED) == unmoved(long_answer(MOVED))
    assert patient.instances(MOVED) == ["i-01", "i-02"]
    check_in_order(patient)


def test_a_link_that_breaks_in_mid_copy_costs_the_move_and_no_more(patient: Rig) -> None:
    moments.copying(patient)
    until(lambda: patient.b.state(MOVE) == D.HELD, "it copies")
    stopped_at = len(patient.tokens(MOVED))
    patient.a.ask("cut")
    assert patient.wait_own_report(MOVE).abort_code == "peer_lost"
    until(lambda: len(patient.tokens(MOVED)) > stopped_at, "it goes on")
    finish(patient)
    assert patient.tokens(MOVED) == unmoved(long_answer(MOVED))
    check_in_order(patient)


def finish(rig: Rig) -> None:
    for process in (rig.a, rig.b):
        process.ask("open_all")
        process.ask("hurry", QUICK)
    rig.wait_end(MOVED)


def check_in_order(rig: Rig) -> None:
    """Both engines hold nothing, and move the next request."""
    finish(rig)
    rig.wait_empty(rig.a)
    rig.wait_empty(rig.b)
    rig.a.ask("hurry", 1.0)
    wish = long_answer("next", tokens=60)
    rig.submit(rig.a, wish)
    until(lambda: rig.tokens("next"), "it decodes")
    assert rig.migrate("next", rig.a, rig.b, "m2") == ""
    rig.wait_end("next")
    assert rig.wait_move("m2").state is MoveState.COMMITTED
    assert rig.tokens("next") == unmoved(wish)
    assert rig.instances("next") == ["i-01", "i-02"]
    rig.wait_empty(rig.a)
    rig.wait_empty(rig.b)
