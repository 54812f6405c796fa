"""What a drain would do, from the last reports: who moves, where there is room, how long."""

from dataclasses import replace

import pytest

from controlplane.fleet.drain_plan import drain_plan
from engine_pool.policy.settings import HeadroomRule
from engine_pool.types import InstanceState
from migration.report import MoveReport
from tests.controlplane import drain_world as world
from tests.web import moves

RULE = HeadroomRule()


def moved(took_ms: float, downtime_ms: float) -> MoveReport:
    return replace(moves.committed(), ended_ms=took_ms, downtime_ms=downtime_ms, is_queued=False)


def test_it_counts_what_leaves_and_the_room_of_those_that_stay() -> None:
    leaves, stays = world.load(1, running=4, waiting=2), world.load(2, running=2, waiting=0)
    stays = replace(stays, used_tokens=1_000)
    now = world.fleet([world.status(1), world.status(2)], [leaves, stays])
    plan = drain_plan(now, {"i-01"}, headroom=RULE, at_once=2)
    assert (plan.running, plan.waiting, plan.kv_tokens) == (4, 2, leaves.used_tokens)
    assert (plan.others, plan.room_tokens) == (1, stays.capacity_tokens - 1_000)
    assert plan.freeness_now_steps is not None
    assert plan.freeness_after_steps is not None
    assert plan.freeness_after_steps < plan.freeness_now_steps
    assert plan.has_room == (plan.room_tokens >= leaves.used_tokens)


def test_the_estimate_is_that_of_the_last_moves() -> None:
    now = world.fleet(
        [world.status(1), world.status(2)], [world.load(1, running=6), world.load(2)],
        [moved(400, 8), moved(600, 12)],
    )  # fmt: skip
    plan = drain_plan(now, {"i-01"}, headroom=RULE, at_once=2)
    assert (plan.move_s, plan.wait_ms) == (0.5, 10)
    assert plan.estimate_s == pytest.approx(1.5)


@pytest.mark.parametrize(
    "changes",
    [
        {"state": InstanceState.CORDONED},
        {"wanted": "drained"},
        {"pool": "other"},
    ],
)
def test_one_that_takes_nothing_is_no_room(changes: dict[str, object]) -> None:
    now = world.fleet([world.status(1), world.status(2, **changes)], [world.load(1), world.load(2)])
    plan = drain_plan(now, {"i-01"}, headroom=RULE, at_once=2)
    assert (plan.others, plan.has_room, plan.freeness_after_steps) == (0, False, None)


def test_without_a_report_nobody_knows() -> None:
    plan = drain_plan(world.fleet([world.status(1)]), {"i-01"}, headroom=RULE, at_once=2)
    assert (plan.running, plan.kv_tokens, plan.estimate_s, plan.report_age_s) == (None,) * 4


def test_a_dead_engines_last_report_does_not_count() -> None:
    now = world.fleet(
        [world.status(1), world.status(2, state=InstanceState.LOST)],
        [world.load(1, running=3, waiting=0), world.load(2, age_s=600)],
    )
    plan = drain_plan(now, {"i-01", "i-02"}, headroom=RULE, at_once=2)
    assert (plan.running, plan.waiting) == (3, 0)
