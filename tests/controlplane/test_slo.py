"""Attainment, error budget and burn rates, and who counts for them."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from controlplane.gateway.verdicts import verdicts
from controlplane.tenants.access import Access, Role
from controlplane.tenants.models import Slo, Tenant
from controlplane.tenants.selectors import NO_TARGET, Target
from controlplane.usage import slo
from controlplane.usage.rollups import usage_roll
from controlplane.usage.selectors import slo_report, slow_requests
from controlplane.usage.slo import Counted
from controlplane.usage.sums import SloState
from engine_pool.types import PriorityClass
from tests.controlplane.ledger import NOW, add, row, tenant

OPERATOR = Access("op", platform=Role.OPERATOR)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
BOTH = Target(ttft_ms=500, tpot_ms=50)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        pytest.param({}, (True, True), id="both kept"),
        pytest.param({"ttft_ms": 500.0}, (True, True), id="a target is kept at its very value"),
        pytest.param({"ttft_ms": 500.1}, (False, True), id="ttft missed"),
        pytest.param({"tpot_ms": 51.0}, (True, False), id="tpot missed"),
        pytest.param({"tpot_ms": None}, (True, None), id="one token has no tpot"),
        pytest.param({"target": NO_TARGET}, (None, None), id="nothing promised"),
        pytest.param({"target": Target(tpot_ms=9)}, (None, False), id="one target"),
        pytest.param(
            {"status": "cancelled", "ttft_ms": None, "tpot_ms": None},
            (None, None),
            id="cancelled before its first token",
        ),
        pytest.param(
            {"status": "cancelled", "ttft_ms": 900.0, "tpot_ms": None},
            (False, None),
            id="cancelled after it",
        ),
        pytest.param({"status": "failed"}, (False, False), id="failed by our fault"),
        pytest.param(
            {"status": "failed", "target": Target(ttft_ms=500)},
            (False, None),
            id="failed after a first token in time",
        ),
        pytest.param(
            {"status": "failed", "target": NO_TARGET}, (None, None), id="failed without a promise"
        ),
        pytest.param(
            {"status": "failed", "is_our_fault": False}, (None, None), id="the client's fault"
        ),
    ],
)
def test_a_request_is_judged_by_what_it_was_promised(
    facts: dict[str, Any], expected: tuple[bool | None, bool | None]
) -> None:
    plain = {
        "status": "completed", "is_our_fault": True, "target": BOTH, "ttft_ms": 100.0,
        "tpot_ms": 20.0,
    }  # fmt: skip
    assert verdicts(**(plain | facts)) == expected


@pytest.mark.parametrize("count", range(slo.REQUESTS_MIN))
def test_too_few_requests_say_nothing(count: int) -> None:
    counted = Counted(count, 0)
    assert slo.attainment(counted) is None
    assert slo.budget_left(counted, 0.99) is None
    assert slo.burn_rate(counted, 0.99) is None


@pytest.mark.parametrize(
    ("missed", "attained", "left", "burn"),
    [
        pytest.param(0, 1.0, 1.0, 0.0, id="nothing missed"),
        pytest.param(5, 0.995, 0.5, 0.5, id="half the budget"),
        pytest.param(10, 0.99, 0.0, 1.0, id="all of it"),
        pytest.param(144, 0.856, -13.4, 14.4, id="overspent"),
    ],
)
def test_the_workbook_s_formulas(missed: int, attained: float, left: float, burn: float) -> None:
    counted = Counted(1000, missed)
    assert slo.attainment(counted) == pytest.approx(attained)
    assert slo.budget_left(counted, 0.99) == pytest.approx(left)
    assert slo.burn_rate(counted, 0.99) == pytest.approx(burn)


@given(
    st.integers(slo.REQUESTS_MIN, 10**9).flatmap(
        lambda n: st.tuples(st.just(n), st.integers(0, n))
    ),
    st.floats(0.5, 0.9999),
)
def test_the_budget_that_is_left_and_the_burn_rate_are_one_figure(
    found: tuple[int, int], objective: float
) -> None:
    counted = Counted(*found)
    left, burn = slo.budget_left(counted, objective), slo.burn_rate(counted, objective)
    attained = slo.attainment(counted)
    assert None not in (left, burn, attained)
    assert left == pytest.approx(1 - (burn or 0))
    assert 0 <= (attained or 0) <= 1


@pytest.mark.parametrize(
    ("burns", "expected"),
    [
        pytest.param({"1h": 15, "5m": 15}, "page", id="fast burn"),
        pytest.param({"1h": 15, "5m": 0}, "", id="a fast burn that is over"),
        pytest.param({"1h": 15, "5m": None}, "", id="nothing to say of the last minutes"),
        pytest.param({"6h": 7, "30m": 7}, "page", id="slower burn"),
        pytest.param({"3d": 1.5, "6h": 1.5}, "ticket", id="slow burn"),
        pytest.param({"3d": 0.9, "6h": 5}, "", id="within the budget"),
    ],
)
def test_alerts_need_a_long_and_a_short_time(burns: dict[str, float], expected: str) -> None:
    assert slo.alert(burns, 30) == expected


def test_thresholds_are_the_workbook_s_for_thirty_days() -> None:
    found = [slo.threshold(rule, 30) for rule in slo.ALERT_RULES]
    assert found == pytest.approx([14.4, 6, 1])
    assert slo.threshold(slo.ALERT_RULES[0], 7) == pytest.approx(3.36)


def promise(of: Tenant | None = None, **fields: Any) -> None:
    values = {"priority_class": "normal", "ttft_ms": 500, "tpot_ms": 50, "objective": 0.9}
    Slo.objects.create(tenant=of, **(values | fields))


def requests(of: Tenant, count: int, missed: int, ago: timedelta, **fields: Any) -> None:
    add(*[
        row(of, NOW - ago, is_ttft_met=n >= missed, is_tpot_met=True, **fields)
        for n in range(count)
    ])  # fmt: skip


def one(**more: Any) -> SloState:
    (state,) = slo_report(access=OPERATOR, now=NOW, **more)
    return state


@pytest.mark.django_db
def test_a_report_is_the_same_before_and_after_the_roll_up() -> None:
    alice = tenant()
    promise(alice)
    requests(alice, 40, 2, 2 * MINUTE)
    requests(alice, 50, 10, 40 * MINUTE)
    requests(alice, 60, 3, 4 * HOUR)
    requests(alice, 100, 20, 10 * DAY)
    requests(alice, 100, 100, 29 * DAY)
    add(row(alice, NOW, status="failed", is_ttft_met=False, is_tpot_met=False))
    before = one()
    usage_roll()
    assert one() == before
    assert (before.requests, before.met, before.failed) == (251, 215, 1)
    assert (before.ttft_missed, before.tpot_missed) == (35, 0)
    assert before.attainment == pytest.approx(215 / 251)
    assert before.budget_left == pytest.approx(1 - 36 / (0.1 * 251))
    assert before.burn_5m == pytest.approx(3 / 41 / 0.1)
    assert before.burn_1h == pytest.approx(13 / 91 / 0.1)
    assert before.burn_6h == pytest.approx(16 / 151 / 0.1)
    assert before.burn_3d == before.burn_6h
    assert [point.requests for point in before.series] == [100, 151]
    assert before.target == Target(500, 50)


@pytest.mark.django_db
def test_a_tenant_s_own_slo_comes_before_everybody_s() -> None:
    alice, bob = tenant(), tenant("bob")
    promise(None, objective=0.95, window_days=7)
    promise(alice, objective=0.99)
    requests(alice, 30, 0, MINUTE)
    found = {state.tenant: state for state in slo_report(access=OPERATOR, now=NOW)}
    assert (found["alice"].objective, found["alice"].attainment) == (0.99, 1.0)
    assert (found["bob"].objective, found["bob"].window_days) == (0.95, 7)
    assert (found["bob"].requests, found["bob"].attainment, found["bob"].budget_left) == (
        0, None, None,
    )  # fmt: skip
    member = Access("m", tenants={bob.pk: Role.VIEWER})
    assert [s.tenant for s in slo_report(access=member, now=NOW)] == ["bob"]
    assert slo_report(access=member, now=NOW, tenant_id=alice.pk) == []
    assert slo_report(access=Access("x"), now=NOW) == []


@pytest.mark.django_db
def test_targets_by_header_alone_make_a_state_too() -> None:
    requests(tenant(), 31, 1, MINUTE, priority_class="high")
    state = one()
    assert (state.priority_class, state.target) == (PriorityClass.HIGH, NO_TARGET)
    assert state.attainment == pytest.approx(30 / 31)


@pytest.mark.django_db
def test_a_fast_burn_pages() -> None:
    alice = tenant()
    promise(alice, objective=0.99)
    requests(alice, 60, 15, MINUTE)
    assert one().alert == "page"


@pytest.mark.django_db
def test_slow_requests_are_the_missed_ones_with_where_their_time_went() -> None:
    alice, bob = tenant(), tenant("bob")
    slow = {"is_ttft_met": False, "queue_ms": 900.0, "prefill_ms": 50.0}
    add(
        row(alice, NOW, request_id="new", **slow),
        row(alice, NOW - HOUR, request_id="old", **slow),
        row(alice, NOW, request_id="other", priority_class="high", **slow),
        row(alice, NOW, request_id="good", is_ttft_met=True),
        row(bob, NOW, request_id="bob's", **slow),
    )
    member = Access("m", tenants={alice.pk: Role.VIEWER})

    def ids(access: Access = member, **more: Any) -> list[str]:
        asked = {"tenant_id": None, "priority_class": PriorityClass.NORMAL, "limit": 10}
        asked |= {"since": NOW - DAY}
        return [r.request_id for r in slow_requests(access=access, **(asked | more))]

    assert ids() == ["new", "old"]
    assert ids(limit=1) == ["new"]
    assert ids(since=NOW - MINUTE) == ["new"]
    assert ids(tenant_id=bob.pk) == []
    assert len(ids(OPERATOR, priority_class=None)) == 4


@pytest.mark.django_db
def test_the_report_asks_few_questions_however_many_tenants_there_are() -> None:
    promise(None)
    for number in range(12):
        requests(tenant(f"t{number}"), 2, 0, MINUTE)
    with CaptureQueriesContext(
        connection,
    ) as asked:
        assert len(slo_report(access=OPERATOR, now=NOW)) == 12
    assert len(asked) <= 4
