"""What a new installation needs before anybody can log in or send a request."""

import secrets

from django.contrib.auth import get_user_model
from django.db import transaction

from controlplane.tenants.access import Access, Role
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.tenants.services import key_create, tenant_create

USERNAME = "operator"
PASSWORD_BYTES = 15
"""20 characters, 120 bits."""
FIRST_TENANT = "default"
SETUP = Access("setup", platform=Role.OWNER)
"""The installation itself, as the audit shows it."""


@transaction.atomic
def first_login_create() -> dict[str, str] | None:
    """Creates what is missing of operator and key; returns both secrets, None when both exist.

    A missing half is made anew alone; then the other half's field is empty, as nobody knows it.
    """
    user_model = get_user_model()
    password = text = ""
    if not user_model.objects.filter(is_superuser=True, is_active=True).exists():
        password = secrets.token_urlsafe(PASSWORD_BYTES)
        user_model.objects.create_superuser(USERNAME, password=password)
    if not ApiKey.objects.exists():
        tenant = Tenant.objects.filter(slug=FIRST_TENANT).first() or tenant_create(
            access=SETUP, name="Default", slug=FIRST_TENANT
        )
        _, text = key_create(access=SETUP, tenant=tenant, name="First key")
    if not password and not text:
        return None
    return {"username": USERNAME if password else "", "password": password, "api_key": text}
