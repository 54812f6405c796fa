"""The pages of requests: the list with its filters, one request in every state, and its cancel."""

import re
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.test import Client
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from controlplane.audit.models import AuditEntry
from controlplane.gateway.live_requests import Facts
from controlplane.gateway.models import RequestRecord
from controlplane.tenants.access import Role
from controlplane.tenants.models import Membership, Tenant
from engine_pool.errors import StoreUnavailable
from tests.web.conftest import FakeView, FakeWatch
from tests.web.ledger_rows import move, record, tenant
from tests.web.reading import page, text_of
from web.keyset import page_of


@pytest.fixture
def acme(watch: FakeWatch, db: None) -> Tenant:
    return tenant("acme")


@pytest.fixture
def other(acme: Tenant) -> Tenant:
    return tenant("other")


@pytest.fixture
def member(acme: Tenant) -> Client:
    """A viewer of acme."""
    user = User.objects.create_user("mia")
    Membership.objects.create(tenant=acme, user=user, role=Role.VIEWER.value)
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def owned(monkeypatch: pytest.MonkeyPatch) -> dict[str, Facts]:
    """What the store knows of the requests that run: engine id -> whose it is."""
    known: dict[str, Facts] = {}
    for module in ("web.request_live", "web.views.request_page"):
        monkeypatch.setattr(
            f"{module}.facts_of", lambda ids: {i: known[i] for i in ids if i in known}
        )
    return known


def facts(of: Tenant, age_s: float = 12.0) -> Facts:
    return Facts(of.pk, of.slug, "tiny", "default", "chat", "normal", time.time() - age_s)


def ids_of(html: str) -> list[str]:
    """Returns the requests that have ended, in the page's order."""
    ended = html[html.index("ended-title") :] if "ended-title" in html else ""
    return re.findall(r'/requests/(chatcmpl-[0-9a-f]+)/"', ended)


def test_the_list_tells_what_has_ended_newest_first(acme: Tenant, operators_client: Client) -> None:
    now = timezone.now()
    rows = [record(acme, arrived_at=now - timedelta(minutes=i)) for i in (3, 1, 2)]
    html = page(operators_client, "/requests/")
    assert ids_of(html) == [rows[1].request_id, rows[2].request_id, rows[0].request_id]
    text = text_of(html)
    assert "newest first, all 3" in text
    assert "i-01 → i-02 512 231 500 ms 24 ms 6.1 s missed TPOT 0.00012" in text.replace(
        "1200", "12"
    )


def test_a_member_sees_the_requests_of_its_tenants_only(
    acme: Tenant, other: Tenant, member: Client
) -> None:
    mine, foreign = record(acme), record(other)
    html = page(member, "/requests/")
    assert ids_of(html) == [mine.request_id]
    assert "other" not in html.lower().replace("another", "")
    assert member.get(f"/requests/{mine.request_id}/").status_code == 200
    assert member.get(f"/requests/{foreign.request_id}/").status_code == 404
    assert member.get(f"/requests/{foreign.request_id}/cancel/").status_code == 404
    assert member.get("/requests/?tenant=other").status_code == 400


@pytest.mark.parametrize(
    ("query", "fields"),
    [
        pytest.param("class=high", {"priority_class": "high"}, id="class"),
        pytest.param("model=big", {"model": "big"}, id="model"),
        pytest.param("status=failed", {"status": "failed"}, id="status"),
        pytest.param("slo=ttft", {"is_ttft_met": False}, id="first-token"),
        pytest.param("slo=tpot", {"is_ttft_met": True, "is_tpot_met": False}, id="tokens"),
        pytest.param("way=moved", {"migrations": 2}, id="moved"),
        pytest.param("way=replayed", {"replays": 1}, id="replayed"),
        pytest.param("q=my-own-id", {"client_request_id": "my-own-id"}, id="x-request-id"),
        pytest.param("instance=i-07", {"instance": "i-07", "instances": ["i-07"]}, id="instance"),
    ],
)
def test_filters_stand_in_the_address(
    query: str, fields: dict[str, object], acme: Tenant, operators_client: Client
) -> None:
    plain = {"is_tpot_met": None, "migrations": 0}
    record(acme, **plain)
    wanted = record(acme, **{**plain, **fields})
    html = page(operators_client, f"/requests/?{query}")
    assert ids_of(html) == [wanted.request_id]


def test_the_form_keeps_what_was_chosen(acme: Tenant, operators_client: Client) -> None:
    html = page(operators_client, "/requests/?slo=ttft&class=low&model=big&since=7d")
    for value in ("ttft", "low", "7d"):
        assert f'<option value="{value}" selected>' in html
    assert 'name="model" value="big"' in html
    assert "No request that has ended matches the filter" in text_of(html)
    assert ">Clear</a>" in html


def test_a_missed_target_is_found_whichever_it_is(acme: Tenant, operators_client: Client) -> None:
    record(acme, is_ttft_met=True, is_tpot_met=True)
    late, slow = record(acme, is_ttft_met=False, is_tpot_met=True), record(acme)
    assert set(ids_of(page(operators_client, "/requests/?slo=missed"))) == {
        late.request_id,
        slow.request_id,
    }


def test_old_requests_are_shown_when_they_are_asked_for(
    acme: Tenant, operators_client: Client
) -> None:
    old = record(acme, arrived_at=timezone.now() - timedelta(days=3))
    assert ids_of(page(operators_client, "/requests/")) == []
    assert ids_of(page(operators_client, "/requests/?since=7d")) == [old.request_id]
    # Whoever has an id need not know the day.
    assert ids_of(page(operators_client, f"/requests/?q={old.request_id}")) == [old.request_id]


@pytest.mark.parametrize(
    ("query", "field"),
    [("state=gone", "state"), ("since=1y", "since"), ("status=x", "status"), ("class=x", "class"),
     ("slo=x", "slo"), ("tenant=nobody", "tenant"), ("older=x", "older")],
)  # fmt: skip
def test_a_filter_that_makes_no_sense_is_named(
    query: str, field: str, acme: Tenant, operators_client: Client
) -> None:
    answer = operators_client.get(f"/requests/?{query}")
    assert answer.status_code == 400
    assert re.search(rf'role="alert">{field}: ', answer.content.decode())


def test_older_pages_show_each_request_once(acme: Tenant, operators_client: Client) -> None:
    now = timezone.now()
    same = now - timedelta(minutes=5)
    rows = [
        record(acme, save=False, arrived_at=same if i % 2 else now - timedelta(seconds=i))
        for i in range(120)
    ]
    RequestRecord.objects.bulk_create(rows)
    seen, url = [], "/requests/?since=1h"
    while url:
        html = page(operators_client, url)
        seen += ids_of(html)
        # One that comes meanwhile moves nothing.
        record(acme, arrived_at=timezone.now())
        older = re.search(r'class="older">.*?href="([^"]+)"', html, re.S)
        url = f"/requests/{older[1].replace('&amp;', '&')}" if older else ""
    assert sorted(seen) == sorted(row.request_id for row in rows)


def test_more_than_a_thousand_are_not_counted(acme: Tenant, operators_client: Client) -> None:
    rows = [record(acme, save=False) for _ in range(1002)]
    RequestRecord.objects.bulk_create(rows)
    assert "first 50 of more than 1,000" in text_of(page(operators_client, "/requests/"))


@given(cursor=st.text(max_size=40))
def test_no_cursor_breaks_the_list(cursor: str) -> None:
    rows = RequestRecord.objects.none()
    try:
        found = page_of(rows, "arrived_at", cursor, 5).rows
    except ValidationError:
        return
    assert found == []


def test_what_runs_now_is_shown_with_whose_it_is(
    pool: Callable[[int], FakeWatch],
    acme: Tenant,
    other: Tenant,
    owned: dict[str, Facts],
    operators_client: Client,
) -> None:
    pool(1)
    owned["i-01-r0"] = facts(acme)
    text = text_of(page(operators_client, "/requests/?state=running&tenant=acme"))
    assert "Now 1, the oldest first" in text
    assert re.search(r"i-01-r0 acme \w+ tiny Running i-01 .* 12 s", text)


def test_a_member_sees_what_runs_of_its_tenants_only(
    pool: Callable[[int], FakeWatch],
    acme: Tenant,
    other: Tenant,
    owned: dict[str, Facts],
    member: Client,
) -> None:
    pool(1)
    owned |= {"i-01-r0": facts(acme), "i-01-r1": facts(other)}
    html = page(member, "/requests/?state=running")
    # The others' records are missing, so nobody knows whose they are.
    assert re.findall(r"i-01-r\d+(?=/)", html) == ["i-01-r0"]
    assert page(member, "/requests/i-01-r0/").count("Running") >= 1
    assert member.get("/requests/i-01-r1/").status_code == 404
    assert member.get("/requests/i-01-r2/").status_code == 404


def test_without_the_store_a_member_is_told_so_and_sees_nothing(
    pool: Callable[[int], FakeWatch],
    member: Client,
    operators_client: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool(1)

    def away(ids: object) -> dict[str, Facts]:
        raise StoreUnavailable("The store does not answer.")

    monkeypatch.setattr("web.request_live.facts_of", away)
    monkeypatch.setattr("web.views.request_page.facts_of", away)
    text = text_of(page(member, "/requests/?state=running"))
    assert "The store does not answer. What runs now cannot be told." in text
    assert "i-01-r0" not in text
    assert "i-01-r0" in text_of(page(operators_client, "/requests/?state=running"))


def test_a_request_tells_where_its_time_went(acme: Tenant, operators_client: Client) -> None:
    row = record(acme)
    made = move(row)
    html = page(operators_client, f"/requests/{row.request_id}/")
    text = text_of(html)
    assert "Finished: 231 tokens in 6.1 s, 2 instances, moved once, waited 9 ms for it." in text
    assert "Queue 200 ms 3.3 % 20 % of the TTFT target" in text
    assert "To the first token 500 ms 8.2 % 500 ms of 1.0 s: met" in text
    assert "Decode 5.6 s 91.6 % 24 ms a token of 20 ms: missed" in text
    assert "Moves 9 ms 0.1 % the reader's waits" in text
    assert "Total 6.1 s 100 %" in text
    assert "Prompt and answer are not stored." in text
    assert f'href="/migrations/{made.migration_id}/"' in html


def test_a_member_gets_no_link_that_it_may_not_open(acme: Tenant, member: Client) -> None:
    row = record(acme)
    move(row)
    html = page(member, f"/requests/{row.request_id}/")
    assert "i-01 → i-02" in html
    assert "/migrations/" not in html
    assert "/instances/" not in html


def test_a_record_without_any_time_is_a_page_all_the_same(
    acme: Tenant, operators_client: Client
) -> None:
    row = RequestRecord.objects.create(
        request_id="chatcmpl-0", tenant=acme, endpoint="chat", priority_class="low",
        status="failed", error_code="no_instance", prompt_tokens=3, output_tokens=0,
        arrived_at=timezone.now(), duration_ms=0.0,
    )  # fmt: skip
    text = text_of(page(operators_client, f"/requests/{row.request_id}/"))
    assert "Failed after 0 ms: no instance; no token produced." in text


def test_one_that_runs_has_its_actions(
    pool: Callable[[int], FakeWatch],
    acme: Tenant,
    owned: dict[str, Facts],
    member: Client,
    operators_client: Client,
) -> None:
    pool(1)
    owned["i-01-r0"] = facts(acme)
    html = page(operators_client, "/requests/i-01-r0/")
    assert 'data-dialog href="/requests/i-01-r0/migrate/"' in html
    assert 'data-dialog href="/requests/i-01-r0/cancel/"' in html
    assert 'data-refresh="/requests/i-01-r0/"' in html
    seen = page(member, "/requests/i-01-r0/")
    assert "Needs the operator role" in seen
    assert "/cancel/" not in seen
    assert member.get("/requests/i-01-r0/cancel/").status_code == 403


def test_a_cancel_needs_a_reason_and_goes_to_the_service(
    pool: Callable[[int], FakeWatch],
    acme: Tenant,
    owned: dict[str, Facts],
    operators_client: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool(1)
    owned["i-01-r0"] = facts(acme)
    asked: list[tuple[str, str, str]] = []
    monkeypatch.setattr(
        "web.views.request_cancel.request_cancel",
        lambda *, access, request_id, reason: asked.append((access.who, request_id, reason)),
    )
    url = "/requests/i-01-r0/cancel/"
    assert "Its engines stop computing it" in page(operators_client, url)
    refused = operators_client.post(url, {"reason": " "})
    assert (refused.status_code, asked) == (400, [])
    answer = operators_client.post(url, {"reason": "a loop"})
    assert (answer.status_code, answer.headers["Location"]) == (303, "/requests/i-01-r0/")
    assert asked == [("olga", "i-01-r0", "a loop")]


def test_an_ended_request_cannot_be_cancelled(acme: Tenant, operators_client: Client) -> None:
    row = record(acme)
    url = f"/requests/{row.request_id}/cancel/"
    assert "It has ended already" in page(operators_client, url)
    answer = operators_client.post(url, {"reason": "x"})
    assert answer.status_code == 409
    assert AuditEntry.objects.get(action="cancel_request").result == "refused"


def test_nobody_gets_in_without_a_login(watch: FakeWatch, db: None) -> None:
    for path in ("/requests/", "/requests/now/", "/requests/x/", "/requests/x/cancel/"):
        assert Client().get(path).status_code == 302


def test_a_view_without_reports_is_empty(
    view: FakeView, operators_client: Client, acme: Tenant
) -> None:
    assert view.loads == {}
    assert "Nothing runs or waits now." in text_of(page(operators_client, "/requests/"))
