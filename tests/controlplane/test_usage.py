"""Usage is exact: whoever asks, whenever, and however the roll-up runs."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection, transaction
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.errors import NotVisible
from controlplane.gateway.models import RequestRecord
from controlplane.tenants.access import Access, Role
from controlplane.tenants.models import ApiKey
from controlplane.usage import selectors
from controlplane.usage.export import usage_csv
from controlplane.usage.models import SloMinutes, UsageDay, UsageHour
from controlplane.usage.retention import requests_forget, sums_forget
from controlplane.usage.rollups import SHORT_S, Totals, ceil, floor, total, usage_roll
from controlplane.usage.selectors import RequestFilters, month_cost, requests_list, usage_rows
from controlplane.usage.sums import GroupBy, UsageSum
from tests.controlplane.ledger import NOW, add, row, tenant

OPERATOR = Access("op", platform=Role.OPERATOR)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)

pytestmark = pytest.mark.django_db


def rows_by(
    group_by: GroupBy, access: Access = OPERATOR, tenants: list[int] | None = None
) -> list[UsageSum]:
    return usage_rows(
        access=access, tenants=tenants, since=NOW - 40 * DAY, until=NOW + DAY, group_by=group_by
    )


def facts() -> list[Any]:
    """All that is in the sums' tables."""
    hours = UsageHour.objects.order_by("tenant", "hour", "model", "priority_class", "key_id")
    minutes = SloMinutes.objects.order_by("tenant", "priority_class", "length_s", "at")
    days = UsageDay.objects.order_by("tenant", "day", "model", "priority_class", "key_id")
    return [*hours.values(), *days.values(), *minutes.values()]


def without_ids(found: list[Any]) -> list[Any]:
    return [{k: v for k, v in one.items() if k != "id"} for one in found]


def test_a_second_roll_up_changes_nothing() -> None:
    add(*[row(tenant(), NOW - n * timedelta(minutes=17), is_ttft_met=n % 3 > 0) for n in range(20)])
    assert usage_roll() == 20
    once = facts()
    assert usage_roll() == 0
    assert facts() == once


def test_late_rows_and_many_runs_give_the_same_sums_as_one_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("controlplane.usage.rollups.BATCH_ROWS", 7)
    alice, bob = tenant(), tenant("bob")
    made = [
        row(
            alice if n % 2 else bob,
            NOW - n * timedelta(minutes=11),
            model=f"m{n % 3}",
            key_id=n % 4,
            is_ttft_met=bool(n % 5),
            status="failed" if n % 10 == 0 else "completed",
        )
        for n in range(60)
    ]
    add(*made[::2])
    usage_roll(batches_max=2)
    # Of the same hours, and later.
    add(*made[1::2])
    while usage_roll():
        pass
    in_pieces = without_ids(facts())
    UsageHour.objects.all().delete()
    UsageDay.objects.all().delete()
    SloMinutes.objects.all().delete()
    RequestRecord.objects.update(is_rolled=False)
    monkeypatch.setattr("controlplane.usage.rollups.BATCH_ROWS", 1000)
    usage_roll()
    assert without_ids(facts()) == in_pieces


def test_a_roll_up_that_breaks_in_the_middle_counts_nothing_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add(*[row(tenant()) for _ in range(3)])

    def break_down(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr("controlplane.usage.rollups.RequestRecord.objects.filter", break_down)
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            usage_roll()
    usage_roll()
    assert UsageHour.objects.get().requests == 3


@pytest.mark.parametrize("group_by", ["hour", "day", "month", "model", "key", "class", "tenant"])
def test_sums_are_right_before_between_and_after_roll_ups(group_by: GroupBy) -> None:
    alice, bob = tenant(), tenant("bob")
    made = [
        row(
            alice if n % 3 else bob,
            NOW - n * timedelta(hours=9),
            model=f"m{n % 2}",
            key_id=n % 3,
            priority_class=("high", "low")[n % 2],
            is_partial=n % 4 == 0,
        )
        for n in range(40)
    ]
    add(*made[:25])
    before = rows_by(group_by)
    usage_roll()
    assert rows_by(group_by) == before
    add(*made[25:])
    between = rows_by(group_by)
    usage_roll()
    assert rows_by(group_by) == between
    assert sum(one.requests for one in between) == 40
    assert sum(one.partial for one in between) == 10
    assert sum(one.cost for one in between) == 40 * Decimal("0.00000125")
    assert sum(one.prompt_tokens for one in between) == 400


@given(
    st.lists(st.integers(0, 5 * 24 * 60), max_size=25, unique=True),
    st.integers(0, 5 * 24),
    st.integers(0, 5 * 24),
    st.integers(0, 25),
)
@settings(max_examples=20, deadline=None)
def test_a_time_counts_the_requests_that_ended_in_its_hours(
    minutes: list[int], first: int, hours: int, rolled: int
) -> None:
    begin = datetime(2026, 3, 1, tzinfo=UTC)
    since, until = begin + first * HOUR, begin + (first + hours) * HOUR
    with transaction.atomic():
        alice = tenant()
        made = [row(alice, begin + timedelta(minutes=m), output_tokens=m) for m in minutes]
        add(*made[:rolled])
        usage_roll()
        add(*made[rolled:])
        asked = {"access": OPERATOR, "tenants": None, "since": since, "until": until}
        groups: list[GroupBy] = ["hour", "day", "model", "tenant"]
        found = [sum(u.output_tokens for u in usage_rows(**asked, group_by=g)) for g in groups]
        transaction.set_rollback(True)
    there = [row.output_tokens for row in made if row.ended_at and since <= row.ended_at < until]
    assert found == [sum(there)] * 4


def test_times_come_in_their_order_and_the_rest_by_cost() -> None:
    alice = tenant()
    add(
        row(alice, NOW, model="dear", cost=Decimal(9)),
        row(alice, NOW - DAY, model="cheap", cost=Decimal(1)),
        row(alice, NOW - 20 * DAY, model="cheap", cost=Decimal(1)),
    )
    assert [one.group for one in rows_by("month")] == [
        "2026-02-01T00:00:00+00:00", "2026-03-01T00:00:00+00:00",
    ]  # fmt: skip
    assert [(one.group, one.requests) for one in rows_by("model")] == [("dear", 1), ("cheap", 2)]
    assert rows_by("day")[-1].at == datetime(2026, 3, 15, tzinfo=UTC)


def test_keys_and_tenants_have_their_names() -> None:
    alice = tenant()
    key = ApiKey.objects.create(tenant=alice, name="ci", public_id="abc", last4="wxyz")
    add(row(alice, key_id=key.pk), row(alice, key_id=0), row(alice, key_id=10**6))
    assert {one.group for one in rows_by("key")} == {"ci (sk-...wxyz)", "playground", "1000000"}
    assert [one.group for one in rows_by("tenant")] == ["alice"]


def test_a_month_costs_what_its_requests_cost_by_their_ends() -> None:
    alice, bob = tenant(), tenant("bob")
    first = datetime(2026, 3, 1, tzinfo=UTC)
    second = timedelta(seconds=1)
    add(
        row(alice, first, cost=Decimal("1.5")),
        row(alice, first - second, cost=Decimal("20")),
        row(alice, datetime(2026, 3, 31, 23, 59, 59, 999999, tzinfo=UTC), cost=Decimal("0.25")),
        row(alice, datetime(2026, 4, 1, tzinfo=UTC), cost=Decimal("300")),
        row(bob, NOW, cost=Decimal("4000")),
    )
    assert month_cost(tenant_id=alice.pk, at=NOW) == Decimal("1.75")
    usage_roll()
    assert month_cost(tenant_id=alice.pk, at=NOW) == Decimal("1.75")
    assert month_cost(tenant_id=alice.pk, at=datetime(2025, 12, 31, tzinfo=UTC)) == 0


def test_a_member_sees_the_own_tenant_s_usage_and_requests_alone() -> None:
    alice, bob = tenant(), tenant("bob")
    add(row(alice, request_id="a"), row(bob, request_id="b", client_request_id="mine"))
    member = Access("m", tenants={alice.pk: Role.VIEWER})
    nobody = Access("x")
    assert [one.group for one in rows_by("tenant", member)] == ["alice"]
    assert rows_by("tenant", member, [bob.pk]) == []
    assert rows_by("tenant", nobody) == []
    for filters in (RequestFilters(), RequestFilters(search="b"), RequestFilters(search="mine")):
        found = requests_list(access=member, filters=filters)
        assert {one.request_id for one in found} <= {"a"}
        assert not requests_list(access=nobody, filters=filters).exists()
    assert selectors.request_get(access=member, request_id="a").tenant == alice
    for access, request_id in ((member, "b"), (nobody, "a"), (member, "none")):
        with pytest.raises(NotVisible):
            selectors.request_get(access=access, request_id=request_id)


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        pytest.param(RequestFilters(), ["c", "b", "a"], id="newest first"),
        pytest.param(RequestFilters(status="failed"), ["b"], id="status"),
        pytest.param(RequestFilters(key_id=0), ["c"], id="playground"),
        pytest.param(RequestFilters(model="other"), ["b"], id="model"),
        pytest.param(RequestFilters(since=NOW - timedelta(minutes=3)), ["c"], id="since"),
        pytest.param(RequestFilters(until=NOW - timedelta(minutes=12)), ["a"], id="until"),
        pytest.param(RequestFilters(missed_only=True), ["a"], id="missed"),
        pytest.param(RequestFilters(search="a"), ["a"], id="our id"),
        pytest.param(RequestFilters(search="trace-7"), ["b"], id="the client's id"),
        pytest.param(RequestFilters(search="trace"), [], id="ids are whole"),
    ],
)
def test_a_list_shows_what_its_filters_say(filters: RequestFilters, found: list[str]) -> None:
    alice, minute = tenant(), timedelta(minutes=1)
    add(
        row(alice, NOW - 20 * minute, request_id="a", is_tpot_met=False, is_ttft_met=True),
        row(
            alice, NOW - 10 * minute, request_id="b", status="failed", model="other",
            client_request_id="trace-7",
        ),
        row(alice, NOW, request_id="c", key_id=0),
    )  # fmt: skip
    rows = requests_list(access=OPERATOR, filters=filters)
    assert [one.request_id for one in rows] == found


def test_what_is_forgotten_stays_in_the_sums_and_what_is_not_summed_stays() -> None:
    alice = tenant()
    add(row(alice, NOW - 40 * DAY, is_ttft_met=True), row(alice, NOW))
    assert requests_forget(before=NOW - 30 * DAY) == 0
    usage_roll()
    assert requests_forget(before=NOW - 30 * DAY) == 1
    assert sum(one.requests for one in rows_by("month")) == 2
    assert SloMinutes.objects.count() == 3
    sums_forget(now=NOW, kept_days=400)
    assert not SloMinutes.objects.filter(length_s=SHORT_S).exists()
    assert UsageHour.objects.count() == 2
    sums_forget(now=NOW, kept_days=39)
    assert UsageHour.objects.count() == UsageDay.objects.count() == 1


def test_csv_is_exact_and_harmless() -> None:
    lines = list(
        usage_csv(
            [
                UsageSum("=cmd()", requests=1, cost=Decimal("0.00000001")),
                UsageSum('a "b", c', cost=Decimal("1E+3")),
            ]
        )
    )
    assert lines == [
        "group,requests,failed,partial,prompt_tokens,cached_tokens,output_tokens,cost\r\n",
        "'=cmd(),1,0,0,0,0,0,0.00000001\r\n",
        '"a ""b"", c",0,0,0,0,0,0,1000\r\n',
    ]


@given(st.integers(0, 4_000_000_000_000))
def test_a_period_holds_its_moments(unix_ms: int) -> None:
    at = datetime.fromtimestamp(unix_ms / 1000, UTC)
    for length_s in (300, 3600):
        low, high = floor(at, length_s), ceil(at, length_s)
        assert low <= at <= high
        assert (high - low) in (timedelta(0), timedelta(seconds=length_s))
        assert floor(low, length_s) == low


@pytest.mark.django_db(transaction=True)
def test_two_workers_at_once_count_each_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.usage.rollups.BATCH_ROWS", 3)
    add(*[row(tenant(f"t{n % 5}"), NOW, is_ttft_met=True) for n in range(40)])
    rolled: list[int] = []
    start = threading.Barrier(3)

    def work() -> None:
        start.wait(timeout=30)
        try:
            while not rolled or rolled[-1]:
                rolled.append(usage_roll(batches_max=1))
        finally:
            connection.close()

    with ThreadPoolExecutor(3) as threads:
        for done in [threads.submit(work) for _ in range(3)]:
            done.result(timeout=180)
    assert sum(rolled) == 40
    assert [one.requests for one in UsageHour.objects.all()] == [8] * 5
    assert [one.met for one in SloMinutes.objects.all()] == [8] * 15


def test_totals_of_nothing_are_empty() -> None:
    assert total([]) == Totals()
