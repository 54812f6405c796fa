"""The doctor's own key: made for one run, revoked after it, and expired soon in any case."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

from django.db import DatabaseError
from django.utils import timezone

from controlplane.tenants.access import Access, Role
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import key_create, key_revoke, tenant_create

TENANT: Final = "doctor"
DOCTOR: Final = Access("doctor", platform=Role.OWNER)
"""As the audit shows it."""
LIFE: Final = timedelta(minutes=10)
"""Longer than all checks together; what remains if the doctor itself is killed."""


@contextmanager
def doctor_key() -> Iterator[str]:
    """Yields a key's text; "" when the database does not answer, which is a check's to say."""
    try:
        tenant = Tenant.objects.filter(slug=TENANT).first() or tenant_create(
            access=DOCTOR, name="Doctor", slug=TENANT
        )
        key, text = key_create(
            access=DOCTOR, tenant=tenant, name="Doctor's check", expires_at=timezone.now() + LIFE
        )
    except DatabaseError:
        yield ""
        return
    try:
        yield text
    finally:
        key_revoke(access=DOCTOR, key=key)
        key.delete()
