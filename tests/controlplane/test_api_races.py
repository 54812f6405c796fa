"""What many callers do at once happens as if they came one after another; on both databases."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from django.db import connections

from controlplane.api.models import IdempotentCall
from controlplane.audit.models import AuditEntry
from controlplane.tenants.access import Role
from controlplane.tenants.models import ApiKey, Tenant
from tests.controlplane.api_world import (
    Caller,
    TenantWorld,
    by_key,
    by_session,
    forget_attempts,
    platform_user,
    tenant_world,
)

THREADS = 20
DEADLINE_S = 60.0
"""Of all threads together, on a busy machine; they take about a second."""

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def alpha() -> Iterator[TenantWorld]:
    forget_attempts()
    yield tenant_world("alpha")
    forget_attempts()


def at_once(count: int, act: Callable[[int], Any]) -> list[Any]:
    """Returns what so many threads got that began together."""
    start = Barrier(count, timeout=DEADLINE_S)

    def one(number: int) -> Any:
        try:
            start.wait()
            return act(number)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(count) as pool:
        asked = [pool.submit(one, number) for number in range(count)]
        return [answer.result(DEADLINE_S) for answer in asked]


def test_the_same_idempotency_key_at_once_makes_one_key(alpha: TenantWorld) -> None:
    text = alpha.texts["manage"]

    def create(number: int) -> Any:
        return by_key(f"{number}", text).call(
            "POST", "tenants/alpha/keys", {"name": "racer"}, Idempotency_Key="the same"
        )

    answers = at_once(THREADS, create)
    made = [a for a in answers if a.status_code == 201]
    busy = [a for a in answers if a.status_code == 409]
    assert len(made) + len(busy) == THREADS, {a.status_code: a.content for a in answers}
    assert len({a.json()["public_id"] for a in made}) == 1
    assert len([a for a in made if a.json()["key"]]) == 1, "the secret is told once"
    assert {a.json()["error"]["code"] for a in busy} <= {"idempotency_key_in_use"}
    assert all(int(a["Retry-After"]) > 0 for a in busy)
    again = create(0)
    assert again.json()["public_id"] == made[0].json()["public_id"]
    assert ApiKey.objects.filter(name="racer").count() == 1
    assert AuditEntry.objects.filter(object__startswith="racer").count() == 1
    assert IdempotentCall.objects.get().status == 201


def test_of_changes_with_one_etag_one_wins(alpha: TenantWorld) -> None:
    operator = platform_user(Role.OPERATOR)
    callers = [by_session("operator", operator) for _ in range(2)]
    etag = callers[0].call("GET", "tenants/alpha")["ETag"]

    def change(number: int) -> Any:
        body = {"concurrency": number + 1}
        return callers[number].call("PATCH", "tenants/alpha", body, If_Match=etag)

    answers = at_once(2, change)
    assert sorted(a.status_code for a in answers) == [200, 412]
    won = next(n for n, a in enumerate(answers) if a.status_code == 200)
    assert answers[1 - won].json()["error"]["code"] == "version_conflict"
    tenant = Tenant.objects.get(slug="alpha")
    assert (tenant.concurrency, tenant.version) == (won + 1, 2)


def test_the_same_name_at_once_is_made_once(alpha: TenantWorld) -> None:
    operator = platform_user(Role.OPERATOR)
    callers: list[Caller] = [by_session("operator", operator) for _ in range(4)]

    def create(number: int) -> Any:
        return callers[number].call("POST", "tenants", {"name": "Twin", "slug": "twin"})

    answers = at_once(len(callers), create)
    assert sorted(a.status_code for a in answers)[0] == 201
    assert {a.status_code for a in answers} <= {201, 400, 409}
    assert Tenant.objects.filter(slug="twin").count() == 1
