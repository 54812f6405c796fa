"""How far a drain is, what is left and why, and when a machine may be switched off."""

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.errors import NotVisible
from controlplane.fleet import drain_words, fleet_now
from controlplane.fleet.fleet_now import FleetNow
from controlplane.fleet.models import Pool, WantedInstance, WantedNode
from controlplane.fleet.wish_rows import Wishes
from controlplane.fleet.wish_selectors import (
    InstanceDrain,
    drain_of,
    instance_drain_get,
    node_drain_get,
    node_of,
    nodes_list,
)
from engine_pool.engine_look import SIGTERM_BY
from engine_pool.policy.wishes import Leftover, WantedState
from engine_pool.pool_wishes import BY_POOL, BY_RAY
from engine_pool.types import InstanceState
from migration.report import MoveState
from tests.controlplane import drain_world as world
from tests.web import moves

ASKED = timedelta(seconds=30)


def row(wanted: str = "drained", **changes: Any) -> WantedInstance:
    """Returns a wish for i-01 that is as old as a pool process needs to follow it."""
    plain = {"by": "olga", "reason": "disks", "since": timezone.now() - ASKED}
    return WantedInstance(instance="i-01", wanted=wanted, **{**plain, **changes})


def wishes(own: WantedInstance | None = None, node: WantedNode | None = None) -> Wishes:
    return Wishes({"i-01": own} if own else {}, {node.node: node} if node else {})


def drain(now: FleetNow, own: WantedInstance | None = None) -> InstanceDrain:
    return drain_of("i-01", "default", now, wishes(own or row()))


def empty() -> Any:
    return replace(world.load(running=0, waiting=0), used_tokens=0)


def test_a_drained_instance_that_is_verified_and_reports_is_safe_to_stop() -> None:
    found = drain(world.fleet([world.drained()], [empty()]))
    assert (found.is_safe, found.why_not_safe, found.left_total) == (True, "", 0)
    assert drain_words.progress_words(found).startswith("i-01 drained. Safe to stop. Verified")
    assert "0 requests, 0 blocks, 0 transfers" in drain_words.progress_words(found)


def test_a_stopped_one_is_safe_without_a_report() -> None:
    stopped = world.drained(state=InstanceState.STOPPED, wanted="stopped")
    assert drain(world.fleet([stopped]), row("stopped")).is_safe


def test_one_whose_engine_died_while_it_was_to_leave_is_safe_and_not_called_verified() -> None:
    dead = world.status(state=InstanceState.STOPPED, wanted="drained", since_unix_s=time.time() - 9)
    before = world.load(age_s=20)
    found = drain(world.fleet([dead], [before]))
    assert (found.is_safe, found.verified_unix_s) == (True, None)
    assert drain_words.progress_words(found) == (
        "i-01 stopped. Safe to stop. Its engine has ended: nothing runs there."
    )
    assert drain(world.fleet([dead], [world.load(age_s=1)])).why_not_safe == (
        "something still reports as its engine"
    )


@pytest.mark.parametrize(
    ("state", "wanted", "by", "is_own"),
    [
        (InstanceState.DRAINING, "serving", "pool", True),
        (InstanceState.DRAINING, "stopped", SIGTERM_BY, True),
        (InstanceState.DRAINING, "stopped", BY_RAY, True),
        (InstanceState.DRAINING, "drained", "olga", False),
        (InstanceState.SERVING, "serving", "pool", False),
    ],
)
def test_what_the_pool_renews_by_itself_is_shown_as_such(
    state: InstanceState, wanted: str, by: str, is_own: bool
) -> None:
    status = world.status(
        state=state, wanted=wanted, wanted_by=by, wanted_reason="other settings",
        drain=world.progress(3),
    )  # fmt: skip
    found = drain_of("i-01", "default", world.fleet([status], [world.load()]), wishes())
    assert (found.is_renewing, found.is_leaving, found.is_safe) == (is_own, is_own, False)
    said = f'A new engine is wanted by {by}: "other settings".' if is_own else ""
    assert drain_words.wanted_words(found) == said


def test_an_instance_that_its_pool_has_no_place_for_any_more_is_stopped() -> None:
    status = world.status(
        state=InstanceState.DRAINING, wanted="stopped", wanted_by=BY_POOL,
        drain=world.progress(3, deadline_unix_s=time.time() + 300, leftover="replay"),
    )  # fmt: skip
    found = drain_of("i-01", "default", world.fleet([status], [world.load()]), wishes())
    assert (found.is_renewing, found.is_leaving) == (False, True)
    assert drain_words.wanted_words(found) == "Stopped is wanted by the pool."
    assert drain_words.deadline_words(found, time.time()).endswith("then replay it elsewhere")


@pytest.mark.parametrize(
    ("now", "why"),
    [
        pytest.param(
            lambda: world.fleet([world.drained(drain=world.progress(0))], [empty()]),
            "drained, but not proven to be empty", id="no check yet",
        ),
        pytest.param(
            lambda: world.fleet([world.drained(drain=None)], [empty()]),
            "not proven", id="no drain told",
        ),
        pytest.param(
            lambda: world.fleet([world.drained()], [world.load(running=2, waiting=1)]),
            "3 requests are there again", id="requests came back",
        ),
        pytest.param(lambda: world.fleet([world.drained()]), "does not report", id="silent engine"),
        pytest.param(
            lambda: world.fleet([world.drained()], [replace(empty(), at_unix_s=time.time() - 60)]),
            "does not report", id="old report",
        ),
        pytest.param(
            lambda: world.fleet([world.drained()], [empty()], is_known=False),
            "the store does not answer", id="no store",
        ),
        pytest.param(
            lambda: world.fleet([world.drained()], [empty()], pool_seen_ago_s=60),
            "the pool process does not answer", id="pool process silent",
        ),
        pytest.param(
            lambda: world.fleet([world.drained()], [empty()], pool_seen_ago_s=None),
            "the pool process does not answer", id="pool process never seen",
        ),
        pytest.param(
            lambda: world.fleet([world.drained(wanted="serving")], [empty()]),
            "not confirmed it yet", id="the pool follows an earlier wish",
        ),
        pytest.param(lambda: world.fleet(), "nobody reports it", id="unknown"),
        pytest.param(
            lambda: world.fleet(
                [world.status(state=InstanceState.DRAINING, drain=world.progress(3))],
                [world.load()],
            ), "3 requests left", id="still draining",
        ),
        pytest.param(
            lambda: world.fleet(
                [world.status(state=InstanceState.DRAINING, drain=world.progress(0))]
            ),
            "being verified", id="empty, not verified",
        ),
        pytest.param(
            lambda: world.fleet([world.status(state=InstanceState.LOST, cause="exit code -9")]),
            "lost: exit code -9", id="lost",
        ),
    ],
)  # fmt: skip
def test_it_is_not_safe_to_stop_without_proof_that_holds_now(
    now: Callable[[], FleetNow], why: str
) -> None:
    found = drain(now())
    assert not found.is_safe
    assert why in found.why_not_safe
    assert "Safe to stop" not in drain_words.progress_words(found)


def test_it_is_not_safe_once_it_is_released_or_restarts() -> None:
    now = world.fleet([world.drained()], [empty()])
    assert not drain_of("i-01", "default", now, wishes()).is_safe
    restart = row("serving", renew_before=timezone.now())
    found = drain(now, restart)
    assert (found.is_safe, found.is_renewing, found.is_leaving) == (False, True, True)
    assert drain_words.wanted_words(found) == 'A new engine is wanted by olga: "disks".'


def test_what_the_pool_said_before_the_wish_proves_nothing() -> None:
    now = world.fleet([world.drained()], [empty()])
    assert drain(now, row(since=timezone.now())).why_not_safe.endswith("not confirmed it yet")


def test_each_request_that_is_left_says_why() -> None:
    load = world.load(running=3, waiting=1)
    first, second, _ = load.running
    going = replace(
        moves.going_on(5.0), migration_id="m1", request_id=first.request_id, source="i-01",
        destination="i-03", state=MoveState.COPYING,
    )  # fmt: skip
    failed = replace(
        moves.committed(), migration_id="m2", request_id=second.request_id, source="i-01",
        destination="i-04", state=MoveState.ABORTED, abort_code="no_blocks",
        abort_reason="i-04 had 12 free blocks and needed 41",
    )  # fmt: skip
    status = world.status(state=InstanceState.DRAINING, drain=world.progress(4, moving=1))
    own = row(deadline=timezone.now() + timedelta(minutes=5), leftover="replay")
    found = drain(world.fleet([status], [load], [going, failed]), own)
    told = {r.request_id: r for r in found.left}
    assert found.left[0].request_id == first.request_id
    assert told[first.request_id].why == "moving to i-03"
    assert (told[first.request_id].moves_to, told[first.request_id].migration_id) == ("i-03", "m1")
    assert told[second.request_id].why == (
        "did not move to i-04: i-04 had 12 free blocks and needed 41; it is tried again"
    )
    assert told[load.running[2].request_id].why == (
        "waits for its turn to move, or is replayed elsewhere at the deadline"
    )
    assert told[load.waiting[0].request_id].why.startswith("waits in the queue, moves without")
    assert found.left_total == 4


def test_an_obstacle_is_told_of_every_request() -> None:
    progress = world.progress(3, obstacle="no other instance serves")
    status = world.status(state=InstanceState.DRAINING, drain=progress)
    found = drain(world.fleet([status], [world.load()]))
    assert {r.why for r in found.left} == {"cannot move now: no other instance serves"}
    assert "cannot move: no other instance serves" in drain_words.progress_words(found)


def test_rate_estimate_and_deadline_are_told() -> None:
    progress = world.progress(3, moving=1, estimate_s=4.0)
    status = world.status(state=InstanceState.DRAINING, drain=progress)
    own = row(deadline=timezone.now() + timedelta(minutes=5), leftover="end")
    found = drain(world.fleet([status], [world.load()]), own)
    assert found.rate_per_s == pytest.approx(0.6, rel=0.2)
    assert drain_words.progress_words(found) == (
        "i-01 draining: 3 left, 1 moving, 5 moved, 1 ended by themselves, about 4 s"
    )
    assert found.wish.leftover is Leftover.END
    assert drain_words.deadline_words(found, time.time()) == "in 5 min, then end it with an error"
    late = drain_words.deadline_words(found, time.time() + 900)
    assert late == "passed 10 min ago: end it with an error"


def test_a_nodes_wish_holds_for_its_instances() -> None:
    node = WantedNode(node="gpu-a", wanted="drained", by="olga", reason="", since=timezone.now())
    now = world.fleet([world.status(1)], [world.load(1)])
    found = drain_of("i-01", "default", now, wishes(None, node))
    assert found.wish.wanted is WantedState.DRAINED
    assert drain_words.wanted_words(found) == "Drained is wanted of the whole node gpu-a by olga."


def test_a_node_is_safe_when_all_of_its_instances_are() -> None:
    node = WantedNode(node="gpu-a", wanted="drained", by="olga", since=timezone.now() - ASKED)
    two = empty(), replace(empty(), instance="i-02")
    now = world.fleet([world.drained(1), world.drained(2), world.status(3)], two)
    found = node_of("gpu-a", now, wishes(None, node))
    assert (found.is_safe, found.left, len(found.instances)) == (True, 0, 2)
    assert drain_words.node_words(found).endswith("Safe to switch off.")
    draining = world.status(2, state=InstanceState.DRAINING, drain=world.progress(3, estimate_s=9))
    now = world.fleet([world.drained(1), draining], [empty(), world.load(2)])
    found = node_of("gpu-a", now, wishes(None, node))
    assert (found.is_safe, found.why_not_safe) == (False, "i-02: 3 requests left")
    assert (found.left, found.estimate_s) == (3, 9)
    assert drain_words.node_words(found) == "gpu-a: 1 of 2 instances safe, 3 requests left"


def test_a_node_of_which_nobody_wants_anything_is_not_safe() -> None:
    found = node_of("gpu-a", world.fleet([world.drained(1)], [empty()]), wishes(row()))
    assert (found.is_safe, found.why_not_safe) == (False, "nobody wants it to be drained")


@pytest.mark.django_db
def test_what_neither_is_nor_should_be_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    Pool.objects.create(name="default", served_model_name="tiny", instances=2)
    now = world.fleet([world.status(1), world.status(4)])
    monkeypatch.setattr(fleet_now, "fleet_now", lambda: now)
    assert instance_drain_get("i-02").why_not_safe == "nobody wants it to be drained"
    assert instance_drain_get("i-04").node == "gpu-b"
    with pytest.raises(NotVisible):
        instance_drain_get("i-03")
    with pytest.raises(NotVisible):
        node_drain_get("gpu-z")
    WantedNode.objects.create(node="gpu-off", wanted="drained", by="olga", since=timezone.now())
    assert [n.node for n in nodes_list()] == ["gpu-a", "gpu-b", "gpu-off"]
    assert node_drain_get("gpu-off").instances == ()
