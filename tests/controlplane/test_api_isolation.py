"""Two tenants and every operation of the schema: to one of them the other does not exist."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import quote, urlencode

import pytest
import schemathesis
from django.db import transaction
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as trials
from hypothesis.strategies import SearchStrategy
from pytest_django.fixtures import Settings as DjangoSettings
from schemathesis import BaseSchema, GenerationMode

from controlplane.tenants.access import Role
from tests.controlplane.api_pool import ApiPool, serving
from tests.controlplane.api_world import (
    JSON,
    Caller,
    TenantWorld,
    a_pool,
    by_key,
    by_session,
    connection_kept,
    everybodys_slo,
    forget_attempts,
    request_record,
    tenant_world,
)
from tests.controlplane.test_api_schema import schema_of_application

EXAMPLES: Final = 2
"""Bodies and queries for each operation, caller and name: some thousand calls in all."""
USERS: Final = "username"
"""A user belongs to the installation: an admin adds one to a tenant by the name alone."""


@pytest.fixture
def alpha(db: None) -> TenantWorld:
    a_pool()
    everybodys_slo()
    return tenant_world("alpha")


@pytest.fixture
def pool(store_url: str, settings: DjangoSettings) -> Iterator[ApiPool]:
    with serving(store_url, settings) as made:
        yield made


@pytest.fixture
def bravo(alpha: TenantWorld, pool: ApiPool) -> TenantWorld:
    """Is busy: its audit, its requests and its usage are full of its names."""
    world = tenant_world("bravo-canary")
    for i in range(3):
        request_record(world.tenant, world.keys["inference"], model=f"bravo-canary-model-{i}")
    pool.run(f"chatcmpl-{'b' * 32}", world.tenant)
    pool.run(f"chatcmpl-{'a' * 32}", alpha.tenant)
    return world


@pytest.fixture(params=["owner", "viewer", "manage", "read"])
def caller(request: pytest.FixtureRequest, alpha: TenantWorld) -> Iterator[Caller]:
    forget_attempts()
    name: str = request.param
    if name in alpha.texts:
        yield by_key(name, alpha.texts[name])
    else:
        yield by_session(name, alpha.members[Role(name)])
    forget_attempts()


@pytest.fixture
def schema(db: None) -> BaseSchema:
    with connection_kept():
        return schema_of_application()[0]


def names_of(world: TenantWorld) -> dict[str, str]:
    """Returns what a caller who knows everything of a tenant would ask with."""
    public_id = world.keys["inference"].public_id
    return {
        "slug": world.tenant.slug,
        "tenant": world.tenant.slug,
        "public_id": public_id,
        "key": public_id,
        "request_id": world.request_id,
        "username": world.members[Role.VIEWER].username,
        "who": world.members[Role.OWNER].username,
        "q": world.tenant.slug,
        "object": world.tenant.name,
    }


def ghosts(names: dict[str, str]) -> dict[str, str]:
    """Returns names of the same form that nothing has."""
    return {
        n: re.sub(r"bravo", "ghost", v) if "bravo" in v else f"{v[:-6]}{'0' * 6}"
        for n, v in names.items()
    }


def told(answer: Any, names: dict[str, str]) -> tuple[int, str]:
    """Returns status and body, without what the caller has sent."""
    body = b"".join(answer) if answer.streaming else answer.content
    text = body.decode()
    for name in sorted(names.values(), key=len, reverse=True):
        text = text.replace(name, "<sent>")
    # How long ago a report was, and other times.
    return answer.status_code, re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)", "<time>", text)


def send(caller: Caller, case: schemathesis.Case, names: dict[str, str]) -> Any:
    """Sends a generated call, with these names in path and query."""
    operation = case.operation
    path = operation.path
    for name, value in {**(case.path_parameters or {}), **names}.items():
        path = path.replace(f"{{{name}}}", quote(str(value), safe=""))
    asked = {parameter.name for parameter in operation.query}
    query = {**(case.query or {}), **{n: v for n, v in names.items() if n in asked}}
    body = case.body if isinstance(case.body, dict) else {}
    headers = {"If-Match": "*", **caller.headers}
    address = f"{path}?{urlencode(query, doseq=True)}"
    # What one call changes, the next one must not miss.
    with transaction.atomic():
        answer = caller.client.generic(
            case.method, address, json.dumps(body), content_type=JSON, headers=headers
        )
        transaction.set_rollback(True)
    return answer


def test_a_tenant_is_told_nothing_of_another_and_asks_for_it_in_vain(
    caller: Caller, alpha: TenantWorld, bravo: TenantWorld, schema: BaseSchema
) -> None:
    foreign = names_of(bravo)
    missing, own = ghosts(foreign), names_of(alpha)
    asked: set[str] = set()

    def check(case: schemathesis.Case) -> None:
        parameters = {p.name for p in (*case.operation.path_parameters, *case.operation.query)}
        # Once with nothing but its own names, then with each one of the other's among them.
        assert not leaks(send(caller, case, own), bravo), case.operation.label
        for name in parameters & foreign.keys() - {USERS}:
            found = told(send(caller, case, {**own, name: foreign[name]}), foreign)
            ghost = told(send(caller, case, {**own, name: missing[name]}), missing)
            assert found == ghost, f"{case.operation.label}: {name}"
            asked.add(name)

    for operation in schema.get_all_operations():
        each(operation.ok().as_strategy(GenerationMode.POSITIVE), check)
    assert asked == foreign.keys() - {USERS}


def leaks(answer: Any, world: TenantWorld) -> set[str]:
    """Returns what an answer says of a tenant, beside the names that were sent."""
    text = told(answer, {})[1]
    return {name for name in world.canaries if name in text}


def test_a_member_of_another_tenant_is_no_member_here(
    alpha: TenantWorld, bravo: TenantWorld
) -> None:
    caller = by_session("owner", alpha.members[Role.OWNER])
    theirs = bravo.members[Role.VIEWER].username
    answer = caller.call("DELETE", f"tenants/alpha/members/{theirs}")
    ghost = caller.call("DELETE", "tenants/alpha/members/nobody")
    assert told(answer, {"u": theirs}) == told(ghost, {"u": "nobody"})
    assert answer.status_code == 404


def each(
    strategy: SearchStrategy[schemathesis.Case], check: Callable[[schemathesis.Case], None]
) -> None:
    """Checks a few generated calls of an operation."""

    @trials(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def run(case: schemathesis.Case) -> None:
        check(case)

    run()
