"""`/api/v1` with keys: what a key reaches, when it stops, and where its secret is."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.apps import apps
from django.utils import timezone

from controlplane.api.attempts import ENTRIES_MAX, PER_ADDRESS_MAX, PER_KEY_MAX, WINDOW_S, Attempts
from controlplane.api.models import IdempotentCall
from controlplane.audit.models import AuditEntry
from controlplane.tenants.access import Role
from controlplane.tenants.models import ApiKey, TenantState
from controlplane.tenants.services import key_revoke, key_update, tenant_update
from tests.controlplane.api_world import (
    SYSTEM,
    Caller,
    TenantWorld,
    by_key,
    by_session,
    forget_attempts,
    platform_user,
    tenant_world,
)

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def no_attempts() -> Iterator[None]:
    forget_attempts()
    yield
    forget_attempts()


@pytest.fixture
def alpha() -> TenantWorld:
    return tenant_world("alpha")


@pytest.fixture
def manager(alpha: TenantWorld) -> Caller:
    return by_key("manage", alpha.texts["manage"])


def error_of(answer: Any) -> dict[str, Any]:
    assert set(answer.json()) == {"error"}
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize(
    ("scope", "reads", "writes"),
    [("inference", 403, 403), ("read", 200, 403), ("manage", 200, 200)],
)
def test_a_scope_is_what_a_key_reaches(
    scope: str, reads: int, writes: int, alpha: TenantWorld
) -> None:
    caller = by_key(scope, alpha.texts[scope])
    public_id = alpha.keys["inference"].public_id
    assert caller.call("GET", "tenants/alpha/keys").status_code == reads
    answer = caller.call("POST", f"keys/{public_id}/revoke", {})
    assert answer.status_code == writes
    if writes == 403:
        assert "scope" in error_of(answer)["message"]


def test_a_key_never_reaches_the_pool(manager: Caller) -> None:
    for method, path in (("GET", "snapshot"), ("GET", "whatif"), ("POST", "rebalancing/pause")):
        answer = manager.call(method, path, {} if method == "POST" else None)
        assert answer.status_code == 403
        assert "Keys do not reach the pool" in error_of(answer)["message"]


def test_a_key_stops_when_it_is_revoked_expired_moved_or_blocked(
    alpha: TenantWorld, manager: Caller
) -> None:
    key = alpha.keys["manage"]
    assert manager.call("GET", "me").status_code == 200
    key = key_update(access=SYSTEM, key=key, changes={"allowed_networks": ["10.0.0.0/8"]})
    assert manager.call("GET", "me").status_code == 401
    key = key_update(access=SYSTEM, key=key, changes={"allowed_networks": ["127.0.0.1"]})
    assert manager.call("GET", "me").status_code == 200
    past = timezone.now() - timedelta(seconds=1)
    key = key_update(access=SYSTEM, key=key, changes={"expires_at": past})
    assert manager.call("GET", "me").status_code == 401
    key = key_update(access=SYSTEM, key=key, changes={"expires_at": None})
    tenant = tenant_update(
        access=SYSTEM, tenant=alpha.tenant, changes={"state": TenantState.BLOCKED}
    )
    blocked = manager.call("GET", "me")
    assert (blocked.status_code, error_of(blocked)["code"]) == (403, "tenant_blocked")
    tenant_update(access=SYSTEM, tenant=tenant, changes={"state": TenantState.ACTIVE})
    key_revoke(access=SYSTEM, key=key)
    gone = manager.call("GET", "me")
    assert gone.status_code == 401
    assert error_of(gone)["code"] == "invalid_api_key"
    assert gone["WWW-Authenticate"].startswith("Bearer")


def test_a_wrong_key_is_refused_also_beside_a_session(alpha: TenantWorld) -> None:
    caller = by_session("owner", alpha.members[Role.OWNER])
    assert caller.call("GET", "me").status_code == 200
    for header in ("Bearer sk-0-x", "Bearer", "Basic eDp5", "Bearer sk-\x7f-y"):
        assert caller.call("GET", "me", Authorization=header).status_code == 401, header


def test_both_secrets_work_while_a_key_is_rotated(alpha: TenantWorld, manager: Caller) -> None:
    public_id = alpha.keys["read"].public_id
    answer = manager.call("POST", f"keys/{public_id}/rotate", {"overlap_s": 600})
    assert answer.status_code == 200
    assert answer["Cache-Control"] == "no-store"
    new = answer.json()["key"]
    for text in (alpha.texts["read"], new):
        assert by_key("either", text).call("GET", "me").json()["who"] == f"key:{public_id}"
    ApiKey.objects.filter(public_id=public_id).update(old_until=timezone.now())
    assert by_key("old", alpha.texts["read"]).call("GET", "me").status_code == 401
    assert by_key("new", new).call("GET", "me").status_code == 200


def test_a_secret_is_in_one_answer_and_in_no_table(alpha: TenantWorld, manager: Caller) -> None:
    made = manager.call(
        "POST", "tenants/alpha/keys", {"name": "canary", "reason": "test"}, Idempotency_Key="k1"
    )
    assert made.status_code == 201
    assert made["Cache-Control"] == "no-store"
    text = made.json()["key"]
    secret = text.split("-", 2)[2]
    public_id = made.json()["public_id"]
    again = manager.call(
        "POST", "tenants/alpha/keys", {"name": "canary", "reason": "test"}, Idempotency_Key="k1"
    )
    assert (again.json()["key"], again.json()["public_id"]) == (None, public_id)
    assert again["Idempotent-Replayed"] == "true"
    for path in ("tenants/alpha/keys", f"keys/{public_id}", "audit", "me"):
        assert secret not in manager.call("GET", path).content.decode()
    for model in apps.get_models():
        for row in model._default_manager.values():
            assert secret not in str(row), model
    assert IdempotentCall.objects.get().answer["key"] is None


def test_a_key_is_made_changed_and_ended_with_an_audit(manager: Caller) -> None:
    made = manager.call(
        "POST",
        "tenants/alpha/keys",
        {"name": "ci", "scopes": ["read"], "allowed_networks": ["10.0.0.0/8"], "reason": "for CI"},
    ).json()
    changed = manager.call(
        "PATCH", f"keys/{made['public_id']}", {"name": "ci-2"}, If_Match=f'"{made["version"]}"'
    )
    assert (changed.json()["name"], changed["ETag"]) == ("ci-2", '"2"')
    revoked = manager.call("POST", f"keys/{made['public_id']}/revoke", {"reason": "leaked"})
    assert revoked.json()["state"] == "revoked"
    told = AuditEntry.objects.filter(object__startswith="ci").order_by("id")
    assert [(e.action, e.reason) for e in told] == [
        ("key_create", "for CI"),
        ("key_update", ""),
        ("key_revoke", "leaked"),
    ]
    assert all(e.http_request_id for e in told)
    listed = manager.call("GET", "tenants/alpha/keys", {"state": "revoked"}).json()["data"]
    assert [k["public_id"] for k in listed] == [made["public_id"]]
    by_scope = manager.call("GET", "tenants/alpha/keys", {"scope": "manage"}).json()["data"]
    assert [k["name"] for k in by_scope] == ["alpha-manage"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        pytest.param({}, "name", id="no name"),
        pytest.param({"name": "x", "secret": "mine"}, "secret", id="unknown field"),
        pytest.param({"name": "x", "scopes": ["root"]}, "scopes", id="unknown scope"),
        pytest.param({"name": "x", "scopes": []}, "scopes", id="no scope"),
        pytest.param({"name": "x", "allowed_networks": ["x"]}, "allowed_networks", id="network"),
        pytest.param({"name": "x", "expires_at": "soon"}, "expires_at", id="time"),
        pytest.param({"name": "\x00"}, "name", id="odd characters"),
    ],
)
def test_a_wrong_value_is_a_400_that_names_it(
    body: dict[str, Any], param: str, manager: Caller
) -> None:
    answer = manager.call("POST", "tenants/alpha/keys", body)
    assert answer.status_code == 400
    assert error_of(answer)["param"] == param
    assert not ApiKey.objects.filter(name="x").exists()


def test_many_wrong_keys_from_one_address_wait(alpha: TenantWorld, manager: Caller) -> None:
    right = alpha.texts["manage"]
    wrong = by_key("guess", right[:-4] + "0000")
    for _ in range(PER_KEY_MAX):
        assert wrong.call("GET", "me").status_code == 401
    held_up = wrong.call("GET", "me")
    assert held_up.status_code == 429
    assert error_of(held_up)["code"] == "rate_limit_exceeded"
    assert 0 < int(held_up["Retry-After"]) <= WINDOW_S
    assert by_key("other", alpha.texts["read"]).call("GET", "me").status_code == 200
    elsewhere = Caller("elsewhere", headers=manager.headers)
    elsewhere.client.defaults["REMOTE_ADDR"] = "10.1.2.3"
    assert elsewhere.call("GET", "me").status_code == 200, "its owner is not locked out"


def test_attempts_are_counted_by_window_address_and_bounded() -> None:
    now_s = 0.0
    counted = Attempts(lambda: now_s)
    for i in range(PER_ADDRESS_MAX):
        assert counted.wait_s("a", f"k{i}") == 0
        counted.note_failure("a", f"k{i}")
    assert counted.wait_s("a", "fresh") == WINDOW_S
    assert counted.wait_s("b", "fresh") == 0
    now_s = WINDOW_S
    assert counted.wait_s("a", "fresh") == 0
    for i in range(ENTRIES_MAX):
        counted.note_failure(f"10.{i}", "k")
    assert len(counted) == ENTRIES_MAX


def test_a_platforms_operator_acts_as_admin_of_every_tenant(alpha: TenantWorld) -> None:
    operator = by_session("operator", platform_user(Role.OPERATOR))
    viewer = by_session("viewer", platform_user(Role.VIEWER))
    assert operator.call("POST", "tenants/alpha/keys", {"name": "ops"}).status_code == 201
    assert viewer.call("GET", "tenants/alpha/keys").status_code == 200
    assert viewer.call("GET", "classes").status_code == 200
    assert viewer.call("POST", "tenants/alpha/keys", {"name": "no"}).status_code == 403
