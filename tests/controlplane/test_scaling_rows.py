"""Which checks of scaling become rows, how long they are kept, and what is told of them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from django.db import IntegrityError, transaction

from controlplane.audit.models import AuditEntry
from controlplane.fleet import publishing
from controlplane.fleet.models import ScalingMode, WantedInstance
from controlplane.scaling import services
from controlplane.scaling.models import ScalingDecision, ScalingState
from controlplane.scaling.selectors import decisions_list, scaling_now
from controlplane.tenants.access import Access, Role
from tests.controlplane.scaling_world import INTERVAL_S, ScalingWorld, make_world

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


def test_advice_is_stored_once_and_acts_on_nothing(world: ScalingWorld) -> None:
    world.change(scaling_mode=ScalingMode.ADVISE)
    world.serve("i-01", 100)
    world.serve("i-02", 100)
    for _ in range(8):
        world.check()
    assert world.rows() == [("heartbeat", False), ("grow", False)]
    assert world.instances() == 2
    assert not WantedInstance.objects.exists()
    assert not AuditEntry.objects.exists()
    row = ScalingDecision.objects.get(kind="grow")
    assert (row.mode, row.instances_before, row.instances_after) == ("advise", 2, 3)


def test_a_pool_that_is_off_is_not_checked(world: ScalingWorld) -> None:
    world.change(scaling_mode=ScalingMode.OFF)
    world.serve("i-01", 0)
    assert world.check() is None
    assert not ScalingState.objects.exists()
    world.change(scaling_mode=ScalingMode.ACT, is_enabled=False)
    assert world.check() is None
    assert not ScalingState.objects.exists()


def test_a_refusal_is_stored_once_until_it_changes(world: ScalingWorld) -> None:
    world.change(max_instances=2, grow_after_s=0.0)
    world.serve("i-01", 100)
    for _ in range(10):
        world.check()
    assert world.rows() == [("heartbeat", False)]
    world.serve("i-02", 100)
    for _ in range(10):
        world.check()
    assert [kind for kind, _ in world.rows()] == ["heartbeat", "refused"]
    assert "2 instances are the most" in ScalingDecision.objects.latest("pk").reason
    for _ in range(12):
        world.check()
    assert [kind for kind, _ in world.rows()][-1] == "heartbeat", "and one a minute says so still"


def test_a_heartbeat_a_minute_tells_rest_from_silence(world: ScalingWorld) -> None:
    for _ in range(26):
        world.check()
    assert world.rows() == [("heartbeat", False)] * 3
    row = ScalingDecision.objects.first()
    assert row is not None
    assert row.reason == "average 500 in 160-960"
    assert (row.serving, row.starting, row.silent, row.instances_before) == (2, 0, 0, 2)


def test_what_two_would_write_for_one_check_is_refused_by_the_database(
    world: ScalingWorld,
) -> None:
    row = world.check()
    assert row is not None
    row.pk = None
    with pytest.raises(IntegrityError), transaction.atomic():
        row.save(force_insert=True)


def test_decisions_are_kept_for_a_while_and_heartbeats_for_days(world: ScalingWorld) -> None:
    world.check()
    world.serve("i-01", 0)
    world.serve("i-02", 0)
    for _ in range(3):
        world.check()
    assert [kind for kind, _ in world.rows()] == ["heartbeat", "grow"]
    last = ScalingDecision.objects.latest("at").at
    assert services.decisions_forget(now=last + timedelta(days=2), kept_days=30) == 0
    assert services.decisions_forget(now=last + timedelta(days=4), kept_days=30) == 1
    assert [kind for kind, _ in world.rows()] == ["grow"]
    assert services.decisions_forget(now=last + timedelta(days=31), kept_days=30) == 1


def test_how_scaling_stands_is_told(world: ScalingWorld) -> None:
    def now(after_s: float = 0.0) -> Any:
        at = datetime.fromtimestamp(world.now_s + after_s, UTC)
        return scaling_now(access=VIEWER, pool=world.pool, now=at)

    world.change(shrink_cooldown_s=100.0, grow_after_s=0.0)
    world.serve("i-01", 10)
    world.serve("i-02", 10)
    row = world.check()
    found = now()
    assert (found.last, found.last_change) == (row, row)
    assert found.next_check_at - found.checked_at == timedelta(seconds=INTERVAL_S)
    assert found.under_since == found.checked_at
    assert found.shrink_blocked_until == found.checked_at + timedelta(seconds=100)
    assert found.grow_blocked_until is None
    assert not found.is_late
    assert now(after_s=21).is_late
    world.change(scaling_mode=ScalingMode.OFF)
    assert now(after_s=21).next_check_at is None
    assert not now(after_s=21).is_late


def test_decisions_are_listed_newest_first_by_what_they_are(world: ScalingWorld) -> None:
    world.check()
    world.serve("i-01", 10)
    world.serve("i-02", 10)
    for _ in range(3):
        world.check()
    kinds = [row.kind for row in decisions_list(access=VIEWER)]
    assert kinds == ["grow", "heartbeat"]
    assert decisions_list(access=VIEWER, kinds=["grow"], pool="default").count() == 1
    assert decisions_list(access=VIEWER, is_applied=False, signal="freeness").count() == 1
    last = ScalingDecision.objects.latest("at").at
    assert decisions_list(access=VIEWER, since=last).count() == 1
    assert decisions_list(access=VIEWER, until=last, pool="other").count() == 0
