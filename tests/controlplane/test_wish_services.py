"""What operators may want of instances and nodes: rows, audit, refusals, and what is published."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from django.core.exceptions import ValidationError
from django.utils import timezone

from controlplane.audit.models import AuditEntry
from controlplane.errors import NotAllowed, NotVisible, VersionConflict
from controlplane.fleet import fleet_now, publishing
from controlplane.fleet.fleet_now import FleetNow
from controlplane.fleet.models import Pool, WantedInstance, WantedNode
from controlplane.fleet.wish_rows import wishes_now
from controlplane.fleet.wish_services import (
    instance_cordon,
    instance_drain,
    instance_release,
    instance_restart,
    instance_stop,
    node_cordon,
    node_drain,
    node_release,
)
from controlplane.fleet.wish_terms import (
    DEADLINE_MAX_S,
    NONE_SEEN,
    HeldByNode,
    NeedsForce,
    NothingToRestart,
    Terms,
    WishedByAnother,
)
from controlplane.fleet.wish_tidy import wishes_tidy
from controlplane.tenants.access import Access, Role
from engine_pool.policy.wishes import InstanceWish, Leftover, WantedState
from engine_pool.types import InstanceState
from tests.controlplane import drain_world as world

OLGA = Access("olga", user_id=None, platform=Role.OPERATOR)
OSCAR = Access("oscar", platform=Role.OPERATOR)
VIEWER = Access("vera", platform=Role.VIEWER)
OUTSIDER = Access("otto")
Capture = Callable[..., Any]


@pytest.fixture(autouse=True)
def published(store: "redis.Redis[bytes]", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "_store", lambda: store)


@pytest.fixture
def pool() -> Pool:
    return Pool.objects.create(name="default", served_model_name="tiny", instances=4)


@pytest.fixture
def known(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> Callable[[FleetNow], None]:
    """Says what the pool is seen to do; at first four instances on two nodes serve."""

    def see(now: FleetNow) -> None:
        monkeypatch.setattr(fleet_now, "fleet_now", lambda: now)

    see(world.fleet(world.status(n) for n in (1, 2, 3, 4)))
    return see


pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("known")]


def wish(instance: str) -> InstanceWish:
    """Returns what is published of an instance."""
    found = publishing.wanted_now()
    assert found is not None
    return found.pools[0].wishes.get(instance, InstanceWish())


@pytest.mark.parametrize(
    ("act", "wanted", "action"),
    [
        (instance_cordon, WantedState.CORDONED, "instance_cordon"),
        (instance_drain, WantedState.DRAINED, "instance_drain"),
        (instance_stop, WantedState.STOPPED, "instance_stop"),
    ],
)
def test_a_wish_is_a_row_an_audit_row_and_published(
    act: Any, wanted: WantedState, action: str
) -> None:
    act(access=OLGA, instance="i-02", terms=Terms(" kernel update "))
    row = WantedInstance.objects.get()
    assert (row.instance, row.wanted, row.by, row.reason) == (
        "i-02", wanted, "olga", "kernel update",
    )  # fmt: skip
    told = wish("i-02")
    assert (told.wanted, told.by, told.deadline_unix_s) == (wanted, "olga", None)
    audit = AuditEntry.objects.get()
    assert (audit.who, audit.role, audit.action, audit.object) == (
        "olga", "operator", action, "i-02",
    )  # fmt: skip
    assert (audit.reason, audit.after["wanted"]) == ("kernel update", wanted)


def test_it_is_told_to_the_pool_on_the_commit(
    store: "redis.Redis[bytes]", django_capture_on_commit_callbacks: Capture
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        instance_drain(access=OLGA, instance="i-02", terms=Terms())
    assert b"i-02" in (store.hget("ferry:pools", "wanted") or b"")


def test_a_deadline_counts_from_the_press() -> None:
    terms = Terms(deadline_s=600, leftover=Leftover.REPLAY)
    instance_drain(access=OLGA, instance="i-02", terms=terms)
    told = wish("i-02")
    assert told.deadline_unix_s == pytest.approx(told.since_unix_s + 600)
    assert told.leftover is Leftover.REPLAY


def test_a_second_press_changes_nothing() -> None:
    terms = Terms("kernel update", deadline_s=600, leftover=Leftover.END)
    first = instance_drain(access=OLGA, instance="i-02", terms=terms)
    again = instance_drain(access=OLGA, instance="i-02", terms=terms)
    assert (again.version, again.since, again.deadline) == (1, first.since, first.deadline)
    assert AuditEntry.objects.count() == 1


def test_another_deadline_counts_from_its_own_press() -> None:
    row = instance_drain(access=OLGA, instance="i-02", terms=Terms())
    WantedInstance.objects.update(since=row.since - timedelta(hours=1))
    again = instance_drain(access=OLGA, instance="i-02", terms=Terms(deadline_s=60))
    assert again.deadline is not None
    assert again.deadline - timezone.now() > timedelta(seconds=1)


@pytest.mark.parametrize(
    ("terms", "field"),
    [
        pytest.param(Terms(deadline_s=0), "deadline_s", id="no time"),
        pytest.param(Terms(deadline_s=-5), "deadline_s", id="in the past"),
        pytest.param(Terms(deadline_s=float("nan")), "deadline_s", id="no number"),
        pytest.param(Terms(deadline_s=DEADLINE_MAX_S + 1), "deadline_s", id="too far"),
        pytest.param(Terms(leftover=Leftover.END), "deadline_s", id="end without a deadline"),
        pytest.param(Terms("x" * 501), "reason", id="a long reason"),
    ],
)
def test_wrong_values_are_refused_by_name(terms: Terms, field: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        instance_drain(access=OLGA, instance="i-02", terms=terms)
    assert list(refusal.value.message_dict) == [field]
    assert not WantedInstance.objects.exists()


@pytest.mark.parametrize("name", ["i-05", "i-00", "i-2", "i-x", "", "j-01", "i-02x", "x" * 300])
def test_there_is_nothing_to_want_of_an_instance_that_is_not(name: str) -> None:
    with pytest.raises(NotVisible):
        instance_drain(access=OLGA, instance=name, terms=Terms())


def test_an_instance_that_still_reports_is_one_though_its_pool_has_become_smaller(
    pool: Pool,
) -> None:
    Pool.objects.update(instances=2)
    instance_drain(access=OLGA, instance="i-04", terms=Terms())
    assert WantedInstance.objects.get().pool == pool


@pytest.mark.parametrize("act", [instance_cordon, instance_drain, instance_stop, instance_restart])
def test_only_operators_may(act: Any) -> None:
    with pytest.raises(NotAllowed):
        act(access=VIEWER, instance="i-02", terms=Terms())
    with pytest.raises(NotVisible):
        act(access=OUTSIDER, instance="i-02", terms=Terms())
    with pytest.raises(NotAllowed):
        instance_release(access=VIEWER, instance="i-02", terms=Terms())
    with pytest.raises(NotAllowed):
        node_drain(access=VIEWER, node="gpu-a", terms=Terms())


def test_another_persons_wish_is_replaced_only_by_who_has_seen_it() -> None:
    instance_drain(access=OLGA, instance="i-02", terms=Terms("kernel update"))
    with pytest.raises(WishedByAnother, match=r'olga wants i-02 drained .*"kernel update".*1 to'):
        instance_stop(access=OSCAR, instance="i-02", terms=Terms())
    with pytest.raises(WishedByAnother):
        instance_release(access=OSCAR, instance="i-02", terms=Terms())
    with pytest.raises(VersionConflict):
        instance_stop(access=OSCAR, instance="i-02", terms=Terms(version=7))
    row = instance_stop(access=OSCAR, instance="i-02", terms=Terms(version=1))
    assert (row.wanted, row.by, row.version) == ("stopped", "oscar", 2)
    instance_release(access=OLGA, instance="i-02", terms=Terms(version=2))
    assert not WantedInstance.objects.exists()


def test_a_wish_that_was_released_meanwhile_is_not_replaced_unseen() -> None:
    with pytest.raises(VersionConflict):
        instance_drain(access=OLGA, instance="i-02", terms=Terms(version=1))
    with pytest.raises(VersionConflict):
        instance_release(access=OLGA, instance="i-02", terms=Terms(version=1))


def test_who_has_seen_no_wish_replaces_none() -> None:
    none = Terms(version=NONE_SEEN)
    instance_drain(access=OLGA, instance="i-02", terms=none)
    assert instance_drain(access=OLGA, instance="i-02", terms=none).version == 1
    with pytest.raises(VersionConflict):
        instance_cordon(access=OSCAR, instance="i-02", terms=none)


def test_a_drain_ends_a_restart_that_goes_on() -> None:
    instance_restart(access=OLGA, instance="i-02", terms=Terms())
    assert instance_drain(access=OLGA, instance="i-02", terms=Terms()).renew_before is None


def test_what_scaling_wants_gives_way_to_people(pool: Pool) -> None:
    WantedInstance.objects.create(
        pool=pool, instance="i-02", wanted="stopped", by="scaling", since=timezone.now()
    )
    assert instance_cordon(access=OLGA, instance="i-02", terms=Terms()).by == "olga"


def test_the_last_instance_that_serves_is_kept_unless_it_is_forced(
    known: Callable[[FleetNow], None],
) -> None:
    known(world.fleet([world.status(1), world.status(2, state=InstanceState.LOST)]))
    for act in (instance_cordon, instance_drain, instance_stop, instance_restart):
        with pytest.raises(NeedsForce, match="It is the last instance of pool default"):
            act(access=OLGA, instance="i-01", terms=Terms())
    instance_drain(access=OLGA, instance="i-02", terms=Terms())
    instance_drain(access=OLGA, instance="i-01", terms=Terms(is_forced=True))
    assert wish("i-01").wanted is WantedState.DRAINED


def test_an_instance_that_is_to_leave_counts_as_gone() -> None:
    for name in ("i-01", "i-02", "i-03"):
        instance_drain(access=OLGA, instance=name, terms=Terms())
    with pytest.raises(NeedsForce):
        instance_drain(access=OLGA, instance="i-04", terms=Terms())


def test_without_the_store_nobody_knows_what_else_serves(
    known: Callable[[FleetNow], None],
) -> None:
    known(world.fleet(is_known=False))
    with pytest.raises(NeedsForce, match="store does not answer"):
        instance_drain(access=OLGA, instance="i-02", terms=Terms())
    instance_drain(access=OLGA, instance="i-02", terms=Terms(is_forced=True))


def test_a_restart_wants_a_younger_engine_and_the_same_as_before() -> None:
    before_unix_s = time.time()
    row = instance_restart(access=OLGA, instance="i-02", terms=Terms(deadline_s=60), word="replace")
    assert (row.wanted, AuditEntry.objects.get().action) == ("serving", "instance_replace")
    assert (wish("i-02").renew_before_unix_s or 0) >= before_unix_s
    again = instance_restart(access=OLGA, instance="i-02", terms=Terms(deadline_s=60))
    assert again.renew_before == row.renew_before


def test_a_restart_that_is_done_can_be_asked_for_again(
    known: Callable[[FleetNow], None],
) -> None:
    first = instance_restart(access=OLGA, instance="i-02", terms=Terms())
    known(world.fleet([world.status(1), world.status(2, engine_started_unix_s=time.time() + 1)]))
    again = instance_restart(access=OLGA, instance="i-02", terms=Terms())
    assert first.renew_before is not None
    assert again.renew_before is not None
    assert again.renew_before > first.renew_before


def test_an_instance_that_is_to_be_empty_is_not_restarted() -> None:
    instance_drain(access=OLGA, instance="i-02", terms=Terms())
    with pytest.raises(NothingToRestart, match="release it first"):
        instance_restart(access=OLGA, instance="i-02", terms=Terms())
    instance_release(access=OLGA, instance="i-02", terms=Terms())
    instance_cordon(access=OLGA, instance="i-02", terms=Terms())
    assert instance_restart(access=OLGA, instance="i-02", terms=Terms()).wanted == "cordoned"


def test_a_release_removes_the_row_and_may_be_repeated() -> None:
    instance_drain(access=OLGA, instance="i-02", terms=Terms())
    instance_release(access=OLGA, instance="i-02", terms=Terms("done"))
    instance_release(access=OLGA, instance="i-02", terms=Terms())
    assert wish("i-02").wanted is WantedState.SERVING
    audit = AuditEntry.objects.get(action="instance_release")
    assert (audit.object, audit.reason, audit.before["wanted"]) == ("i-02", "done", "drained")


def test_a_nodes_wish_holds_for_its_instances_and_is_released_there() -> None:
    row = node_drain(access=OLGA, node="gpu-a", terms=Terms("new disks"))
    assert (row.wanted, row.by) == ("drained", "olga")
    assert wishes_now().joined("i-01", "gpu-a").wanted is WantedState.DRAINED
    with pytest.raises(HeldByNode, match="drained with its node gpu-a, by olga"):
        instance_release(access=OLGA, instance="i-01", terms=Terms())
    node_release(access=OLGA, node="gpu-a", terms=Terms())
    assert not WantedNode.objects.exists()
    actions = list(AuditEntry.objects.order_by("id").values_list("action", "object"))
    assert actions == [("node_drain", "gpu-a"), ("node_release", "gpu-a")]


def test_a_node_may_be_cordoned_or_stopped() -> None:
    assert node_cordon(access=OLGA, node="gpu-a", terms=Terms()).wanted == "cordoned"
    row = node_drain(access=OLGA, node="gpu-a", terms=Terms(), is_stopped=True)
    assert (row.wanted, row.version) == ("stopped", 2)
    assert AuditEntry.objects.filter(action="node_stop").count() == 1


def test_a_node_that_has_all_that_serves_is_kept_unless_it_is_forced(
    known: Callable[[FleetNow], None],
) -> None:
    known(world.fleet([world.status(1), world.status(2)]))
    with pytest.raises(NeedsForce, match="These are the last instances"):
        node_drain(access=OLGA, node="gpu-a", terms=Terms())


def test_an_unknown_node_is_not_there() -> None:
    for act in (node_drain, node_cordon, node_release):
        with pytest.raises(NotVisible, match="There is no node gpu-z"):
            act(access=OLGA, node="gpu-z", terms=Terms())


def test_a_fulfilled_restart_is_tidied_away_and_told(known: Callable[[FleetNow], None]) -> None:
    instance_restart(access=OLGA, instance="i-02", terms=Terms())
    instance_cordon(access=OLGA, instance="i-03", terms=Terms())
    instance_restart(access=OLGA, instance="i-03", terms=Terms())
    assert wishes_tidy(now=timezone.now()) == 0
    young = time.time() + 1
    cordoned = world.status(3, state=InstanceState.CORDONED, engine_started_unix_s=young)
    known(world.fleet([world.status(2, engine_started_unix_s=young), cordoned]))
    assert wishes_tidy(now=timezone.now()) == 2
    row = WantedInstance.objects.get()
    assert (row.instance, row.wanted, row.renew_before) == ("i-03", "cordoned", None)
    told = AuditEntry.objects.filter(action="instance_renewed").values_list("who", "object")
    assert sorted(told) == [("pool", "i-02"), ("pool", "i-03")]


def test_a_restart_that_goes_on_is_not_tidied(known: Callable[[FleetNow], None]) -> None:
    instance_restart(access=OLGA, instance="i-02", terms=Terms())
    starting = world.status(2, state=InstanceState.STARTING, engine_started_unix_s=time.time() + 1)
    known(world.fleet([starting]))
    assert wishes_tidy(now=timezone.now()) == 0
    known(world.fleet(is_known=False))
    assert wishes_tidy(now=timezone.now() + timedelta(days=30)) == 0


def test_a_wish_for_a_place_that_a_pool_no_longer_has_is_forgotten_after_an_hour(
    known: Callable[[FleetNow], None],
) -> None:
    instance_drain(access=OLGA, instance="i-04", terms=Terms())
    Pool.objects.update(instances=3)
    known(world.fleet([world.status(1)]))
    assert wishes_tidy(now=timezone.now()) == 0
    assert wishes_tidy(now=timezone.now() + timedelta(hours=2)) == 1
    assert not WantedInstance.objects.exists()


def test_times_are_published_as_they_were_stored() -> None:
    row = instance_drain(access=OLGA, instance="i-02", terms=Terms(deadline_s=60))
    told = datetime.fromtimestamp(wish("i-02").deadline_unix_s or 0, UTC)
    assert row.deadline is not None
    assert abs(told - row.deadline) < timedelta(milliseconds=1)
