"""The audit: who sees which rows, filters, differences without secrets, the export."""

import csv
import re
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from controlplane.audit import export
from controlplane.audit.models import AuditEntry
from controlplane.audit.selectors import AuditFilters, audit_get, audit_list
from controlplane.audit.services import MASK, masked
from controlplane.errors import NotVisible
from controlplane.tenants.access import Access, Role
from controlplane.tenants.models import Membership, Tenant
from controlplane.tenants.services import tenant_update
from tests.web.conftest import FakeWatch
from tests.web.ledger_rows import ROOT, tenant
from tests.web.reading import page, text_of
from web.audit_words import differences

LEAKED = "5f4dcc3b5aa765d61d8327deb882cf99"


@pytest.fixture
def acme(watch: FakeWatch, db: None) -> Tenant:
    made = tenant("acme")
    tenant("other")
    AuditEntry.objects.all()._raw_delete(AuditEntry.objects.db)
    return made


def entry(**fields: object) -> AuditEntry:
    values = {"who": "olga", "action": "key_revoke", "object": "a key", "result": "done"}
    row = AuditEntry(**{**values, **fields})
    row.save()
    return row


def client_of(of: Tenant, role: Role) -> Client:
    user = User.objects.create_user(f"{role.value}-{of.slug}")
    Membership.objects.create(tenant=of, user=user, role=role.value)
    client = Client()
    client.force_login(user)
    return client


def rows_of(html: str) -> int:
    return html.count('<tr class="entry"')


def test_an_action_tells_who_what_why_and_the_difference(
    acme: Tenant, operators_client: Client
) -> None:
    tenant_update(access=ROOT, tenant=acme, changes={"concurrency": 4}, reason="they grow")
    text = text_of(page(operators_client, "/audit/"))
    assert re.search(r"root owner tenant update Acme acme they grow Done", text)
    assert "concurrency – 4" in text.replace("\N{EN DASH}", "–")  # noqa: RUF001
    assert f"{timezone.now():%Y-%m-%d}" in text


def test_secrets_are_masked_again_whoever_wrote_the_row(
    acme: Tenant, operators_client: Client
) -> None:
    AuditEntry.objects.bulk_create(
        [
            AuditEntry(
                who="x", action="old", object="o", result="done",
                before={"secret_digest": LEAKED}, after={"keys": [{"password": LEAKED}]},
            )
        ]
    )  # fmt: skip
    html = page(operators_client, "/audit/")
    assert LEAKED not in html
    assert MASK in html
    lines = operators_client.get("/audit/export.csv").getvalue().decode()
    assert LEAKED not in lines
    assert MASK in lines


def test_lists_inside_values_are_masked_too() -> None:
    assert masked({"rows": [{"password": "p", "name": "n"}]}) == {
        "rows": [{"password": MASK, "name": "n"}]
    }


def test_what_changed_stands_first_and_nothing_is_lost() -> None:
    found = differences(
        {"name": "a", "models": ["x"], "limit": None, "on": True},
        {"name": "a", "models": [], "limit": 3, "on": True, "new": {"a": 1}},
    )
    assert [(d.field, d.is_changed) for d in found] == [
        ("models", True), ("limit", True), ("new", True), ("name", False), ("on", False),
    ]  # fmt: skip
    assert found[0][1:] == ("x", "none")


def test_an_admin_of_a_tenant_sees_its_rows_only(acme: Tenant) -> None:
    entry(tenant="acme", object="ours")
    entry(tenant="other", object="theirs")
    entry(tenant="", object="the pool's")
    client = client_of(acme, Role.TENANT_ADMIN)
    html = page(client, "/audit/")
    assert rows_of(html) == 1
    assert "theirs" not in html
    assert "the pool" not in text_of(html)
    assert rows_of(page(client, "/audit/?tenant=other")) == 0
    text = client.get("/audit/export.csv?tenant=other").getvalue().decode()
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
def test_other_members_are_refused(role: Role, acme: Tenant) -> None:
    client = client_of(acme, role)
    for path in ("/audit/", "/audit/export.csv"):
        answer = client.get(path)
        assert answer.status_code == 403
        assert "Needs the tenant admin role." in answer.content.decode()


def test_the_selector_fails_closed(acme: Tenant) -> None:
    row = entry(tenant="acme")
    nobody = Access("x")
    viewer = Access("x", tenants={acme.pk: Role.VIEWER})
    for access in (nobody, viewer):
        assert not audit_list(access=access, filters=AuditFilters()).exists()
        with pytest.raises(NotVisible):
            audit_get(access=access, entry_id=row.pk)
    admin = Access("x", tenants={acme.pk: Role.TENANT_ADMIN})
    assert audit_get(access=admin, entry_id=row.pk) == row


@pytest.mark.parametrize(
    "query",
    ["who=ada", "action=key_rotate", "object=b+key", "tenant=acme", "result=refused",
     "since=2026-02-01", "until=2026-01-02T00:00", "q=too+many", "q=req-77", "q=http-9"],
)  # fmt: skip
def test_filters_find_one_row(query: str, acme: Tenant, operators_client: Client) -> None:
    at = datetime(2026, 1, 15, tzinfo=UTC)
    plain: dict[str, object] = {"at": at}
    if query.startswith("since"):
        wanted: dict[str, object] = {"at": at + timedelta(days=40)}
    elif query.startswith("until"):
        wanted = {"at": at - timedelta(days=14)}
    else:
        wanted = {
            "who": "ada", "action": "key_rotate", "object": "b key", "tenant": "acme",
            "result": "refused", "reason": "too many moves", "request_id": "req-771",
            "http_request_id": "http-91", "at": at,
        }  # fmt: skip
    entry(**plain)
    row = entry(**wanted)
    html = page(operators_client, f"/audit/?{query}")
    assert rows_of(html) == 1
    assert row.at.strftime("%Y-%m-%d") in html


@pytest.mark.parametrize(
    ("query", "field"),
    [("since=yesterday", "since"), ("until=2026-13-01", "until"), ("result=x", "result"),
     ("older=1", "older")],
)  # fmt: skip
def test_a_filter_that_makes_no_sense_is_named(
    query: str, field: str, acme: Tenant, operators_client: Client
) -> None:
    answer = operators_client.get(f"/audit/?{query}")
    assert answer.status_code == 400
    assert re.search(rf'role="alert">{field}: ', answer.content.decode())
    if field != "older":
        assert operators_client.get(f"/audit/export.csv?{query}").status_code == 400


def test_older_pages_go_on_where_the_last_one_ended(acme: Tenant, operators_client: Client) -> None:
    at = timezone.now()
    AuditEntry.objects.bulk_create(
        AuditEntry(who="w", action="a", object=f"o{i}", result="done", at=at) for i in range(60)
    )
    html = page(operators_client, "/audit/")
    assert "first 50 of 60" in text_of(html)
    older = re.search(r'class="older">.*?href="([^"]+)"', html, re.S)
    assert older is not None
    rest = page(operators_client, f"/audit/{older[1]}")
    seen = re.findall(r'title="(o\d+)"', html + rest)
    assert len(seen) == len(set(seen)) == 60


def test_the_export_has_the_filtered_rows_and_no_formulas(
    acme: Tenant, operators_client: Client
) -> None:
    entry(object="=HYPERLINK(1)", reason='a "quoted", reason')
    entry(action="other")
    answer = operators_client.get("/audit/export.csv?action=key_revoke")
    assert re.fullmatch(
        r'attachment; filename="audit-[\d-]+\.csv"', answer.headers["Content-Disposition"]
    )
    rows = list(csv.DictReader(answer.getvalue().decode().splitlines()))
    assert [(r["object"], r["reason"]) for r in rows] == [("'=HYPERLINK(1)", 'a "quoted", reason')]


def test_an_export_that_is_cut_says_so(acme: Tenant) -> None:
    for _ in range(3):
        entry()
    rows = audit_list(access=ROOT, filters=AuditFilters())
    assert len(list(export.audit_csv(rows, rows_max=3))) == 4
    cut = list(export.audit_csv(rows, rows_max=2))
    assert len(cut) == 4
    assert cut[-1].startswith('"cut after 2 rows') or cut[-1].startswith("cut after 2 rows")


def test_the_page_changes_nothing(acme: Tenant, operators_client: Client) -> None:
    assert operators_client.post("/audit/").status_code == 405
    assert '<form method="post"' not in page(operators_client, "/audit/").partition("<main")[2]
