"""The admin is one more door to the services: roles, versions and the audit hold there, too."""

from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from controlplane.admin_base import ROWS_MAX, CappedPaginator, HistoryAdmin
from controlplane.audit.models import AuditEntry
from controlplane.fleet.models import Pool
from controlplane.gateway.models import RequestRecord
from controlplane.tenants.access import Access, Role
from controlplane.tenants.models import ApiKey, ClassSettings, Membership, Slo, Tenant
from controlplane.tenants.services import key_create
from controlplane.usage.models import ModelPrice
from tests.web.conftest import plain_static_files

__all__ = ["plain_static_files"]

pytestmark = pytest.mark.django_db

BOSS = Access("boss", platform=Role.OWNER)
NOT_SHOWN = {"admin.logentry", "auth.permission", "axes.accessattemptexpiration",
             "axes.accessfailurelog", "contenttypes.contenttype", "sessions.session"}  # fmt: skip
"""Django's own rows, which say nothing here, and sessions, which are secrets."""


@pytest.fixture
def owner() -> Client:
    return client_of("olivia", is_staff=True, is_superuser=True)


@pytest.fixture
def operator() -> Client:
    return client_of("olga", is_staff=True)


@pytest.fixture
def acme() -> Tenant:
    return Tenant.objects.create(name="Acme", slug="acme")


def client_of(name: str, **flags: bool) -> Client:
    client = Client()
    client.force_login(User.objects.create_user(name, password="x", **flags))
    return client


def page(kind: type, action: str = "changelist", *args: object) -> str:
    return reverse(f"admin:{kind._meta.label_lower.replace('.', '_')}_{action}", args=args)


def form_of(client: Client, url: str, **typed: Any) -> dict[str, Any]:
    """Returns what a browser would send: the form as it is shown, and what is typed into it."""
    form = client.get(url).context["adminform"].form
    shown = {name: form.get_initial_for_field(field, name) for name, field in form.fields.items()}
    shown = {n: form.fields[n].prepare_value(v) for n, v in shown.items() if v is not None}
    return {n: v for n, v in {**shown, **typed}.items() if v is not None and v is not False}


def said(answer: Any) -> str:
    return " ".join(str(message) for message in answer.context["messages"])


def test_every_model_has_its_page_with_search_or_filters() -> None:
    models = {model._meta.label_lower for model in apps.get_models()}
    shown = {model._meta.label_lower for model in admin.site._registry}
    assert models - shown == NOT_SHOWN
    for model, model_admin in admin.site._registry.items():
        assert model_admin.search_fields or model_admin.list_filter or model is ClassSettings, model
        assert model_admin.paginator is CappedPaginator, model
        assert not model_admin.show_full_result_count, model


def test_every_list_and_form_opens(owner: Client, acme: Tenant) -> None:
    for model, model_admin in admin.site._registry.items():
        assert owner.get(page(model)).status_code == 200, model
        assert owner.get(page(model), {"q": "x"}).status_code == 200, model
        is_history = isinstance(model_admin, HistoryAdmin)
        if not is_history and model is not ClassSettings:
            assert owner.get(page(model, "add")).status_code == 200, model
    for row in (acme, ClassSettings.objects.first(), User.objects.first()):
        assert owner.get(page(type(row), "change", row.pk)).status_code == 200


@pytest.mark.parametrize("flags", [{}, {"is_superuser": True}], ids=["member", "owner, not staff"])
def test_who_is_no_staff_has_no_admin(flags: dict[str, bool], acme: Tenant) -> None:
    person = client_of("mia", **flags)
    assert person.get(page(Tenant)).status_code == 302
    assert person.get(page(Tenant, "change", acme.pk)).status_code == 302


def test_a_tenant_is_made_and_changed_through_the_services(operator: Client) -> None:
    url = page(Tenant, "add")
    made = form_of(operator, url, name="Acme", slug="acme", allowed_models="a\n b ", reason="new")
    assert operator.post(url, made).status_code == 302
    tenant = Tenant.objects.get(slug="acme")
    assert tenant.allowed_models == ["a", "b"]
    url = page(Tenant, "change", tenant.pk)
    changed = form_of(operator, url, concurrency="7", reason="a bigger plan")
    assert operator.post(url, changed).status_code == 302
    tenant.refresh_from_db()
    assert (tenant.concurrency, tenant.version) == (7, 2)
    create, update = AuditEntry.objects.filter(tenant="acme").order_by("id")
    assert (create.action, create.who, create.reason) == ("tenant_create", "olga", "new")
    assert (update.before, update.after) == ({"concurrency": None}, {"concurrency": 7})
    assert update.reason == "a bigger plan"


def test_a_form_that_was_opened_before_somebody_elses_change_is_refused(
    operator: Client, acme: Tenant
) -> None:
    url = page(Tenant, "change", acme.pk)
    old = form_of(operator, url, weight="3")
    operator.post(url, form_of(operator, url, weight="2"))
    answer = operator.post(url, old)
    assert answer.status_code == 200
    assert "was changed meanwhile" in answer.content.decode()
    acme.refresh_from_db()
    assert acme.weight == 2


def test_what_a_service_refuses_comes_back_with_the_form(operator: Client, acme: Tenant) -> None:
    url = page(Tenant, "change", acme.pk)
    answer = operator.post(url, form_of(operator, url, highest_class="low", name="Acme Ltd"))
    assert answer.status_code == 200
    assert "must not be above the highest class" in answer.content.decode()
    assert "Acme Ltd" in answer.content.decode(), "what was typed is still there"


OWNERS_PAGES = [
    pytest.param(User, "add", id="account"),
    pytest.param(ModelPrice, "add", id="price"),
    pytest.param(Pool, "add", id="pool"),
]


@pytest.mark.parametrize(("kind", "action"), OWNERS_PAGES)
def test_an_operator_cannot_do_what_is_an_owners(operator: Client, kind: type, action: str) -> None:
    assert operator.get(page(kind)).status_code == 200
    assert operator.get(page(kind, action)).status_code == 403
    assert operator.post(page(kind, action), {"username": "eve"}).status_code == 403


def test_an_operator_does_not_make_himself_an_owner(operator: Client) -> None:
    olga = User.objects.get(username="olga")
    url = page(User, "change", olga.pk)
    assert b"new_password" not in operator.get(url).content
    assert operator.post(url, {"role": "owner", "is_active": "on"}).status_code == 403
    action = {"action": "close", "_selected_action": [olga.pk], "confirmed": "yes"}
    operator.post(page(User), action)
    olga.refresh_from_db()
    assert (olga.is_superuser, olga.is_active) == (False, True)


def test_an_operator_does_not_make_an_owner_of_a_tenant(operator: Client, acme: Tenant) -> None:
    olga = User.objects.get(username="olga")
    url = page(Membership, "add")
    fields = {"tenant": acme.pk, "user": olga.pk, "role": "owner"}
    answer = operator.post(url, fields)
    assert answer.status_code == 200
    assert "Needs the owner role" in answer.content.decode()
    assert not Membership.objects.exists()


def test_an_operator_sets_a_pools_size_but_not_its_model(operator: Client) -> None:
    pool = Pool.objects.create(name="extra", served_model_name="m", is_enabled=False)
    url = page(Pool, "change", pool.pk)
    form = operator.get(url).context["adminform"].form
    assert "instances" in form.fields
    assert not {"model", "served_model_name", "engine_settings", "name"} & set(form.fields)
    assert operator.post(page(Pool, "delete", pool.pk), {"post": "yes"}).status_code == 403


def test_accounts_are_made_changed_and_closed_by_owners(owner: Client) -> None:
    url = page(User, "add")
    typed = {"username": "nina", "role": "viewer", "new_password": "short", "is_active": "on"}
    weak = owner.post(url, form_of(owner, url, **typed))
    assert "too short" in weak.content.decode()
    typed["new_password"] = "a-long-enough-phrase"
    assert owner.post(url, form_of(owner, url, **typed)).status_code == 302
    nina = User.objects.get(username="nina")
    assert nina.check_password("a-long-enough-phrase")
    assert [group.name for group in nina.groups.all()] == ["viewers"]
    url = page(User, "change", nina.pk)
    assert owner.post(url, form_of(owner, url, role="operator")).status_code == 302
    nina.refresh_from_db()
    assert (nina.is_staff, nina.is_superuser, nina.groups.count()) == (True, False, 0)
    entries = list(AuditEntry.objects.filter(object="nina").order_by("id"))
    assert [entry.action for entry in entries] == ["user_create", "user_update"]
    assert entries[1].before is not None
    assert (entries[1].before["role"], entries[1].after["role"]) == ("viewer", "operator")


def test_the_last_owner_stays(owner: Client) -> None:
    olivia = User.objects.get(username="olivia")
    action = {"action": "close", "_selected_action": [olivia.pk], "confirmed": "yes"}
    answer = owner.post(page(User), action, follow=True)
    assert "last owner" in said(answer)
    url = page(User, "change", olivia.pk)
    assert "last owner" in owner.post(url, form_of(owner, url, role="")).content.decode()
    olivia.refresh_from_db()
    assert olivia.is_superuser
    assert olivia.is_active


def test_a_key_is_shown_once_and_its_digest_never(operator: Client, acme: Tenant) -> None:
    url = page(ApiKey, "add")
    typed = {"tenant": acme.pk, "name": "ci", "allowed_networks": "10.0.0.0/8"}
    answer = operator.post(url, form_of(operator, url, **typed), follow=True)
    text = said(answer).rpartition("again: ")[2].split()[0]
    key = ApiKey.objects.get()
    assert text.startswith(f"sk-{key.public_id}-")
    assert key.allowed_networks == ["10.0.0.0/8"]
    for where in (page(ApiKey), page(ApiKey, "change", key.pk), page(ApiKey, "history", key.pk)):
        shown = operator.get(where).content.decode()
        assert text not in shown
        assert key.secret_digest not in shown


def test_saving_a_key_unchanged_changes_nothing(operator: Client, acme: Tenant) -> None:
    key, _ = key_create(access=BOSS, tenant=acme, name="ci")
    url = page(ApiKey, "change", key.pk)
    assert operator.post(url, form_of(operator, url)).status_code == 302
    key.refresh_from_db()
    assert key.version == 1


def test_revoking_asks_first_then_ends_the_key_with_a_reason(
    operator: Client, acme: Tenant
) -> None:
    key, _ = key_create(access=BOSS, tenant=acme, name="ci")
    wish = {"action": "revoke", "_selected_action": [key.pk]}
    asked = operator.post(page(ApiKey), wish)
    assert b"will stop working" in asked.content
    key.refresh_from_db()
    assert key.revoked_at is None
    operator.post(page(ApiKey), {**wish, "confirmed": "yes", "reason": "leaked"})
    key.refresh_from_db()
    assert key.revoked_at is not None
    assert AuditEntry.objects.get(action="key_revoke").reason == "leaked"


def test_blocking_is_all_or_nothing(operator: Client, acme: Tenant) -> None:
    other = Tenant.objects.create(name="Other", slug="other")
    wish = {"action": "block", "_selected_action": [acme.pk, other.pk], "confirmed": "yes"}
    operator.post(page(Tenant), wish)
    assert {t.state for t in Tenant.objects.all()} == {"blocked"}
    operator.post(page(Tenant), {**wish, "action": "unblock"})
    assert {t.state for t in Tenant.objects.all()} == {"active"}
    assert AuditEntry.objects.filter(action="tenant_state").count() == 4


def test_the_history_of_a_key_follows_it_over_names_and_secrets(
    operator: Client, acme: Tenant
) -> None:
    key, _ = key_create(access=BOSS, tenant=acme, name="ci")
    key_create(access=BOSS, tenant=acme, name="another")
    url = page(ApiKey, "change", key.pk)
    operator.post(url, form_of(operator, url, name="ci-2", reason="renamed"))
    rotate = {"action": "rotate", "_selected_action": [key.pk], "confirmed": "yes"}
    operator.post(page(ApiKey), rotate)
    answer = operator.get(page(ApiKey, "history", key.pk))
    actions = [entry.action for entry, _ in answer.context["changes"]]
    assert actions == ["key_rotate", "key_update", "key_create"]
    shown = answer.content.decode()
    assert "renamed" in shown
    assert "ci-2" in shown


def test_an_slo_is_deleted_with_a_row_in_the_audit(operator: Client, acme: Tenant) -> None:
    slo = Slo.objects.create(tenant=acme, priority_class="high", ttft_ms=100)
    assert operator.post(page(Slo, "delete", slo.pk), {"post": "yes"}).status_code == 302
    assert AuditEntry.objects.get(action="slo_remove").before["ttft_ms"] == 100.0


@pytest.mark.parametrize("kind", [AuditEntry, RequestRecord])
def test_history_is_not_edited(owner: Client, kind: type, acme: Tenant) -> None:
    assert owner.get(page(kind, "add")).status_code == 403
    entry = AuditEntry.objects.create(who="x", action="y", object="z", result="done")
    for action in ("change", "delete"):
        assert owner.post(page(AuditEntry, action, entry.pk), {"post": "yes"}).status_code == 403
    wish = {"action": "delete_selected", "_selected_action": [entry.pk], "post": "yes"}
    owner.post(page(AuditEntry), wish)
    assert AuditEntry.objects.filter(pk=entry.pk).exists()


def test_the_list_of_requests_counts_no_further_than_it_pages(
    operator: Client, acme: Tenant
) -> None:
    now = timezone.now()
    RequestRecord.objects.bulk_create(
        RequestRecord(
            request_id=f"r{n}", tenant=acme, endpoint="chat", priority_class="normal",
            status="completed", prompt_tokens=1, output_tokens=1, arrived_at=now, duration_ms=1.0,
        )
        for n in range(60)
    )  # fmt: skip
    with CaptureQueriesContext(
        connection,
    ) as queries:
        assert operator.get(page(RequestRecord)).status_code == 200
    about = [q["sql"] for q in queries if "gateway_requestrecord" in q["sql"]]
    assert about
    assert all("LIMIT" in sql for sql in about)
    assert len(about) <= 3


def test_a_paginator_stops_counting() -> None:
    assert CappedPaginator(range(10**9), 50).count == ROWS_MAX
    assert CappedPaginator([1, 2], 50).count == 2
