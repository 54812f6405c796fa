"""The tenants' pages: what they show, and what their forms change."""

import re
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from redis.exceptions import RedisError

from controlplane.admission.usage_now import LimitUse, Use
from controlplane.audit.models import AuditEntry
from controlplane.tenants.access import Access, Role
from controlplane.tenants.models import ApiKey, Membership, Slo, Tenant
from controlplane.tenants.services import key_create, slo_set, tenant_create, tenant_update
from tests.web.conftest import FakeWatch

ROOT = Access("root", platform=Role.OWNER)
TABS = ("", "keys/", "limits/", "slo/", "usage/", "members/")

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme(watch: FakeWatch) -> Tenant:
    return tenant_create(access=ROOT, name="Acme <b>", slug="acme", tokens_per_minute=10_000)


@pytest.fixture
def key(acme: Tenant) -> ApiKey:
    return key_create(access=ROOT, tenant=acme, name="Batch job")[0]


def secret_in(html: str) -> str:
    found = re.search(r'id="secret" value="([^"]+)"', html)
    assert found, "no secret in the answer"
    return found[1]


def once_in(html: str) -> str:
    found = re.search(r'name="once" value="([^"]+)"', html)
    assert found, "the form has no id"
    return found[1]


@pytest.mark.parametrize("tab", TABS)
def test_every_page_of_a_tenant_works_without_the_store(
    tab: str, acme: Tenant, key: ApiKey, operators_client: Client
) -> None:
    answer = operators_client.get(f"/tenants/acme/{tab}")
    html = answer.content.decode()
    assert answer.status_code == 200
    assert "Acme &lt;b&gt;" in html
    assert answer.headers["Cache-Control"] == "no-store"
    assert " style=" not in html
    assert " onclick=" not in html


def test_limits_show_what_is_used_and_what_is_reserved(
    acme: Tenant, operators_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = Use(Decimal(0), Decimal(0), None, None)
    tokens = Use(Decimal(3000), Decimal(5500), Decimal(10_000), None)
    found = LimitUse(none, tokens, none, none, timezone.now())
    monkeypatch.setattr("web.tenant_use.usage_now", lambda tenant_id: found)
    html = operators_client.get("/tenants/acme/").content.decode()
    assert "8,500 of 10,000" in html
    assert "3,000 used, 5,500 reserved" in html
    assert '<rect class="reserved" x="30.0%" width="55.0%"' in html
    listed = operators_client.get("/tenants/").content.decode()
    assert '<span class="words" data-tone="warn">8,500 of 10,000</span>' in listed


def test_a_store_that_is_away_makes_dashes_and_is_asked_once(
    acme: Tenant, operators_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def away(tenant_id: int) -> LimitUse:
        asked.append(tenant_id)
        raise RedisError("away")

    monkeypatch.setattr("web.tenant_use.usage_now", away)
    tenant_create(access=ROOT, name="Beta", slug="beta")
    assert operators_client.get("/tenants/").status_code == 200
    assert len(asked) == 1
    html = operators_client.get("/tenants/acme/").content.decode()
    assert "not reported: the store does not answer" in html


def test_the_list_is_searched_and_sorted_by_its_address(
    acme: Tenant, operators_client: Client
) -> None:
    tenant_create(access=ROOT, name="Beta", slug="beta")
    html = operators_client.get("/tenants/?q=bet&sort=budget").content.decode()
    assert 'href="/tenants/beta/"' in html
    assert 'href="/tenants/acme/"' not in html
    assert "No tenant matches" in operators_client.get("/tenants/?q=zzz").content.decode()


def test_a_tenant_is_created_and_its_form_keeps_wrong_values(
    watch: FakeWatch, operators_client: Client
) -> None:
    sent = {
        "name": "Team Blue", "slug": "team-blue", "default_class": "high",
        "highest_class": "normal", "weight": "1",
    }  # fmt: skip
    wrong = operators_client.post("/tenants/~new/", sent)
    assert wrong.status_code == 400
    assert 'value="Team Blue"' in wrong.content.decode()
    assert "Must not be above the highest class." in wrong.content.decode()
    right = operators_client.post("/tenants/~new/", {**sent, "highest_class": "high"})
    assert (right.status_code, right.headers["Location"]) == (303, "/tenants/team-blue/")
    assert AuditEntry.objects.get(action="tenant_create").who == "olga"


def test_a_secret_is_shown_once(acme: Tenant, operators_client: Client) -> None:
    form = operators_client.get("/tenants/acme/keys/new/").content.decode()
    sent = {"name": "CI", "scopes": ["inference"], "once": once_in(form)}
    answer = operators_client.post("/tenants/acme/keys/new/", sent)
    secret = secret_in(answer.content.decode())
    assert answer.status_code == 200
    assert answer.headers["Cache-Control"] == "no-store"
    assert secret not in str(answer.cookies)
    again = operators_client.post("/tenants/acme/keys/new/", sent)
    assert again.status_code == 400
    assert "sent twice" in again.content.decode()
    assert ApiKey.objects.count() == 1
    tail = secret.split("-", 2)[2]
    pages = [operators_client.get(f"/tenants/acme/{tab}").content.decode() for tab in TABS]
    assert not any(tail in page for page in pages)
    rows = str(list(AuditEntry.objects.values())) + str(list(ApiKey.objects.values()))
    assert tail not in rows
    assert tail not in str(dict(operators_client.session))


def test_a_rotation_sent_twice_keeps_the_first_secret(
    key: ApiKey, operators_client: Client
) -> None:
    url = f"/tenants/acme/keys/{key.public_id}/rotate/"
    sent = {
        "old_until": f"{timezone.now() + timedelta(days=2):%Y-%m-%dT%H:%M}",
        "once": once_in(operators_client.get(url).content.decode()),
    }
    secret = secret_in(operators_client.post(url, sent).content.decode())
    assert operators_client.post(url, sent).status_code == 400
    key.refresh_from_db()
    assert secret.endswith(key.last4)
    assert "Rotating" in operators_client.get("/tenants/acme/keys/").content.decode()


@pytest.mark.parametrize(
    ("days", "status"),
    [
        pytest.param(2, 200, id="soon"),
        pytest.param(-1, 400, id="past"),
        pytest.param(91, 400, id="too-late"),
    ],
)
def test_a_rotation_has_an_end(
    days: int, status: int, key: ApiKey, operators_client: Client
) -> None:
    until = timezone.now() + timedelta(days=days)
    url = f"/tenants/acme/keys/{key.public_id}/rotate/"
    sent = {"old_until": f"{until:%Y-%m-%dT%H:%M}", "once": "x"}
    assert operators_client.post(url, sent).status_code == status


def test_what_cannot_be_taken_back_needs_the_name_and_a_reason(
    key: ApiKey, operators_client: Client
) -> None:
    url = f"/tenants/acme/keys/{key.public_id}/revoke/"
    assert operators_client.post(url, {"confirm": "batch", "reason": "x"}).status_code == 400
    assert operators_client.post(url, {"confirm": "Batch job"}).status_code == 400
    done = operators_client.post(url, {"confirm": "Batch job", "reason": "leaked"})
    assert done.status_code == 303
    assert "Revoked" in operators_client.get("/tenants/acme/keys/").content.decode()
    assert AuditEntry.objects.get(action="key_revoke").reason == "leaked"


def test_a_key_of_another_tenant_is_not_under_this_one(
    key: ApiKey, operators_client: Client
) -> None:
    tenant_create(access=ROOT, name="Beta", slug="beta")
    assert operators_client.get(f"/tenants/beta/keys/{key.public_id}/").status_code == 404


def test_a_tenant_is_blocked_and_unblocked(acme: Tenant, operators_client: Client) -> None:
    sent = {"confirm": "acme", "reason": "unpaid"}
    assert operators_client.post("/tenants/acme/block/", sent).status_code == 303
    acme.refresh_from_db()
    assert not acme.is_active
    assert "Unblock" in operators_client.get("/tenants/acme/").content.decode()
    assert operators_client.post("/tenants/acme/unblock/", {}).status_code == 303
    acme.refresh_from_db()
    assert acme.is_active


def limits(tenant: Tenant, **changed: str) -> dict[str, str]:
    return {
        "default_class": "normal", "highest_class": "normal", "weight": "1",
        "tokens_per_minute": "10000", "version": str(tenant.version), **changed,
    }  # fmt: skip


def test_limits_are_saved_after_their_effect_was_shown(
    acme: Tenant, operators_client: Client
) -> None:
    shown = operators_client.post(
        "/tenants/acme/limits/", limits(acme, concurrency="7", preview="1")
    )
    html = shown.content.decode()
    assert shown.status_code == 200
    assert "no limit</td><td>7</td>" in html
    acme.refresh_from_db()
    assert acme.concurrency is None, "a preview saves nothing"
    saved = operators_client.post("/tenants/acme/limits/", limits(acme, concurrency="7"))
    assert saved.status_code == 303
    acme.refresh_from_db()
    assert acme.concurrency == 7


def test_a_second_editor_is_told_who_was_faster(acme: Tenant, operators_client: Client) -> None:
    seen = limits(acme, weight="3")
    tenant_update(access=Access("bert", platform=Role.OWNER), tenant=acme, changes={"weight": 2.0})
    late = operators_client.post("/tenants/acme/limits/", seen)
    html = late.content.decode()
    assert late.status_code == 409
    assert "was changed meanwhile by bert" in html
    assert 'name="weight" value="3"' in html
    version = re.search(r'name="version" value="(\d+)"', html)
    assert version is not None
    again = operators_client.post("/tenants/acme/limits/", {**seen, "version": version[1]})
    assert again.status_code == 303
    acme.refresh_from_db()
    assert acme.weight == 3.0


def test_limits_sent_twice_are_no_conflict(acme: Tenant, operators_client: Client) -> None:
    seen = limits(acme, weight="3")
    for _ in range(2):
        assert operators_client.post("/tenants/acme/limits/", seen).status_code == 303
    assert AuditEntry.objects.filter(action="tenant_update").count() == 1


def test_a_key_is_changed_under_its_version(key: ApiKey, operators_client: Client) -> None:
    url = f"/tenants/acme/keys/{key.public_id}/"
    assert f'name="version" value="{key.version}"' in operators_client.get(url).content.decode()
    sent = {
        "name": "Nightly", "scopes": ["inference", "read"], "version": str(key.version),
        "allowed_networks": "10.0.0.0/8\n192.0.2.1",
    }  # fmt: skip
    for _ in range(2):
        assert operators_client.post(url, sent).status_code == 303
    key.refresh_from_db()
    assert key.allowed_networks == ["10.0.0.0/8", "192.0.2.1"]
    late = operators_client.post(url, {**sent, "name": "Other"})
    assert late.status_code == 409
    assert "by olga at" in late.content.decode()
    wrong = operators_client.post(url, {**sent, "allowed_networks": "10.0.0.1/8"})
    assert wrong.status_code in (400, 409)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        pytest.param("weight", "0", id="weight"),
        pytest.param("concurrency", "-1", id="concurrency"),
        pytest.param("tokens_per_minute", "many", id="tokens"),
        pytest.param("monthly_budget", "1e99", id="budget"),
        pytest.param("highest_class", "gold", id="class"),
    ],
)
def test_a_wrong_limit_is_named_under_its_field(
    field: str, value: str, acme: Tenant, operators_client: Client
) -> None:
    for extra in ({}, {"preview": "1"}):
        sent = {**limits(acme), field: value, **extra}
        answer = operators_client.post("/tenants/acme/limits/", sent)
        assert answer.status_code == 400
        assert f'id="id_{field}-error"' in answer.content.decode()


def test_targets_are_set_and_taken_back(acme: Tenant, operators_client: Client) -> None:
    slo_set(access=ROOT, tenant=None, priority_class="normal", changes={"ttft_ms": 900.0})
    assert "everybody" in operators_client.get("/tenants/acme/slo/").content.decode()
    sent = {"ttft_ms": "500", "objective": "99.5", "window_days": "28"}
    url = "/tenants/acme/slo/normal/"
    assert operators_client.post(url, sent).status_code == 303
    slo = Slo.objects.get(tenant=acme)
    assert (slo.ttft_ms, slo.objective) == (500.0, 0.995)
    assert operators_client.post(url, {**sent, "ttft_ms": ""}).status_code == 400
    assert operators_client.post(f"{url}remove/", {}).status_code == 303
    assert not Slo.objects.filter(tenant=acme).exists()
    assert operators_client.get("/tenants/acme/slo/gold/").status_code == 404


def test_members_come_and_go(acme: Tenant, outsider: User, operators_client: Client) -> None:
    add = "/tenants/acme/members/~add/"
    unknown = operators_client.post(add, {"username": "nobody", "role": "viewer"})
    assert unknown.status_code == 400
    assert "There is no account of this name." in unknown.content.decode()
    assert operators_client.post(add, {"username": "oscar", "role": "viewer"}).status_code == 303
    # An operator of the platform acts as the tenant's admin: owners are for owners.
    assert operators_client.post(add, {"username": "olga", "role": "owner"}).status_code == 403
    changed = operators_client.post("/tenants/acme/members/oscar/", {"role": "tenant_admin"})
    assert changed.status_code == 303
    assert Membership.objects.get(user=outsider).role == "tenant_admin"
    sent = {"confirm": "oscar", "reason": "left"}
    assert operators_client.post("/tenants/acme/members/oscar/remove/", sent).status_code == 303
    assert not Membership.objects.exists()


@pytest.mark.parametrize("span", ["24h", "7d", "30d", "365d", "nonsense"])
def test_usage_can_be_downloaded(span: str, acme: Tenant, operators_client: Client) -> None:
    answer = operators_client.get(f"/tenants/acme/usage.csv?range={span}&group=key")
    assert answer.status_code == 200
    assert b"".join(answer.streaming_content).decode().startswith("group,requests,")  # type: ignore[attr-defined]


def test_the_first_steps_lead_to_a_key(
    pool: Callable[[int], FakeWatch], operators_client: Client
) -> None:
    pool(2)
    assert operators_client.get("/").headers["Location"] == "/welcome/"
    html = operators_client.get("/welcome/").content.decode()
    assert html.count('data-done="no"') == 2
    sent = {"name": "Blue", "slug": "blue", "key": "First", "once": once_in(html)}
    answer = operators_client.post("/welcome/key/", sent)
    assert secret_in(answer.content.decode()).startswith("sk-")
    assert operators_client.get("/welcome/").content.decode().count('data-done="no"') == 1
    assert operators_client.post("/welcome/leave/").status_code == 303
    assert operators_client.get("/").headers["Location"] == "/cluster/"


def test_a_password_is_changed_by_its_owner(watch: FakeWatch, operators_client: Client) -> None:
    new = "a longer sentence of mine 7"
    sent = {"old_password": "wrong", "new_password1": new, "new_password2": new}
    assert operators_client.post("/password/", sent).status_code == 400
    done = operators_client.post("/password/", {**sent, "old_password": "x"})
    assert done.status_code == 200
    assert operators_client.get("/cluster/").status_code == 200, "this session goes on"
    login = Client().post("/login/", {"username": "olga", "password": new})
    assert login.status_code == 302
    entry = AuditEntry.objects.get(action="password_change")
    assert new not in str(entry.__dict__)
