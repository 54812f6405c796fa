"""Every operation of `/api/v1` against its own schema, as every kind of caller: whatever is sent,
nothing breaks, and each answer is one that the schema tells of."""

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import schemathesis
from django.contrib.auth.models import User
from django.core.handlers.wsgi import WSGIHandler
from django.db import transaction
from django.test import Client
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as trials
from hypothesis.strategies import SearchStrategy
from pytest_django.fixtures import Settings as DjangoSettings
from schemathesis import BaseSchema, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from controlplane.tenants.access import Role
from tests.controlplane.api_pool import ApiPool, serving
from tests.controlplane.api_world import (
    TenantWorld,
    a_pool,
    a_window,
    connection_kept,
    everybodys_slo,
    forget_attempts,
    platform_user,
    tenant_world,
)

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
EXAMPLES = {GenerationMode.POSITIVE: 2, GenerationMode.NEGATIVE: 1}
"""A caller, an operation and a kind of data: some 2,000 calls in all."""
SUCCEED = {"platform owner": 0.7}
"""Share of the operations of which a caller's valid call succeeds, at least."""
CSRF = "c" * 32
RUNNING = f"chatcmpl-{'a' * 32}"

Headers = dict[str, str]


@pytest.fixture
def alpha(db: None) -> TenantWorld:
    a_pool()
    everybodys_slo()
    return tenant_world("alpha")


@pytest.fixture
def pool(store_url: str, settings: DjangoSettings) -> Iterator[ApiPool]:
    with serving(store_url, settings) as made:
        yield made


@pytest.fixture(autouse=True)
def fresh_attempts() -> Iterator[None]:
    forget_attempts()
    with connection_kept():
        yield
    forget_attempts()


def session(user: Any) -> Headers:
    """Returns what a browser sends for somebody who is logged in."""
    client = Client()
    client.force_login(user)
    cookie = client.cookies["sessionid"].value
    return {"Cookie": f"sessionid={cookie}; csrftoken={CSRF}", "X-CSRFToken": CSRF}


def key(text: str) -> Headers:
    return {"Authorization": f"Bearer {text}"}


class SentBy:
    """The application, called by somebody."""

    def __init__(self, headers: Headers) -> None:
        self.headers = headers
        self._app = WSGIHandler()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        # Here, as the client in between takes cookies of its own jar alone.
        sent = {f"HTTP_{name.upper().replace('-', '_')}": v for name, v in self.headers.items()}
        return self._app({**environ, **sent}, start_response)


@functools.cache
def schema_of_application() -> tuple[BaseSchema, SentBy]:
    """Returns the schema as it is served, and the application that its calls go to.

    Read once: what is learnt of it for one caller serves all.
    """
    app = SentBy(session(User.objects.create_user("reader")))
    return schemathesis.openapi.from_wsgi("/api/v1/schema/?format=json", app), app


CALLERS: Mapping[str, Callable[[TenantWorld], Headers]] = {
    "anonymous": lambda alpha: {},
    "platform viewer": lambda alpha: session(platform_user(Role.VIEWER)),
    "platform operator": lambda alpha: session(platform_user(Role.OPERATOR)),
    "platform owner": lambda alpha: session(platform_user(Role.OWNER)),
    "tenant viewer": lambda alpha: session(alpha.members[Role.VIEWER]),
    "tenant admin": lambda alpha: session(alpha.members[Role.TENANT_ADMIN]),
    "tenant owner": lambda alpha: session(alpha.members[Role.OWNER]),
    "key to read": lambda alpha: key(alpha.texts["read"]),
    "key to manage": lambda alpha: key(alpha.texts["manage"]),
    "another tenant's key": lambda alpha: key(tenant_world("bravo").texts["manage"]),
}

ON_SQLITE = ("anonymous", "platform owner", "key to manage")
"""One of each kind; the run on PostgreSQL, which refuses more, tries all."""
TRIED = tuple(CALLERS) if "FERRY_TEST_DATABASE_URL" in os.environ else ON_SQLITE


def places(alpha: TenantWorld) -> dict[str, str]:
    """Returns what there is, for the parameters of paths."""
    return {
        "slug": alpha.tenant.slug,
        "public_id": alpha.keys["inference"].public_id,
        "username": alpha.members[Role.VIEWER].username,
        "request_id": RUNNING,
        "priority_class": "high",
        "name": "default",
        "window": a_window().name,
        "node": "node-01",
    }


@pytest.mark.parametrize("caller", TRIED)
def test_every_answer_is_one_that_the_schema_tells_of(
    caller: str, alpha: TenantWorld, pool: ApiPool
) -> None:
    pool.run(RUNNING, alpha.tenant)
    schema, app = schema_of_application()
    app.headers, known = CALLERS[caller](alpha), places(alpha)
    failures: list[str] = []
    succeeded = 0
    operations = [found.ok() for found in schema.get_all_operations()]
    for operation in operations:
        names = {parameter.name for parameter in operation.path_parameters}
        real = {n: v for n, v in known.items() if n in names}
        if "name" in names and "/instances/" in operation.path:
            real["name"] = "i-01"
        takes_version = any(p.name == "If-Match" for p in operation.headers)
        positive = operation.as_strategy(
            GenerationMode.POSITIVE,
            path_parameters=real,
            headers={"If-Match": "*"} if takes_version else None,
        )
        problems, statuses = answers(positive, EXAMPLES[GenerationMode.POSITIVE])
        succeeded += any(200 <= status < 300 for status in statuses)
        failures += problems
        negative = operation.as_strategy(GenerationMode.NEGATIVE)
        failures += answers(negative, EXAMPLES[GenerationMode.NEGATIVE])[0]
    assert not failures, "\n\n".join(failures[:10])
    # Otherwise these calls would have looked at refusals alone.
    assert succeeded / len(operations) >= SUCCEED.get(caller, 0), f"{succeeded} succeeded"


def answers(
    strategy: SearchStrategy[schemathesis.Case], examples: int
) -> tuple[list[str], list[int]]:
    """Returns what was wrong with answers to so many calls, and their statuses."""
    failures: list[str] = []
    statuses: list[int] = []

    @trials(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def call(case: schemathesis.Case) -> None:
        # What one call changes, the next one must not miss.
        with transaction.atomic():
            try:
                statuses.append(case.call_and_validate(checks=CHECKS).status_code)
            except FailureGroup as found:
                failures.append(f"{case.operation.label}: {found}: {found.exceptions}")
            transaction.set_rollback(True)

    call()
    return failures, statuses
