"""`/api/v1/scaling`, how a pool's scaling stands, and its schedule over REST."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.utils import timezone
from pytest_django.fixtures import Settings as DjangoSettings

from controlplane.audit.models import AuditEntry
from controlplane.fleet import publishing
from controlplane.fleet.models import Pool
from controlplane.scaling import live
from controlplane.scaling.models import ScalingDecision, ScalingState, ScalingWindow
from controlplane.tenants.access import Role
from tests.controlplane.api_pool import ApiPool, serving
from tests.controlplane.api_world import (
    Caller,
    a_pool,
    by_key,
    by_session,
    platform_user,
    tenant_world,
)

pytestmark = pytest.mark.django_db

WINDOW = {
    "name": "mornings", "weekdays": 31, "begins": "08:00", "ends": "12:30",
    "timezone": "Europe/Berlin", "min_instances": 2, "max_instances": 6,
}  # fmt: skip
WINDOWS = "pools/default/windows"


@pytest.fixture(autouse=True)
def published(store: "redis.Redis[bytes]", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "_store", lambda: store)
    # On a slow machine too, reports are young.
    monkeypatch.setattr(live, "REPORT_MAX_AGE_S", 3600.0)


@pytest.fixture
def pool_row() -> Pool:
    return a_pool()


@pytest.fixture
def seen(store_url: str, settings: DjangoSettings) -> Iterator[ApiPool]:
    with serving(store_url, settings) as made:
        yield made


@pytest.fixture
def operator() -> Caller:
    return by_session("operator", platform_user(Role.OPERATOR))


@pytest.fixture
def viewer() -> Caller:
    return by_session("viewer", platform_user(Role.VIEWER))


def decide(tick: int, pool: str = "default", kind: str = "grow", ago_s: float = 0.0) -> None:
    ScalingDecision.objects.create(
        pool=pool, at=timezone.now() - timedelta(seconds=ago_s), tick=tick, fence=1, mode="act",
        kind=kind, signal="freeness", instances_before=2, instances_after=3, low_steps=160,
        high_steps=960, average_steps=92.0, is_applied=True, reason=f"reason {tick}",
    )  # fmt: skip


def test_decisions_are_filtered_and_come_in_pages(viewer: Caller) -> None:
    for tick in range(5):
        decide(tick, ago_s=100.0 - tick)
    decide(1, pool="other")
    decide(9, kind="heartbeat", ago_s=5000.0)
    first = viewer.call("GET", "scaling/decisions", {"pool": "default", "limit": 4}).json()
    assert [row["id"] for row in first["data"]] == [f"default-{t}" for t in (4, 3, 2, 1)]
    query = {"pool": "default", "limit": 4, "cursor": first["next_cursor"]}
    rest = viewer.call("GET", "scaling/decisions", query).json()
    assert [row["kind"] for row in rest["data"]] == ["grow", "heartbeat"]
    beats = viewer.call("GET", "scaling/decisions", {"kind": "heartbeat"}).json()
    assert [row["id"] for row in beats["data"]] == ["default-9"]
    since = (timezone.now() - timedelta(seconds=1000)).isoformat()
    young = viewer.call("GET", "scaling/decisions", {"since": since}).json()
    assert len(young["data"]) == 6
    wrong = viewer.call("GET", "scaling/decisions", {"kind": "sideways"})
    assert wrong.status_code == 400
    assert "kind" in wrong.json()["error"]["message"]


def test_a_pools_scaling_tells_state_bounds_and_what_there_is_now(
    pool_row: Pool, seen: ApiPool, viewer: Caller
) -> None:
    Pool.objects.update(scaling_mode="act", instances=5)
    since_s = timezone.now().timestamp() - 20
    # A machine that is slow makes no loop late.
    checked = timezone.now() + timedelta(minutes=5)
    ScalingState.objects.create(
        pool=pool_row, tick=7, checked_at=checked, memory={"under_since_s": since_s}
    )
    ScalingWindow.objects.create(
        pool=pool_row, name="always", begins="00:00", ends="00:00", min_instances=2,
        max_instances=5,
    )  # fmt: skip
    decide(6)
    told = viewer.call("GET", "pools/default/scaling").json()
    assert (told["mode"], told["checks"], told["is_late"]) == ("act", 7, False)
    assert told["bounds"] == {"min_instances": 2, "max_instances": 5, "window": "always"}
    assert told["under_since"] is not None
    assert told["next_check_at"] is not None
    assert told["last_change"]["id"] == "default-6"
    now = told["now"]
    assert (now["wanted"], now["serving"], now["starting"]) == (5, 4, 1)
    assert isinstance(now["average_steps"], float)
    assert told["held_requests"] == 0


def test_a_pool_that_is_not_served_here_has_no_picture(
    pool_row: Pool, seen: ApiPool, viewer: Caller
) -> None:
    Pool.objects.create(name="other", served_model_name="other", is_enabled=False)
    told = viewer.call("GET", "pools/other/scaling").json()
    assert (told["now"], told["held_requests"], told["mode"]) == (None, None, "off")
    assert viewer.call("GET", "pools/nobody/scaling").status_code == 404


def test_a_window_is_added_changed_and_removed_by_operators(
    pool_row: Pool, operator: Caller, viewer: Caller
) -> None:
    assert viewer.call("POST", WINDOWS, WINDOW).status_code == 403
    made = operator.call("POST", WINDOWS, WINDOW, idempotency_key="once")
    assert made.status_code == 201
    again = operator.call("POST", WINDOWS, WINDOW, idempotency_key="once")
    assert again.json() == made.json()
    assert (made.json()["begins"], made.json()["version"]) == ("08:00:00", 1)
    one = f"{WINDOWS}/mornings"
    assert operator.call("PATCH", one, {"min_instances": 3}).status_code == 428
    changed = operator.call("PATCH", one, {"min_instances": 3}, if_match='"1"')
    assert (changed.status_code, changed.json()["min_instances"]) == (200, 3)
    stale = operator.call("PATCH", one, {"min_instances": 4}, if_match='"1"')
    assert stale.status_code == 412
    listed = viewer.call("GET", WINDOWS).json()["data"]
    assert [(w["name"], w["pool"]) for w in listed] == [("mornings", "default")]
    assert viewer.call("DELETE", one, if_match="*").status_code == 403
    assert operator.call("DELETE", one, if_match="*").status_code == 204
    assert operator.call("GET", one).status_code == 404
    actions = AuditEntry.objects.filter(action__startswith="scaling_window").order_by("at")
    assert [a.action.rpartition("_")[2] for a in actions] == ["create", "update", "remove"]


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"timezone": "Mars/Olympus"}, "timezone"),
        ({"min_instances": 0}, "min_instances"),
        ({"max_instances": 1}, "max_instances"),
        ({"max_instances": 99}, "max_instances"),
        ({"weekdays": 0}, "weekdays"),
        ({"begins": "25:00"}, "begins"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_wrong_window_names_the_field(
    changed: dict[str, Any], field: str, pool_row: Pool, operator: Caller
) -> None:
    answer = operator.call("POST", WINDOWS, {**WINDOW, **changed})
    assert answer.status_code == 400
    assert field in answer.json()["error"]["message"]
    assert not ScalingWindow.objects.exists()


def test_tenants_see_nothing_of_it(pool_row: Pool) -> None:
    member = by_key("manage", tenant_world("alpha").texts["manage"])
    for path in ("scaling/decisions", "pools/default/scaling", WINDOWS):
        assert member.call("GET", path).status_code in (403, 404)
