"""`/api/v1`: tenants, members, SLOs, usage and audit; its pages of lists, versions and errors."""

import csv
import io
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st
from pytest_django.fixtures import Settings as DjangoSettings

from controlplane.api.models import IdempotentCall
from controlplane.api.pagination import page_of_list
from controlplane.api.problem import Problem
from controlplane.audit.models import AuditEntry
from controlplane.tenants.access import Role
from controlplane.tenants.models import ApiKey, Membership, Tenant
from tests.controlplane.api_pool import serving
from tests.controlplane.api_world import (
    Caller,
    TenantWorld,
    by_key,
    by_session,
    forget_attempts,
    platform_user,
    request_record,
    tenant_world,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def alpha() -> Iterator[TenantWorld]:
    forget_attempts()
    yield tenant_world("alpha")
    forget_attempts()


@pytest.fixture
def operator() -> Caller:
    return by_session("operator", platform_user(Role.OPERATOR))


@pytest.fixture
def admin(alpha: TenantWorld) -> Caller:
    return by_session("admin", alpha.members[Role.TENANT_ADMIN])


def error_of(answer: Any) -> dict[str, Any]:
    assert set(answer.json()) == {"error"}
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


def test_a_tenant_is_made_read_and_changed_with_its_version(operator: Caller) -> None:
    made = operator.call(
        "POST", "tenants", {"name": "Gamma", "slug": "gamma", "requests_per_minute": 60}
    )
    assert (made.status_code, made["ETag"]) == (201, '"1"')
    path = "tenants/gamma"
    assert operator.call("GET", path)["ETag"] == '"1"'
    bare = operator.call("PATCH", path, {"weight": 2})
    assert (bare.status_code, error_of(bare)["code"]) == (428, "precondition_required")
    changed = operator.call("PATCH", path, {"weight": 2, "concurrency": 4}, If_Match='"1"')
    assert (changed.status_code, changed["ETag"]) == (200, '"2"')
    stale = operator.call("PATCH", path, {"weight": 3}, If_Match='W/"1"')
    assert (stale.status_code, error_of(stale)["code"]) == (412, "version_conflict")
    forced = operator.call("PATCH", path, {"concurrency": None}, If_Match="*")
    assert (forced.json()["concurrency"], forced["ETag"]) == (None, '"3"')
    for header in ("3", '"x', '"1", "2"'):
        wrong = operator.call("PATCH", path, {"weight": 3}, If_Match=header)
        assert (wrong.status_code, error_of(wrong)["param"]) == (400, "If-Match"), header
    assert operator.call("PATCH", path, {"weight": 3}, If_Match='"abc"').status_code == 412


@pytest.mark.parametrize(
    ("body", "param"),
    [
        pytest.param({"weight": "nan"}, "weight", id="no number"),
        pytest.param({"weight": 0}, "weight", id="too small"),
        pytest.param({"slug": "other"}, "slug", id="cannot change"),
        pytest.param({"requests_per_minute": 2**40}, "requests_per_minute", id="too large"),
        pytest.param({"default_class": "high"}, "default_class", id="above the highest"),
        pytest.param({"monthly_budget": "-1"}, "monthly_budget", id="below zero"),
        pytest.param({"allowed_models": [""]}, "allowed_models", id="empty name"),
    ],
)
def test_a_wrong_value_is_a_400_that_names_it(
    body: dict[str, Any], param: str, alpha: TenantWorld, operator: Caller
) -> None:
    answer = operator.call("PATCH", "tenants/alpha", body, If_Match="*")
    assert (answer.status_code, error_of(answer)["param"]) == (400, param)
    assert Tenant.objects.get(slug="alpha").version == 1


def test_only_operators_of_the_platform_make_and_limit_tenants(
    alpha: TenantWorld, admin: Caller
) -> None:
    assert admin.call("POST", "tenants", {"name": "X", "slug": "x"}).status_code == 404
    refused = admin.call("PATCH", "tenants/alpha", {"concurrency": 9}, If_Match="*")
    assert (refused.status_code, error_of(refused)["code"]) == (403, "permission_denied")


def test_the_same_idempotency_key_does_it_once(operator: Caller) -> None:
    body = {"name": "Once", "slug": "once"}
    first = operator.call("POST", "tenants", body, Idempotency_Key="a")
    again = operator.call("POST", "tenants", body, Idempotency_Key="a")
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    assert (again["Idempotent-Replayed"], again["ETag"]) == ("true", first["ETag"])
    other = operator.call("POST", "tenants", {**body, "slug": "two"}, Idempotency_Key="a")
    assert (other.status_code, error_of(other)["code"]) == (422, "idempotency_key_reused")
    assert error_of(other)["param"] == "Idempotency-Key"
    owner = by_session("owner", platform_user(Role.OWNER))
    theirs = owner.call("POST", "tenants", {"name": "B", "slug": "b"}, Idempotency_Key="a")
    assert theirs.status_code == 201, "another caller's keys are others"
    IdempotentCall.objects.update(claimed_at=timezone.now() - timedelta(hours=25))
    late = operator.call("POST", "tenants", {"name": "C", "slug": "c"}, Idempotency_Key="a")
    assert late.status_code == 201, "after a day it is forgotten"
    assert IdempotentCall.objects.count() == 1


def test_a_call_that_failed_may_be_mended_and_a_dead_one_taken_over(operator: Caller) -> None:
    wrong = operator.call("POST", "tenants", {"name": "D", "slug": "-!"}, Idempotency_Key="k")
    assert wrong.status_code == 400
    body = {"name": "D", "slug": "d"}
    assert operator.call("POST", "tenants", body, Idempotency_Key="k").status_code == 201
    call = IdempotentCall.objects.get()
    Tenant.objects.filter(slug="d").delete()
    IdempotentCall.objects.update(status=None, answer=None)
    busy = operator.call("POST", "tenants", body, Idempotency_Key="k")
    assert (busy.status_code, error_of(busy)["code"]) == (409, "idempotency_key_in_use")
    IdempotentCall.objects.update(claimed_at=call.claimed_at - timedelta(minutes=2))
    assert operator.call("POST", "tenants", body, Idempotency_Key="k").status_code == 201


def test_a_list_comes_in_pages_that_miss_and_repeat_nothing(
    alpha: TenantWorld, admin: Caller
) -> None:
    at = timezone.now()
    for i in range(7):
        request_record(alpha.tenant, alpha.keys["read"], arrived_at=at - timedelta(seconds=i // 3))
    seen: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        query = {"state": "ended", "limit": 2, **({"cursor": cursor} if cursor else {})}
        page = admin.call("GET", "requests", query).json()
        assert len(page["requests"]) <= 2
        seen += [r["request_id"] for r in page["requests"]]
        cursor = page["next_cursor"]
        assert page["has_more"] == (cursor is not None)
    assert len(seen) == len(set(seen)) == 8
    for bad in ("x", "W10", "eyJ4IjoxfQ", "WzEsIDJd"):
        answer = admin.call("GET", "requests", {"state": "ended", "cursor": bad})
        assert (answer.status_code, error_of(answer)["param"]) == (400, "cursor"), bad


@given(rows=st.lists(st.integers(), max_size=30), limit=st.integers(1, 10))
def test_pages_of_a_list_in_memory_are_the_list(rows: list[int], limit: int) -> None:
    seen: list[int] = []
    cursor = None
    while True:
        page = page_of_list(rows, limit=limit, cursor=cursor)
        seen += page.rows
        if page.next_cursor is None:
            break
        cursor = page.next_cursor
    assert seen == rows


@given(text=st.text(max_size=50))
def test_any_text_is_a_cursor_or_a_400(text: str) -> None:
    refused: list[Problem] = []
    try:
        page_of_list([1, 2, 3], limit=1, cursor=text)
    except Problem as problem:
        refused.append(problem)
    assert all((p.status_code, p.param) == (400, "cursor") for p in refused)


def test_members_are_added_changed_and_removed(alpha: TenantWorld, admin: Caller) -> None:
    User.objects.create_user("nina")
    path = "tenants/alpha/members/nina"
    assert admin.call("PUT", path, {"role": "viewer"}).status_code == 201
    changed = admin.call("PUT", path, {"role": "operator", "reason": "on call"})
    assert (changed.status_code, changed.json()["role"]) == (200, "operator")
    assert admin.call("PUT", path, {"role": "owner"}).status_code == 403
    owner = by_session("owner", alpha.members[Role.OWNER])
    assert owner.call("PUT", path, {"role": "owner"}).status_code == 200
    listed = admin.call("GET", "tenants/alpha/members").json()["data"]
    assert [m["username"] for m in listed] == sorted(m["username"] for m in listed)
    assert {"username": "nina", "role": "owner"}.items() <= listed[-1].items()
    assert admin.call("DELETE", path).status_code == 403
    assert owner.call("DELETE", f"{path}?reason=left").status_code == 204
    assert not Membership.objects.filter(user__username="nina").exists()
    own = f"tenants/alpha/members/{alpha.members[Role.OWNER].get_username()}"
    for answer in (owner.call("DELETE", own), owner.call("PUT", own, {"role": "viewer"})):
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "role"), "the last"
    assert AuditEntry.objects.filter(action="member_remove").get().reason == "left"
    assert admin.call("PUT", "tenants/alpha/members/nobody", {"role": "viewer"}).status_code == 404
    assert admin.call("DELETE", "tenants/alpha/members/nobody").status_code == 404


def test_slos_are_set_by_operators_and_seen_by_the_tenant(
    alpha: TenantWorld, admin: Caller, operator: Caller
) -> None:
    path = "tenants/alpha/slos/low"
    assert admin.call("PUT", path, {"ttft_ms": 900}).status_code == 404
    made = operator.call("PUT", path, {"ttft_ms": 900, "objective": 0.95})
    assert (made.status_code, made["ETag"]) == (200, '"1"')
    stale = operator.call("PUT", path, {"ttft_ms": 800}, If_Match='"7"')
    assert stale.status_code == 412
    assert operator.call("PUT", "tenants/alpha/slos/none", {"ttft_ms": 1}).status_code == 404
    none = operator.call("PUT", "slos/normal", {})
    assert (none.status_code, error_of(none)["param"]) == (400, "ttft_ms")
    listed = admin.call("GET", "slos").json()["data"]
    assert ("alpha", "low") in [(s["tenant"], s["priority_class"]) for s in listed]
    report = admin.call("GET", "slo/report", {"tenant": "alpha"}).json()["data"]
    assert {s["tenant"] for s in report} == {"alpha"}
    slow = admin.call("GET", "slo/slow-requests").json()["requests"]
    assert [r["request_id"] for r in slow] == [alpha.request_id]
    assert slow[0]["is_ttft_met"] is False
    assert operator.call("DELETE", path).status_code == 204
    assert operator.call("DELETE", path).status_code == 404


def test_usage_is_told_as_json_and_as_csv(alpha: TenantWorld, admin: Caller) -> None:
    path = "tenants/alpha/usage"
    body = admin.call("GET", path, {"group_by": "key"}).json()
    assert [(r["requests"], r["prompt_tokens"], r["key"]) for r in body["data"]] == [
        (1, 100, alpha.keys["inference"].public_id)
    ]
    by_query = admin.call("GET", path, {"group_by": "model", "format": "csv"})
    by_header = admin.call("GET", f"{path}?group_by=model", Accept="text/csv")
    for answer in (by_query, by_header):
        assert answer["Content-Type"].startswith("text/csv")
        rows = list(csv.DictReader(io.StringIO(answer.getvalue().decode())))
        assert [(r["group"], r["output_tokens"]) for r in rows] == [("tiny", "50")]
    wrong = admin.call("GET", path, {"group_by": "moon", "format": "csv"})
    assert (wrong.status_code, error_of(wrong)["param"]) == (400, "group_by")
    now = datetime.now(UTC)
    long_ago = (now - timedelta(days=400)).isoformat()
    assert error_of(admin.call("GET", path, {"group_by": "hour", "since": long_ago}))["param"]
    assert admin.call("GET", path, {"since": now.isoformat(), "until": long_ago}).status_code == 400
    assert admin.call("GET", path, Accept="image/png").status_code == 406


def test_the_limits_are_told_with_their_use(
    alpha: TenantWorld, admin: Caller, store_url: str, settings: DjangoSettings
) -> None:
    Tenant.objects.filter(slug="alpha").update(requests_per_minute=60)
    with serving(store_url, settings):
        body = admin.call("GET", "tenants/alpha/limits").json()
    assert float(body["requests_per_minute"]["limit"]) == 60
    assert float(body["requests_per_minute"]["used"]) == 0
    assert body["concurrency"] == {
        "used": "0.00000000", "reserved": "0.00000000", "limit": None, "resets_at": None,
    }  # fmt: skip
    assert float(body["monthly_budget"]["used"]) == 0.25


def test_the_audit_is_the_admins_of_their_own_tenant(alpha: TenantWorld, admin: Caller) -> None:
    viewer = by_session("viewer", alpha.members[Role.VIEWER])
    assert viewer.call("GET", "audit").status_code == 403
    entries = admin.call("GET", "audit", {"action": "key_create"}).json()["data"]
    assert len(entries) == 3
    assert {e["tenant"] for e in entries} == {"alpha"}
    assert "id" not in entries[0]
    table = admin.call("GET", "audit", {"format": "csv", "action": "key_create"})
    assert len(table.getvalue().decode().strip().splitlines()) == 4


def test_me_says_who_is_calling(alpha: TenantWorld, operator: Caller) -> None:
    assert operator.call("GET", "me").json()["platform_role"] == "operator"
    member = by_session("m", alpha.members[Role.VIEWER]).call("GET", "me").json()
    assert (member["kind"], member["platform_role"]) == ("user", None)
    assert member["tenants"] == [{"tenant": "alpha", "name": "Tenant alpha", "role": "viewer"}]
    key = by_key("k", alpha.texts["read"]).call("GET", "me").json()
    assert (key["kind"], key["scopes"], key["tenants"][0]["role"]) == ("key", ["read"], "viewer")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        pytest.param("GET", "nothing", 404, id="no such path"),
        pytest.param("DELETE", "tenants", 405, id="method"),
        pytest.param("OPTIONS", "tenants", 405, id="options"),
        pytest.param("GET", "tenants/no%00body", 404, id="a null in the path"),
        pytest.param("GET", "tenants?limit=0", 400, id="limit"),
        pytest.param("GET", "tenants?color=red", 400, id="unknown parameter"),
        pytest.param("GET", "tenants?format=xml", 404, id="unknown format"),
    ],
)
def test_every_error_has_the_one_shape(
    method: str, path: str, status: int, operator: Caller
) -> None:
    answer = operator.call(method, path)
    assert answer.status_code == status
    error_of(answer)
    assert answer["Content-Type"].startswith("application/json")


def test_a_body_that_is_no_json_object_is_refused(operator: Caller) -> None:
    client: Client = operator.client
    for body, kind, status in (
        ("{", "application/json", 400),
        ("[1]", "application/json", 400),
        ('{"name": NaN}', "application/json", 400),
        ("name=x", "application/x-www-form-urlencoded", 415),
    ):
        answer = client.post("/api/v1/tenants", body, content_type=kind)
        assert answer.status_code == status, body
        error_of(answer)


def test_a_broken_door_answers_in_the_one_shape(
    operator: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(**_: object) -> None:
        raise RuntimeError("the secret of the door")

    monkeypatch.setattr("controlplane.tenants.api.tenants_list", broken)
    operator.client.raise_request_exception = False
    answer = operator.call("GET", "tenants")
    assert (answer.status_code, error_of(answer)["code"]) == (500, "internal_error")
    assert "secret" not in answer.content.decode()


def test_the_reference_is_for_whoever_is_logged_in(alpha: TenantWorld, admin: Caller) -> None:
    for path in ("docs/", "schema/?format=json"):
        assert admin.call("GET", path).status_code == 200
    assert Client().get("/api/v1/docs/").status_code == 302
    assert Client().get("/api/v1/schema/").status_code == 401


def test_no_row_number_is_in_an_answer(alpha: TenantWorld, admin: Caller) -> None:
    ApiKey.objects.filter(tenant=alpha.tenant).update(created_by="setup")
    key = admin.call("GET", "tenants/alpha/keys").json()["data"][0]
    assert not {"id", "pk", "tenant_id", "secret_digest", "old_secret_digest"} & set(key)
