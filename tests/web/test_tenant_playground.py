"""As whom the playground speaks: the platform's operators as its own tenant, others as theirs."""

import pytest

from controlplane.errors import NotAllowed, NotVisible
from controlplane.gateway.errors import ApiError
from controlplane.tenants.access import Access, Role
from controlplane.tenants.models import Tenant, TenantState
from web.views.playground import TENANT_SLUG, policy_of, tenant_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Tenant:
    Tenant.objects.create(name="Aaa", slug="aaa")
    return Tenant.objects.create(name="Acme", slug="acme", allowed_models=["m"], concurrency=3)


def member(tenant: Tenant, role: Role) -> Access:
    return Access("mia", tenants={tenant.pk: role})


def test_an_operator_of_a_tenant_speaks_as_it(acme: Tenant) -> None:
    policy = policy_of(tenant_of(member(acme, Role.OPERATOR), ""))
    assert (policy.tenant, policy.limits.concurrency) == ("acme", 3)
    assert policy.allows_model("m")
    assert not policy.allows_model("other")


def test_an_operator_of_the_platform_speaks_as_the_playground(acme: Tenant) -> None:
    assert tenant_of(Access("olga", platform=Role.OPERATOR), "").slug == TENANT_SLUG


@pytest.mark.parametrize(
    ("role", "slug", "refusal"),
    [
        pytest.param(Role.VIEWER, "", NotAllowed, id="viewer"),
        pytest.param(Role.VIEWER, "acme", NotAllowed, id="viewer-by-name"),
        pytest.param(Role.OWNER, "aaa", NotVisible, id="another-tenant"),
        pytest.param(Role.OWNER, "none", NotVisible, id="no-tenant"),
        pytest.param(Role.OWNER, TENANT_SLUG, NotVisible, id="the-platforms"),
    ],
)
def test_nobody_speaks_as_somebody_else(
    role: Role, slug: str, refusal: type[Exception], acme: Tenant
) -> None:
    Tenant.objects.create(name="Playground", slug=TENANT_SLUG)
    with pytest.raises(refusal):
        tenant_of(member(acme, role), slug)


def test_a_blocked_tenant_does_not_speak(acme: Tenant) -> None:
    acme.state = TenantState.BLOCKED
    with pytest.raises(ApiError) as error:
        policy_of(acme)
    assert error.value.status == 403
