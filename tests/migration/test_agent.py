"""Two agents move requests between two step loops: what the reader gets, and what is left over."""

import pytest

from migration import messages
from migration.ports import Refusal
from migration.protocol import SourceState
from migration.report import MoveState
from tests.engine_pool.make import request
from tests.migration.two_sides import Two, run_to_end, until


def is_at(pair: Two, side_name: str, request_id: str) -> bool:
    return any(f.instance == side_name for f in pair.log.frames.get(request_id, ()))


def test_a_running_request_moves_and_its_reader_notices_nothing(two: Two) -> None:
    two.a.submit(request("r", prompt_tokens=21, max_tokens=400))
    two.a.run()
    until(lambda: len(two.log.tokens("r")) > 20)
    assert two.migrate("r") is None
    until(lambda: is_at(two, "i-02", "r") or two.b.engine.requests)
    run_to_end(two, "r", 400)
    report = two.end_of()
    assert report.state is MoveState.COMMITTED
    assert report.stages[-1].is_last
    assert report.downtime_ms is not None
    assert {f.epoch for f in two.log.frames["r"]} == {1, 2}
    two.check_empty()


def test_several_requests_move_over_the_same_pair_at_once(two: Two) -> None:
    names = [f"r{n}" for n in range(3)]
    two.a.submit(*(request(n, prompt_tokens=9, max_tokens=300) for n in names))
    two.a.run()
    until(lambda: all(two.log.tokens(n) for n in names))
    two.hub.is_held = True
    for name in names:
        assert two.migrate(name, f"m-{name}") is None
    until(lambda: len(two.hub.waiting) == 3)
    two.hub.let_go()
    for name in names:
        assert two.end_of(f"m-{name}").state is MoveState.COMMITTED
        run_to_end(two, name, 300)
    two.check_empty()


def test_a_channel_is_used_again_for_the_next_move(two: Two) -> None:
    two.b.run()
    for number in range(3):
        name = f"r{number}"
        two.a.submit(request(name, prompt_tokens=9, max_tokens=60))
        two.a.run()
        until(lambda n=name: two.log.tokens(n))
        assert two.migrate(name, f"m{number}") is None
        two.end_of(f"m{number}")
        run_to_end(two, name, 60)
    assert two.a.plane.offers == 1


def test_a_request_goes_there_and_back_again(two: Two) -> None:
    two.a.submit(request("r", prompt_tokens=9, max_tokens=2000))
    two.a.run()
    two.b.run()
    until(lambda: two.log.tokens("r"))
    assert two.migrate("r") is None
    assert two.end_of().state is MoveState.COMMITTED
    assert two.migrate("r", "m2", back=True) is None
    assert two.end_of("m2", two.b).state is MoveState.COMMITTED
    run_to_end(two, "r", 2000)
    assert [f.epoch for f in two.log.frames["r"]][-1] == 3
    two.check_empty()


def test_a_queued_request_moves_without_a_copy(two: Two) -> None:
    queued = request("r", prompt_tokens=9, max_tokens=30)
    two.a.submit(queued)
    # The engine has it, and says that it waits.
    name = queued.request_id
    two.a.engine.queued[name] = two.a.engine.requests.pop(name)
    two.a.engine.free += two.a.engine.tables.pop(name)
    assert two.migrate("r") is None
    report = two.end_of()
    assert report.state is MoveState.COMMITTED
    assert report.is_queued
    assert report.stages == ()
    assert two.a.plane.offers == 0
    assert name in two.b.engine.queued


def test_blocks_that_the_destination_has_cached_are_not_sent(two: Two) -> None:
    two.b.engine.cached_blocks = 2
    two.a.submit(request("r", prompt_tokens=21, max_tokens=40))
    two.a.allow(2)
    assert two.migrate("r") is None
    two.a.run()
    report = two.end_of()
    assert report.cached_blocks == 2
    blocks = -(-report.tokens_at_pause // 4)
    assert sum(s.blocks for s in report.stages) == blocks - 2


def test_a_destination_without_room_refuses_and_the_request_goes_on(two: Two) -> None:
    taken = two.b.engine.free[5:]
    del two.b.engine.free[5:]
    two.a.submit(request("r", prompt_tokens=40, max_tokens=20))
    two.a.allow(2)
    assert two.migrate("r") is None
    report = two.end_of()
    assert report.state is MoveState.ABORTED
    assert report.abort_code == "no_blocks"
    assert "5 free" in report.abort_reason
    two.b.engine.free += taken
    run_to_end(two, "r", 20)
    two.check_empty()


def test_a_move_of_an_unknown_request_is_refused_at_once(two: Two) -> None:
    refusal = two.migrate("nobody")
    assert refusal is not None
    assert refusal.code == "request_finished"


def test_a_second_move_of_the_same_request_is_refused(two: Two) -> None:
    two.a.submit(request("r", prompt_tokens=21, max_tokens=40))
    two.a.allow(2)
    two.hub.is_held = True
    assert two.migrate("r") is None
    refusal = two.migrate("r", "m2")
    assert refusal is not None
    assert "already" in refusal.why
    two.hub.let_go()
    run_to_end(two, "r", 40)


def test_more_moves_than_allowed_are_refused() -> None:
    pair = Two(at_once=1)
    pair.start()
    pair.hub.is_held = True
    pair.a.submit(*(request(n, prompt_tokens=21, max_tokens=40) for n in ("r", "q")))
    pair.a.allow(2)
    assert pair.migrate("r") is None
    refusal = pair.migrate("q", "m2")
    assert refusal is not None
    assert refusal.code == "too_many"
    pair.hub.let_go()
    run_to_end(pair, "q", 40)
    pair.stop()


def test_a_forbidden_agent_neither_sends_nor_takes(two: Two) -> None:
    two.a.submit(request("r", prompt_tokens=21, max_tokens=40))
    two.a.allow(2)
    two.b.agent.forbid("the self-test failed")
    assert two.migrate("r") is None
    assert two.end_of().abort_code == "disabled"
    two.a.agent.forbid("the self-test failed")
    refusal = two.migrate("r", "m2")
    assert refusal == Refusal("disabled", "the self-test failed")
    run_to_end(two, "r", 40)


def moved_to(pair: Two, state: SourceState) -> None:
    """Brings the move of request r to a state of its source and keeps it there."""
    pair.a.submit(request("r", prompt_tokens=21, max_tokens=60))
    pair.a.allow(3)
    if state is SourceState.RESERVING:
        pair.a.gate = lambda blob: not isinstance(messages.decode(blob), messages.Ack)
    elif state is SourceState.COPYING:
        pair.hub.is_held = True
    elif state is SourceState.PAUSED:
        pair.a.holds_log = True
    elif state is SourceState.COMMITTING:
        pair.b.gate = lambda blob: not isinstance(messages.decode(blob), messages.Commit)
    assert pair.migrate("r") is None
    shown = {
        SourceState.RESERVING: MoveState.RESERVING,
        SourceState.COPYING: MoveState.COPYING,
        SourceState.PAUSED: MoveState.PAUSED,
        SourceState.COMMITTING: MoveState.COMMITTING,
    }[state]
    move = until(lambda: pair.a.agent._sources.get("m1"))
    until(lambda: shown is MoveState.RESERVING or shown in pair.a.states())
    if state is SourceState.COPYING:
        until(lambda: pair.hub.waiting)
    assert not move.is_over


STATES = [
    SourceState.RESERVING,
    SourceState.COPYING,
    SourceState.PAUSED,
    SourceState.COMMITTING,
]


@pytest.mark.parametrize("state", STATES[:3])
def test_a_cancelled_move_leaves_the_request_where_it_is(two: Two, state: SourceState) -> None:
    moved_to(two, state)
    assert two.a.agent.cancel("m1").result(60)
    report = two.end_of()
    assert report.abort_code == "cancelled"
    assert not is_at(two, "i-02", "r")
    run_to_end(two, "r", 60)
    two.check_empty()


@pytest.mark.parametrize("state", STATES)
def test_a_client_that_leaves_ends_the_request_on_both_sides(two: Two, state: SourceState) -> None:
    moved_to(two, state)
    two.a.loop.abort(["r"])
    assert two.end_of().state is MoveState.ABORTED
    until(lambda: two.log.is_over("r"))
    assert two.log.frames["r"][-1].finish_reason == "abort"
    two.check_empty()


@pytest.mark.parametrize("state", STATES[:3])
def test_a_lost_connection_aborts_the_move(two: Two, state: SourceState) -> None:
    moved_to(two, state)
    two.a.cut()
    report = two.end_of()
    assert report.abort_code == "peer_lost"
    run_to_end(two, "r", 60)
    two.check_empty()


def test_a_commit_that_was_lost_is_asked_for_and_refused(two: Two) -> None:
    moved_to(two, SourceState.COMMITTING)
    two.b.gate = lambda blob: True
    two.a.cut()
    report = two.end_of()
    assert report.state is MoveState.ABORTED
    run_to_end(two, "r", 60)
    assert not is_at(two, "i-02", "r")
    two.check_empty()


def test_an_answer_to_the_commit_that_was_lost_is_asked_for(two: Two) -> None:
    two.a.gate = lambda blob: not isinstance(messages.decode(blob), messages.Committed)
    moved_to(two, SourceState.COPYING)
    two.hub.let_go()
    until(lambda: MoveState.COMMITTING in two.a.states())
    until(lambda: two.b.engine.requests)
    two.a.gate = lambda blob: True
    two.a.cut()
    assert two.end_of().state is MoveState.COMMITTED
    run_to_end(two, "r", 60)
    two.check_empty()


def test_a_destination_that_died_during_the_commit_leaves_the_request_here(two: Two) -> None:
    moved_to(two, SourceState.COMMITTING)
    two.b.is_unreachable = True
    two.a.cut()
    report = two.end_of()
    assert report.state is MoveState.ABORTED
    run_to_end(two, "r", 60)
    assert two.log.frames["r"][-1].epoch == 3, "the log has shut the destination out"
    two.check_empty()


def test_a_destination_that_cannot_be_asked_but_decodes_keeps_the_request(two: Two) -> None:
    two.a.gate = lambda blob: not isinstance(messages.decode(blob), messages.Committed)
    two.b.run()
    moved_to(two, SourceState.COPYING)
    two.hub.let_go()
    until(lambda: is_at(two, "i-02", "r"))
    two.b.is_unreachable = True
    two.a.cut()
    assert two.end_of().state is MoveState.COMMITTED
    run_to_end(two, "r", 60)
    two.check_empty()


def test_while_the_store_is_away_nobody_guesses_whose_the_request_is(two: Two) -> None:
    moved_to(two, SourceState.COMMITTING)
    two.log.is_away = True
    two.b.is_unreachable = True
    two.a.cut()
    move = two.a.agent._sources["m1"]
    until(lambda: move.state is SourceState.RECLAIMING)
    two.log.is_away = False
    assert two.end_of().state is MoveState.ABORTED
    run_to_end(two, "r", 60)
    two.check_empty()


def test_a_destination_that_refuses_the_commit_gives_the_request_back(two: Two) -> None:
    two.b.engine.adopt_refusal = Refusal("refused", "its grammar is not compiled yet")
    moved_to(two, SourceState.COPYING)
    two.hub.let_go()
    report = two.end_of()
    assert report.state is MoveState.ABORTED
    assert "grammar" in report.abort_reason
    run_to_end(two, "r", 60)
    two.check_empty()


def test_a_broken_transfer_aborts_the_move_and_the_next_one_gets_a_new_channel(two: Two) -> None:
    moved_to(two, SourceState.COPYING)
    (channel,) = two.hub.waiting
    two.hub.close(channel)
    report = two.end_of()
    assert report.abort_code == "transfer_failed"
    two.hub.is_held = False
    assert two.migrate("r", "m2") is None
    assert two.end_of("m2").state is MoveState.COMMITTED
    run_to_end(two, "r", 60)
    two.check_empty()


def test_a_request_that_finishes_meanwhile_aborts_the_move(two: Two) -> None:
    moved_to(two, SourceState.COPYING)
    run_to_end(two, "r", 60)
    assert two.end_of().abort_code == "request_finished"
    two.hub.let_go()
    two.check_empty()


def test_a_silent_destination_is_given_up(two: Two) -> None:
    pair = Two(stage_timeout_s=0.2)
    pair.start()
    moved_to(pair, SourceState.RESERVING)
    report = pair.end_of()
    assert report.abort_code == "timed_out"
    run_to_end(pair, "r", 60)
    pair.check_empty()
    pair.stop()


def test_engines_whose_blocks_differ_refuse_each_other(two: Two) -> None:
    two.a.submit(request("r", prompt_tokens=21, max_tokens=10))
    two.a.allow(2)
    object.__setattr__(
        two.b.agent,
        "_shape",
        two.b.agent.shape.__class__("fake", "another", 1, 4, 1000, "f32", "LBHNC", 1),
    )
    assert two.migrate("r") is None
    report = two.end_of()
    assert "model" in report.abort_reason
    run_to_end(two, "r", 10)


def test_the_destination_tells_how_a_move_of_a_dead_source_ended(two: Two) -> None:
    moved_to(two, SourceState.COPYING)
    two.a.agent.stop(5)
    two.a.cut()
    (end,) = until(lambda: two.b.ends)
    assert (end.migration_id, end.state, end.code) == ("m1", MoveState.ABORTED, "peer_lost")
    until(lambda: len(two.b.engine.free) == two.b.engine.capacity)
