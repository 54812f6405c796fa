"""The pool as it will be: what leaves is gone, what comes is there, and nothing counts twice."""

from dataclasses import replace

import pytest

from engine_pool.rebalancing_transit import with_moves
from engine_pool.types import InstanceName, PoolView, PriorityClass, RequestId
from migration.report import MessageReport, MoveReport, MoveState
from tests.engine_pool.make import NOW_UNIX_S, load, running, status, waiting

MOVE = MoveReport(
    migration_id="m1",
    request_id="r",
    seq=3,
    state=MoveState.ASKED,
    source="i-01",
    source_incarnation="a",
    destination="i-02",
    destination_incarnation="a",
    started_unix_s=NOW_UNIX_S - 1,
    at_unix_s=NOW_UNIX_S,
    asked_by="rebalancer",
    reason="",
    tokens_at_start=155,
    block_size_tokens=16,
)
"""Of 160 tokens in whole blocks; it needs 176 at its destination."""
RESERVED = replace(
    MOVE,
    state=MoveState.COPYING,
    reserved_blocks=11,
    messages=(
        MessageReport(1, "source", "Prepare"),
        MessageReport(100, "destination", "Ack"),
    ),
)
HERE = load("i-01", batch=(running(160, name="r"), running(320)))
GONE = load("i-01", batch=(running(320),))
THERE = load("i-02", batch=(running(480),))


@pytest.mark.parametrize(
    ("move", "here", "there", "used"),
    [
        pytest.param(MOVE, HERE, THERE, (320, 656), id="just asked for: all room is missing"),
        pytest.param(
            RESERVED,
            HERE,
            replace(THERE, used_tokens=656),
            (320, 656),
            id="its room is reserved and in the report",
        ),
        pytest.param(
            RESERVED,
            HERE,
            replace(THERE, at_unix_s=NOW_UNIX_S - 0.95),
            (320, 656),
            id="its room is reserved, and the report is from before that",
        ),
        pytest.param(
            replace(RESERVED, reserved_blocks=4),
            HERE,
            replace(THERE, used_tokens=480 + 64),
            (320, 656),
            id="a part is reserved",
        ),
        pytest.param(
            replace(RESERVED, state=MoveState.PAUSED, tokens_at_pause=160),
            replace(GONE, used_tokens=480),
            replace(THERE, used_tokens=656),
            (320, 656),
            id="out of the batch, its blocks are still held",
        ),
        pytest.param(
            replace(RESERVED, state=MoveState.COMMITTED, at_unix_s=NOW_UNIX_S + 1),
            HERE,
            replace(THERE, used_tokens=656),
            (320, 656),
            id="just committed: both reports are from before",
        ),
        pytest.param(
            replace(RESERVED, state=MoveState.COMMITTED, at_unix_s=NOW_UNIX_S - 1),
            GONE,
            load("i-02", batch=(running(480), running(176, name="r"))),
            (320, 656),
            id="committed and shown",
        ),
    ],
)
def test_both_sides_are_as_they_will_be(move, here, there, used) -> None:
    view = PoolView((status("i-01"), status("i-02")), (here, there))
    changed = {one.instance: one for one in with_moves(view, [move]).view.loads}
    loads = [changed[InstanceName(name)] for name in ("i-01", "i-02")]
    assert tuple(one.used_tokens for one in loads) == used
    assert [len(one.running) for one in loads] == [1, 2]


@pytest.mark.parametrize(
    "move",
    [
        pytest.param(replace(MOVE, state=MoveState.ABORTED), id="aborted"),
        pytest.param(
            replace(RESERVED, state=MoveState.COMMITTED, at_unix_s=NOW_UNIX_S - 60),
            id="it has come back since",
        ),
        pytest.param(
            replace(MOVE, source_incarnation="z", destination_incarnation="z"), id="of the dead"
        ),
    ],
)
def test_a_move_that_is_over_changes_nothing(move: MoveReport) -> None:
    view = PoolView((), (HERE, THERE))
    assert with_moves(view, [move]).view == view


def test_moves_that_go_on_are_counted_at_both_ends() -> None:
    other = replace(MOVE, migration_id="m2", request_id="x", source="i-03", destination="i-01")
    ended = replace(MOVE, migration_id="m3", state=MoveState.COMMITTED)
    transit = with_moves(PoolView(), [MOVE, other, ended])
    assert transit.going_on == {"i-01": 2, "i-02": 1, "i-03": 1}
    assert transit.leaving == {"r", "x"}


def test_a_queued_request_on_its_way_is_no_longer_the_head_of_its_line() -> None:
    queue = (waiting(512, PriorityClass.HIGH, "r"), waiting(64, name="next"))
    view = PoolView((), (load("i-01", queue=queue), THERE))
    here, there = with_moves(view, [replace(MOVE, is_queued=True)]).view.loads
    assert here.head_demand_tokens == 64
    moved = there.running[-1]
    assert (moved.request_id, moved.kv_tokens, moved.priority_class) == (
        RequestId("r"),
        528,
        PriorityClass.HIGH,
    )
