"""The SLO pages: how each stands, its charts and slow requests, and how the target is set."""

import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from controlplane.audit.models import AuditEntry
from controlplane.tenants.access import Role
from controlplane.tenants.models import Membership, Slo, Tenant
from controlplane.tenants.selectors import Target
from controlplane.tenants.services import slo_set
from controlplane.usage.models import SloMinutes
from controlplane.usage.sums import SloPoint, SloState
from engine_pool.types import PriorityClass
from tests.web.conftest import FakeWatch
from tests.web.ledger_rows import ROOT, record, tenant
from tests.web.reading import page, text_of
from web import slo_charts, slo_words

NOW = datetime(2026, 5, 31, 12, tzinfo=UTC)


@pytest.fixture
def acme(watch: FakeWatch, db: None) -> Tenant:
    return tenant("acme")


@pytest.fixture
def promised(acme: Tenant) -> Slo:
    return slo_set(
        access=ROOT, tenant=acme, priority_class="normal",
        changes={"ttft_ms": 1000.0, "tpot_ms": 60.0, "objective": 0.9, "window_days": 7},
    )  # fmt: skip


def hours(of: Tenant, requests: int, met: int, ago_h: int = 3) -> None:
    """Adds what the roll-ups keep of an hour: itself, and its part of the day."""
    at = timezone.now().replace(minute=0, second=0, microsecond=0) - timedelta(hours=ago_h)
    for length_s, begin in ((3600, at), (86_400, at.replace(hour=0))):
        row, _ = SloMinutes.objects.get_or_create(
            at=begin, length_s=length_s, tenant=of, priority_class="normal",
            defaults={"requests": 0, "met": 0, "ttft_missed": 0, "tpot_missed": 0, "failed": 0},
        )  # fmt: skip
        row.requests += requests
        row.met += met
        row.ttft_missed += requests - met
        row.save()


def member_of(of: Tenant, role: Role = Role.VIEWER) -> Client:
    user = User.objects.create_user(f"mia-{role.value}")
    Membership.objects.create(tenant=of, user=user, role=role.value)
    client = Client()
    client.force_login(user)
    return client


def state(**fields: object) -> SloState:
    values: dict[str, object] = {
        "tenant_id": 1,
        "tenant": "acme",
        "priority_class": PriorityClass.NORMAL,
        "target": Target(1000.0, None),
        "requests": 100,
        "met": 99,
        "attainment": 0.99,
        "budget_left": 0.5,
    }
    return SloState(**{**values, **fields})  # type: ignore[arg-type]


def test_the_table_tells_how_an_slo_stands(
    promised: Slo, acme: Tenant, operators_client: Client
) -> None:
    hours(acme, 200, 190)
    text = text_of(page(operators_client, "/slo/"))
    assert re.search(r"acme normal [\w ]+ TTFT 1\.0 s, TPOT 60 ms 90 % 95 % 50 % .* 200 7 d", text)


def test_too_few_requests_are_not_a_hundred_percent(
    promised: Slo, acme: Tenant, operators_client: Client
) -> None:
    hours(acme, 29, 29)
    text = text_of(page(operators_client, "/slo/"))
    assert "too few to say" in text
    assert "100 %" not in text
    detail = text_of(page(operators_client, "/slo/acme/normal/"))
    assert "29 requests that count in 7 days: too few to say." in detail


@pytest.mark.parametrize(
    ("burn", "other", "tone"),
    [
        pytest.param(None, 99.0, "", id="unknown"),
        pytest.param(6.0, 99.0, "", id="just-under-amber"),
        pytest.param(6.1, 0.0, "warn", id="amber"),
        pytest.param(20.0, 14.0, "warn", id="one-window-only"),
        pytest.param(20.0, None, "warn", id="other-unknown"),
        pytest.param(14.5, 14.5, "bad", id="both-windows"),
    ],
)
def test_burn_rates_are_coloured_by_both_windows(
    burn: float | None, other: float | None, tone: str
) -> None:
    assert slo_words.burn_tone(burn, other) == tone


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        pytest.param({"alert": "page"}, "Burns fast", id="page"),
        pytest.param({"budget_left": -0.1, "alert": "ticket"}, "Spent", id="spent"),
        pytest.param({"alert": "ticket"}, "Burns", id="ticket"),
        pytest.param({"attainment": None, "budget_left": None}, "Few", id="few"),
        pytest.param({}, "Kept", id="kept"),
    ],
)
def test_each_stands_in_a_word(fields: dict[str, object], word: str) -> None:
    assert slo_words.standing_of(state(**fields))[0] == word


def test_what_needs_somebody_stands_first() -> None:
    kept, spent, burning, few = (
        state(tenant="a"),
        state(tenant="b", budget_left=-1.0),
        state(tenant="c", alert="page"),
        state(tenant="d", attainment=None, budget_left=None),
    )
    assert slo_words.in_order([few, kept, spent, burning]) == [burning, spent, kept, few]
    assert slo_words.sentence([kept, burning]) == "c, normal: the budget burns too fast."


def test_a_member_sees_its_own_tenant_only(promised: Slo, acme: Tenant) -> None:
    other = tenant("other")
    slo_set(access=ROOT, tenant=other, priority_class="normal", changes={"ttft_ms": 5.0})
    hours(other, 100, 100)
    client = member_of(acme)
    html = page(client, "/slo/")
    assert "acme" in html
    assert "other" not in text_of(html).replace("another", "")
    assert client.get("/slo/other/normal/").status_code == 404
    assert client.get("/slo/acme/normal/").status_code == 200
    assert client.get("/slo/acme/urgent/").status_code == 404


def test_the_detail_has_charts_tables_and_the_slow_requests(
    promised: Slo, acme: Tenant, operators_client: Client
) -> None:
    hours(acme, 100, 98, ago_h=5)
    hours(acme, 100, 92, ago_h=3)
    slow = record(acme, ttft_ms=3000.0, queue_ms=2700.0, is_ttft_met=False, duration_ms=9000.0)
    fine = record(acme, is_tpot_met=True)
    html = page(operators_client, "/slo/acme/normal/")
    text = text_of(html)
    block = re.search(r'id="slo-data">(.*?)</script>', html)
    assert block is not None
    data = json.loads(block[1])
    assert data["objective"] == 0.9
    assert data["budget"]["left"][-1] < data["budget"]["left"][0] < 1.0
    assert sum(data["ttft"]["counts"]) == 2
    assert f'href="/requests/{slow.request_id}/"' in html
    assert fine.request_id not in html
    assert "TTFT 3.0 s of 1.0 s" in text
    assert "queue 2.7 s, prefill 300 ms, decode 5.6 s, moves 9 ms" in html
    assert html.count("As a table") >= 3


def test_the_target_is_set_by_operators_with_version_and_reason(
    promised: Slo, acme: Tenant, operators_client: Client
) -> None:
    sent = {
        "ttft_ms": "800", "tpot_ms": "", "objective": "99.9", "window_days": "14",
        "version": str(promised.version), "reason": "contract 114",
    }  # fmt: skip
    answer = operators_client.post("/slo/acme/normal/", sent)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/slo/acme/normal/")
    row = Slo.objects.get(pk=promised.pk)
    assert (row.ttft_ms, row.tpot_ms, row.objective, row.window_days) == (800.0, None, 0.999, 14)
    assert AuditEntry.objects.get(action="slo_update").reason == "contract 114"
    # The same once more is too late: somebody has changed it since.
    late = operators_client.post("/slo/acme/normal/", {**sent, "ttft_ms": "700"})
    assert late.status_code == 409
    assert "was changed meanwhile" in text_of(late.content.decode())


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        pytest.param({"ttft_ms": "soon"}, "is not a number", id="no-number"),
        pytest.param({"ttft_ms": "", "tpot_ms": ""}, "give a target", id="no-target"),
        pytest.param({"objective": "100"}, "less than or equal", id="objective"),
        pytest.param({"window_days": "0"}, "greater than or equal", id="window"),
        pytest.param({"window_days": ""}, "must not be empty", id="empty"),
    ],
)
def test_a_wrong_target_is_told_at_its_field(
    sent: dict[str, str], words: str, promised: Slo, acme: Tenant, operators_client: Client
) -> None:
    form = {"ttft_ms": "800", "tpot_ms": "60", "objective": "99", "window_days": "28"}
    answer = operators_client.post("/slo/acme/normal/", {**form, **sent})
    assert answer.status_code == 400
    html = answer.content.decode()
    assert re.search(rf'class="error" id="f-\w+-error">[^<]*{words}', html)
    # What was typed stays.
    for name, value in {**form, **sent}.items():
        assert re.search(rf'name="{name}" value="{re.escape(value)}"', html)


def test_members_do_not_set_targets(promised: Slo, acme: Tenant) -> None:
    client = member_of(acme, Role.OWNER)
    assert "Needs the operator role of the platform." in page(client, "/slo/acme/normal/")
    answer = client.post(
        "/slo/acme/normal/", {"ttft_ms": "1", "objective": "99", "window_days": "28"}
    )
    assert answer.status_code in (403, 404)
    assert Slo.objects.get(pk=promised.pk).ttft_ms == 1000.0


def test_everybody_without_an_own_target_has_a_page(acme: Tenant, operators_client: Client) -> None:
    sent = {"ttft_ms": "2000", "tpot_ms": "", "objective": "95", "window_days": "28"}
    assert operators_client.post("/slo/-/low/", sent).status_code == 303
    assert Slo.objects.get(tenant=None, priority_class="low").objective == 0.95
    assert "TTFT 2.0 s" in text_of(page(operators_client, "/slo/"))


def test_the_budget_falls_as_requests_miss() -> None:
    hours_of = {
        NOW: (50, 45), NOW + timedelta(hours=1): (50, 50), NOW + timedelta(hours=2): (100, 90),
    }  # fmt: skip
    budget = slo_charts.budget_over_time(0.9, hours_of)
    # 200 requests at 90 %: 20 may miss. 5, 5, 15 did.
    assert budget.left == [0.75, 0.75, 0.25]
    assert slo_charts.budget_over_time(0.9, {}).left == []


@given(
    values=st.lists(st.floats(0.01, 1e7), max_size=60),
    target=st.none() | st.floats(1.0, 1e6),
)
def test_every_time_stands_in_one_bar(values: list[float], target: float | None) -> None:
    bins = slo_charts.bins_of(values, target)
    assert sum(bins.counts) == bins.values == len(values)
    assert bins.edges_ms == sorted(bins.edges_ms)
    if target is not None:
        assert bins.over == sum(v > target for v in values)


def test_the_charts_words_tell_the_numbers() -> None:
    point = SloPoint(NOW, 40, 0.975)
    told = slo_charts.charts(
        state(series=(point,)),
        slo_charts.Budget([], []),
        slo_charts.bins_of([100.0, 200.0], 150.0),
        slo_charts.bins_of([], None),
    )
    words = {chart.key: chart.words for chart in told}
    assert words["attainment"].startswith("From 97.5 % to 97.5 %, last 97.5 %;")
    assert words["budget"] == "No request that counts in the window."
    assert "1 of 2 over the target of 150 ms" in words["ttft"]
    assert words["tpot"] == "No request with this time in the window."
