"""What the database itself keeps true of tenants."""

import pytest
from django.db import IntegrityError, transaction

from controlplane.errors import NotAllowed
from controlplane.tenants.access import Access, Role
from controlplane.tenants.models import Slo, Tenant
from controlplane.tenants.services import slo_set

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("is_for_everybody", [True, False])
def test_a_class_has_one_slo(is_for_everybody: bool) -> None:
    tenant = None if is_for_everybody else Tenant.objects.create(name="A", slug="a")
    Slo.objects.create(tenant=tenant, priority_class="high", ttft_ms=100)
    Slo.objects.create(tenant=tenant, priority_class="low", ttft_ms=100)
    with pytest.raises(IntegrityError), transaction.atomic():
        Slo.objects.create(tenant=tenant, priority_class="high", ttft_ms=200)


def test_a_tenants_own_people_see_its_targets_and_do_not_set_them() -> None:
    tenant = Tenant.objects.create(name="A", slug="a")
    owner = Access("anna", tenants={tenant.pk: Role.OWNER})
    with pytest.raises(NotAllowed):
        slo_set(access=owner, tenant=tenant, priority_class="high", changes={"ttft_ms": 100})
