"""Windows of the schedule: which bounds are in force when, over midnight and where clocks are
changed; and how windows are kept as rows."""

from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError

from controlplane.audit.models import AuditEntry
from controlplane.errors import NotAllowed, NotVisible, VersionConflict
from controlplane.fleet.models import Pool
from controlplane.scaling.models import ScalingWindow
from controlplane.scaling.schedule import Bounds, Window, bounds_now, next_change
from controlplane.scaling.selectors import windows_list
from controlplane.scaling.services import window_add, window_remove, window_update
from controlplane.tenants.access import Access, Role

OPERATOR = Access("oscar", platform=Role.OPERATOR)
VIEWER = Access("vera", platform=Role.VIEWER)
MONDAY, SUNDAY, WORKDAYS, ALL = 1, 64, 31, 127


def window(begins: str, ends: str, **more: Any) -> Window:
    values: dict[str, Any] = {
        "name": "rush",
        "weekdays": ALL,
        "timezone": "UTC",
        "min_instances": 3,
        "max_instances": None,
    }
    values |= more
    return Window(begins=time.fromisoformat(begins), ends=time.fromisoformat(ends), **values)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def is_in_force(w: Window, at: str) -> bool:
    return bounds_now(1, 8, [w], utc(at)).window == w.name


# The 2nd of March 2026 is a Monday. Berlin's clocks go forward on the 29th of March (01:00 UTC) and
# back on the 25th of October (01:00 UTC).
@pytest.mark.parametrize(
    ("w", "at", "expected"),
    [
        pytest.param(window("08:00", "18:00"), "2026-03-02T07:59:59", False, id="before"),
        pytest.param(window("08:00", "18:00"), "2026-03-02T08:00", True, id="at its begin"),
        pytest.param(window("08:00", "18:00"), "2026-03-02T17:59:59", True, id="just before"),
        pytest.param(window("08:00", "18:00"), "2026-03-02T18:00", False, id="at its end"),
        pytest.param(
            window("08:00", "18:00", weekdays=WORKDAYS), "2026-03-07T12:00", False, id="Saturday"
        ),
        pytest.param(
            window("22:00", "06:00", weekdays=MONDAY), "2026-03-03T05:00", True, id="next morning"
        ),
        pytest.param(
            window("22:00", "06:00", weekdays=MONDAY), "2026-03-02T05:00", False, id="Sunday night"
        ),
        pytest.param(
            window("22:00", "06:00", weekdays=SUNDAY), "2026-03-02T05:00", True, id="over a week"
        ),
        pytest.param(
            window("00:00", "00:00", weekdays=MONDAY), "2026-03-02T23:59", True, id="whole day"
        ),
        pytest.param(
            window("00:00", "00:00", weekdays=MONDAY), "2026-03-03T00:00", False, id="next day"
        ),
        pytest.param(
            window("08:00", "18:00", timezone="Europe/Berlin"), "2026-03-02T07:00", True, id="zone"
        ),
        pytest.param(
            window("08:00", "18:00", timezone="Europe/Berlin"), "2026-06-01T06:00", True, id="DST"
        ),
        pytest.param(
            window("08:00", "18:00", timezone="Asia/Tokyo", weekdays=MONDAY),
            "2026-03-01T23:30",
            True,
            id="it is Monday there already",
        ),
        pytest.param(
            window("02:30", "05:00", timezone="Europe/Berlin"),
            "2026-03-29T01:15",
            False,
            id="02:30 does not exist: 03:15",
        ),
        pytest.param(
            window("02:30", "05:00", timezone="Europe/Berlin"),
            "2026-03-29T01:30",
            True,
            id="02:30 does not exist: 03:30",
        ),
        pytest.param(
            window("01:00", "02:30", timezone="Europe/Berlin"),
            "2026-03-29T01:29",
            True,
            id="its end does not exist",
        ),
        pytest.param(
            window("02:30", "04:00", timezone="Europe/Berlin"),
            "2026-10-25T00:30",
            True,
            id="the first 02:30 begins it",
        ),
        pytest.param(
            window("01:00", "02:30", timezone="Europe/Berlin"),
            "2026-10-25T01:29",
            True,
            id="the second 02:30 ends it",
        ),
        pytest.param(
            window("01:00", "02:30", timezone="Europe/Berlin"),
            "2026-10-25T01:30",
            False,
            id="after the second 02:30",
        ),
        pytest.param(
            window("08:00", "18:00", timezone="Mars/Base"), "2026-03-02T12:00", False, id="no zone"
        ),
        pytest.param(window("08:00", "18:00", weekdays=0), "2026-03-02T12:00", False, id="no day"),
    ],
)
def test_when_a_window_is_in_force(w: Window, at: str, expected: bool) -> None:
    assert is_in_force(w, at) is expected


def test_of_several_windows_the_one_that_keeps_most_holds() -> None:
    at = utc("2026-03-02T12:00")
    day = window("08:00", "18:00", name="day", min_instances=2)
    launch = window("11:00", "13:00", name="launch", min_instances=5, max_instances=6)
    for order in ([day, launch], [launch, day]):
        assert bounds_now(1, 8, order, at) == Bounds(5, 6, "launch")
    assert bounds_now(1, 8, [], at) == Bounds(1, 8)


def test_a_window_never_exceeds_the_pools_own_most() -> None:
    at = utc("2026-03-02T12:00")
    large = window("08:00", "18:00", min_instances=9, max_instances=12)
    assert bounds_now(1, 8, [large], at) == Bounds(8, 8, "rush")


def test_the_next_change_is_a_begin_or_an_end() -> None:
    w = window("22:00", "06:00", weekdays=MONDAY)
    assert next_change([w], utc("2026-03-02T12:00")) == utc("2026-03-02T22:00")
    assert next_change([w], utc("2026-03-02T22:00")) == utc("2026-03-03T06:00")
    assert next_change([w], utc("2026-03-03T06:00")) == utc("2026-03-09T22:00")
    assert next_change([], utc("2026-03-02T12:00")) is None


@pytest.mark.parametrize("timezone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
def test_edges_are_where_the_bounds_change_all_year(timezone: str) -> None:
    """From edge to edge the bounds are the same; at each they are others."""
    w = window("22:15", "02:45", timezone=timezone, weekdays=WORKDAYS)
    at, edges = utc("2026-01-01T12:00"), 0
    while at < utc("2027-01-01T00:00"):
        edge = next_change([w], at)
        assert edge is not None
        now = bounds_now(1, 8, [w], at)
        assert bounds_now(1, 8, [w], edge - timedelta(microseconds=1)) == now
        assert bounds_now(1, 8, [w], edge) != now
        at, edges = edge, edges + 1
    assert edges in range(520, 526), "261 or 262 working nights have two each"


@pytest.fixture
def pool() -> Pool:
    return Pool.objects.create(name="default", served_model_name="m", max_instances=4)


RUSH: dict[str, Any] = {
    "name": "rush",
    "begins": time(8),
    "ends": time(18),
    "timezone": "Europe/Berlin",
    "weekdays": WORKDAYS,
    "min_instances": 2,
}


@pytest.mark.django_db
def test_windows_are_added_changed_and_removed_by_operators(pool: Pool) -> None:
    made = window_add(access=OPERATOR, pool=pool, changes=RUSH, reason="mornings")
    changed = window_update(
        access=OPERATOR, window=made, changes={"min_instances": 3}, version=made.version
    )
    assert changed.min_instances == 3
    with pytest.raises(VersionConflict):
        window_update(access=OPERATOR, window=made, changes={"weekdays": 1}, version=1)
    with pytest.raises(VersionConflict):
        window_remove(access=OPERATOR, window=made, version=1)
    assert [w.name for w in windows_list(access=VIEWER, pool="default")] == ["rush"]
    window_remove(access=OPERATOR, window=changed, version=changed.version)
    window_remove(access=OPERATOR, window=changed)
    assert not ScalingWindow.objects.exists()
    assert [a.action for a in AuditEntry.objects.order_by("pk")] == [
        "scaling_window_create",
        "scaling_window_update",
        "scaling_window_remove",
    ]
    with pytest.raises(NotAllowed):
        window_add(access=VIEWER, pool=pool, changes=RUSH)
    with pytest.raises(NotVisible):
        windows_list(access=Access("mallory"))


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"timezone": "Mars/Base"}, "timezone"),
        ({"timezone": "../etc/passwd"}, "timezone"),
        ({"timezone": ""}, "timezone"),
        ({"weekdays": 0}, "weekdays"),
        ({"weekdays": 128}, "weekdays"),
        ({"min_instances": 5}, "min_instances"),
        ({"min_instances": -1}, "min_instances"),
        ({"max_instances": 5}, "max_instances"),
        ({"max_instances": 1}, "max_instances"),
        ({"begins": "soon"}, "begins"),
        ({"name": ""}, "name"),
        ({"pool": 7}, "pool"),
    ],
)
def test_a_wrong_value_is_named(pool: Pool, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as refused:
        window_add(access=OPERATOR, pool=pool, changes=RUSH | changes)
    assert list(refused.value.message_dict) == [field]
    made = window_add(access=OPERATOR, pool=pool, changes=RUSH)
    with pytest.raises(ValidationError) as refused:
        window_update(access=OPERATOR, window=made, changes=changes)
    assert list(refused.value.message_dict) == [field]
    made.refresh_from_db()
    assert made.version == 1


@pytest.mark.django_db
def test_a_name_is_one_windows(pool: Pool) -> None:
    window_add(access=OPERATOR, pool=pool, changes=RUSH)
    with pytest.raises(ValidationError):
        window_add(access=OPERATOR, pool=pool, changes=RUSH)
