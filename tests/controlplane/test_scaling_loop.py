"""Checks of scaling with a real store and database: what is seen, decided, stored and done."""

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from django.utils import timezone

from controlplane.audit.models import AuditEntry
from controlplane.fleet import publishing
from controlplane.fleet.models import Pool, ScalingMode, WantedInstance, WantedNode
from controlplane.scaling import tasks
from controlplane.scaling.models import ScalingDecision, ScalingState, ScalingWindow
from controlplane.scaling.selectors import scaling_now
from controlplane.tenants.access import Access, Role
from engine_pool import pool_spec
from engine_pool.policy.wishes import WantedState
from engine_pool.store import connect
from engine_pool.types import CRASH_LOOP_FAILURES, InstanceState
from engine_pool.view import Bulletin
from tests.controlplane.scaling_world import (
    CAPACITY_TOKENS,
    INTERVAL_S,
    ScalingWorld,
    make_world,
    records,
    stop,
)
from tests.engine_pool.make import load, running

pytestmark = pytest.mark.django_db

VIEWER = Access("vera", platform=Role.VIEWER)


@pytest.fixture
def world(
    store: "redis.Redis[bytes]", monkeypatch: pytest.MonkeyPatch, settings: Any
) -> ScalingWorld:
    """Two instances that serve, both in the band."""
    settings.SCALING_CHECK_S = INTERVAL_S
    monkeypatch.setattr(publishing, "_store", lambda: store)
    world = make_world(store)
    world.serve("i-01")
    world.serve("i-02")
    return world


@pytest.fixture
def capture(django_capture_on_commit_callbacks: Callable[..., Any]) -> Callable[..., Any]:
    return lambda: django_capture_on_commit_callbacks(execute=True)


def test_a_shortage_grows_the_pool_and_says_why(
    world: ScalingWorld, capture: Callable[..., Any]
) -> None:
    world.serve("i-01", 100)
    world.serve("i-02", 140)
    assert world.check() is not None, "the first row says that the loop runs"
    world.check()
    with capture():
        row = world.check()
    assert row is not None
    assert (row.kind, row.instance, row.is_applied) == ("grow", "i-03", True)
    assert row.reason == "average 120 < 160 for 10 s: 2 -> 3"
    assert (row.instances_before, row.instances_after, row.average_steps) == (2, 3, 120)
    assert world.instances() == 3
    published = world.store.hget(pool_spec.WANTED, "wanted")
    assert published is not None
    assert pool_spec._decode(published).pools[0].instances == 3
    audit = AuditEntry.objects.get()
    assert (audit.who, audit.action, audit.object) == ("scaling", "scaling_grow", "default: i-03")
    assert (audit.before, audit.after) == ({"instances": 2}, {"instances": 3})
    world.check()
    assert world.instances() == 3, "the one that starts counts with its memory"


def test_too_much_room_drains_one_and_a_new_shortage_takes_it_back(
    world: ScalingWorld, capture: Callable[..., Any]
) -> None:
    world.serve("i-01", 1200, requests=13)
    world.serve("i-02", 1200, requests=12)
    for _ in range(7):
        with capture():
            row = world.check()
    assert row is not None
    assert (row.kind, row.instance, row.instances_after) == ("shrink", "i-02", 1)
    wish = WantedInstance.objects.get()
    assert (wish.wanted, wish.by, wish.leftover) == ("stopped", "scaling", "wait")
    assert wish.deadline is None, "nothing is cut to save an instance"
    assert wish.reason == row.reason
    assert world.instances() == 2, "the slot stays until its engine has ended"
    world.say("i-02", InstanceState.DRAINING)
    world.serve("i-01", 50)
    for _ in range(4):
        row = world.check() or row
    assert (row.kind, row.instance, row.instances_after) == ("undrain", "i-02", 2)
    assert not WantedInstance.objects.exists()
    assert [a.action for a in AuditEntry.objects.order_by("pk")] == [
        "scaling_shrink",
        "scaling_undrain",
    ]


def test_a_stopped_instance_starts_again_before_another_is_added(world: ScalingWorld) -> None:
    world.change(instances=3)
    stop(world, "i-02")
    world.say("i-02", InstanceState.STOPPED)
    world.serve("i-01", 10)
    world.serve("i-03", 10)
    world.check()
    world.check()
    row = world.check()
    assert row is not None
    assert (row.kind, row.instance) == ("grow", "i-02")
    assert "i-02 starts again" in row.reason
    assert (world.stopped(), world.instances()) == (set(), 3)


def test_a_restart_that_somebody_asked_for_outlives_a_stop(world: ScalingWorld) -> None:
    stop(world, "i-02", renew_before=timezone.now())
    world.silence("i-02")
    world.say("i-02", InstanceState.STOPPED)
    world.change(min_instances=2)
    world.check()
    wish = WantedInstance.objects.get()
    assert wish.wanted == WantedState.SERVING
    assert wish.renew_before is not None


def test_the_last_slot_goes_when_its_engine_has_ended(world: ScalingWorld) -> None:
    world.change(instances=4)
    for name in ("i-02", "i-04"):
        stop(world, name)
    world.serve("i-03")
    world.say("i-02", InstanceState.STOPPED)
    world.say("i-04", InstanceState.DRAINING)
    world.check()
    assert world.instances() == 4
    world.say("i-04", InstanceState.STOPPED)
    world.check()
    assert world.instances() == 3
    assert world.stopped() == {"i-02"}, "only the last ones go: names stay what they are"
    assert AuditEntry.objects.get().action == "scaling_tidy"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"at_unix_s": math.nan}, id="a time that is no number"),
        pytest.param({"at_unix_s": math.inf}, id="a time that never comes"),
        pytest.param({"used_tokens": -5}, id="negative memory"),
        pytest.param({"capacity_tokens": 0}, id="no capacity"),
        pytest.param({"capacity_tokens": -16_000}, id="negative capacity"),
        pytest.param({"incarnation": "dead"}, id="a predecessor's"),
        pytest.param({"running": (running(-160),)}, id="a request of negative size"),
        pytest.param(None, id="cannot be read"),
        pytest.param("missing", id="missing"),
    ],
)
def test_a_report_of_nonsense_never_shrinks_and_never_stops_the_loop_for_ever(
    world: ScalingWorld, change: dict[str, Any] | str | None
) -> None:
    """One of three is never heard; the others have too much room, and later too little."""
    world.change(instances=3, grow_after_s=0.0, shrink_after_s=0.0)
    world.say("i-03")
    key = "ferry:loads"
    if isinstance(change, dict):
        world.reported["i-03"] = lambda: replace(
            load("i-03", capacity=CAPACITY_TOKENS, at_unix_s=world.now_s), **change
        )
    elif change is None:
        world.store.hset(key, "i-03", b"\xc1nonsense")
    world.serve("i-01", 1500)
    world.serve("i-02", 1500)
    for _ in range(20):
        world.check()
    assert [kind for kind, _ in world.rows()] == ["hold", "refused"]
    assert (world.instances(), world.stopped()) == (3, set())
    world.serve("i-01", 20)
    world.serve("i-02", 20)
    row = world.check()
    assert row is not None
    assert (row.kind, row.silent, row.instances_after) == ("grow", 1, 4)


def test_all_silent_holds_and_goes_on_when_they_are_back(world: ScalingWorld) -> None:
    world.check()
    world.silence("i-01")
    world.silence("i-02")
    for _ in range(30):
        world.check()
    kinds = [kind for kind, _ in world.rows()]
    assert kinds[:2] == ["heartbeat", "hold"]
    assert set(kinds[2:]) <= {"heartbeat", "hold"}
    assert (world.instances(), world.stopped()) == (2, set())
    world.serve("i-01", 0)
    world.serve("i-02", 0)
    for _ in range(3):
        row = world.check()
    assert row is not None
    assert row.kind == "grow"


def test_what_people_want_is_never_touched_and_not_counted(world: ScalingWorld) -> None:
    world.change(instances=4, grow_after_s=0.0)
    for name, wanted in (("i-03", "cordoned"), ("i-04", "drained")):
        WantedInstance.objects.create(
            pool=world.pool, instance=name, wanted=wanted, by="oscar", since=timezone.now()
        )
        world.serve(name, requests=0)
    world.serve("i-01", 10)
    world.serve("i-02", 10)
    row = world.check()
    assert row is not None
    assert row.kind == "refused"
    assert "2 cordoned or drained by people" in row.reason
    assert WantedInstance.objects.filter(by="oscar").count() == 2
    assert world.instances() == 4


def test_instances_of_a_node_that_is_wanted_away_are_not_available(world: ScalingWorld) -> None:
    world.say("i-02", node="node-b")
    WantedNode.objects.create(node="node-b", wanted="drained", by="oscar", since=timezone.now())
    world.change(min_instances=2)
    row = world.check()
    assert row is not None
    assert (row.kind, row.instance) == ("grow", "i-03")
    assert "1 < 2, the least" in row.reason


def test_a_crash_loop_counts_as_nothing_that_starts(world: ScalingWorld) -> None:
    world.change(instances=3, grow_after_s=0.0)
    world.say("i-03", InstanceState.LOST, failures=CRASH_LOOP_FAILURES)
    world.serve("i-01", 10)
    world.serve("i-02", 10)
    row = world.check()
    assert row is not None
    assert (row.kind, row.instance, row.starting) == ("grow", "i-04", 0)
    assert "one fails again and again" in row.reason


def test_a_window_of_the_schedule_raises_and_lowers_the_pool(world: ScalingWorld) -> None:
    begins = datetime.fromtimestamp(world.now_s, UTC).time()
    ends = (datetime.fromtimestamp(world.now_s, UTC) + timedelta(seconds=20)).time()
    ScalingWindow.objects.create(
        pool=world.pool, name="rush", begins=begins, ends=ends, min_instances=4, max_instances=4
    )
    row = world.check()
    assert row is not None
    assert (row.kind, row.signal, row.add, world.instances()) == ("grow", "schedule", 2, 4)
    assert row.reason == "2 < 4, the least (window rush): 2 -> 4"
    now = scaling_now(access=VIEWER, pool=world.pool, now=row.at)
    assert (now.bounds.min_instances, now.bounds.window) == (4, "rush")
    assert now.next_bounds_at == row.at + timedelta(seconds=15)
    world.now_s += 60
    now = scaling_now(access=VIEWER, pool=world.pool, now=row.at + timedelta(seconds=15))
    assert now.bounds.window == ""


ZERO: dict[str, Any] = {"min_instances": 0, "zero_after_s": 60.0, "instances": 1}


def test_to_zero_and_back_when_somebody_asks(
    world: ScalingWorld, capture: Callable[..., Any]
) -> None:
    world.change(**ZERO)
    world.silence("i-02")
    Bulletin(world.store).forget(load("i-02").instance)
    world.serve("i-01", requests=0)
    for _ in range(13):
        row = world.check()
    assert row is not None
    assert (row.kind, row.signal, row.reason) == ("shrink", "idle", "idle for 60 s: 1 -> 0")
    world.silence("i-01")
    world.say("i-01", InstanceState.STOPPED)
    for _ in range(5):
        world.check()
    assert (world.stopped(), world.instances()) == ({"i-01"}, 1)
    assert world.wake() is None, "nobody asks"
    world.demand()
    row = world.wake()
    assert row is not None
    assert (row.kind, row.signal, row.instance) == ("grow", "demand", "i-01")
    assert world.stopped() == set()
    assert world.wake() is None, "it starts already"


def test_a_wake_does_not_wait_for_the_next_check(world: ScalingWorld) -> None:
    world.change(**ZERO)
    stop(world, "i-01")
    world.say("i-01", InstanceState.STOPPED)
    world.silence("i-01")
    world.check()
    world.demand()
    assert world.check(after_s=0.5) is None
    row = world.wake(after_s=0.5)
    assert row is not None
    assert row.signal == "demand"


def test_late_first_tokens_grow_the_pool(world: ScalingWorld) -> None:
    world.change(ttft_attainment_floor=0.9, grow_after_s=0.0)
    records(world, met=25, missed=4)
    assert world.check() is not None
    assert world.instances() == 2, "29 requests say nothing"
    records(world, met=1, missed=4, name="b")
    row = world.check()
    assert row is not None
    assert (row.kind, row.signal) == ("grow", "ttft")
    assert row.ttft_attainment == pytest.approx(26 / 34)
    assert "76.5% of 34 requests within their TTFT < 90.0%" in row.reason
    world.serve("i-03")
    for _ in range(5):
        world.check()
    assert world.instances() == 3, "what was before it served is no reason for another"


def test_a_clock_that_was_set_back_does_not_stop_the_loop(world: ScalingWorld) -> None:
    world.check()
    world.now_s -= 3600
    world.serve("i-01", 10)
    world.serve("i-02", 10)
    for _ in range(4):
        world.check()
    assert world.instances() == 3


def test_after_a_gap_nobody_knows_how_it_was_meanwhile(world: ScalingWorld) -> None:
    world.serve("i-01", 10)
    world.serve("i-02", 10)
    world.check()
    world.check(after_s=600)
    assert world.instances() == 2
    world.check()
    world.check()
    assert world.instances() == 3


def test_a_memory_that_cannot_be_read_is_forgotten(world: ScalingWorld) -> None:
    world.check()
    ScalingState.objects.update(memory={"under_since_s": "soon", "said": 7, "grown_s": True})
    world.serve("i-01", 10)
    world.serve("i-02", 10)
    world.check()
    assert world.instances() == 2
    world.check()
    world.check()
    assert world.instances() == 3


def test_one_pool_that_cannot_be_checked_keeps_no_other_from_it(world: ScalingWorld) -> None:
    Pool.objects.create(
        name="broken",
        served_model_name="broken",
        scaling_mode=ScalingMode.ACT,
        engine_settings={"kv_cache_gib": "many"},
    )
    world.serve("i-01", 10)
    world.serve("i-02", 10)
    for _ in range(3):
        world.check()
    assert world.instances() == 3
    assert set(ScalingDecision.objects.values_list("pool", flat=True)) == {"default"}


def test_with_the_store_away_nothing_is_decided_and_the_next_check_goes_on(
    world: ScalingWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world.serve("i-01", 1500)
    world.serve("i-02", 1500)
    world.check()
    # Nobody listens on this port: a connection is refused at once.
    monkeypatch.setattr(tasks, "_store", lambda: connect("redis://127.0.0.1:1/0"))
    before = world.state().tick
    for _ in range(20):
        tasks.check()
        tasks.wake()
    assert world.state().tick == before
    assert (world.instances(), world.stopped()) == (2, set())
    assert "no pool was checked: ConnectionError" in caplog.text
    world.check()
    assert world.state().tick == before + 1
