"""Changes to tenants and keys."""

from datetime import datetime

from django.utils import timezone

from controlplane.tenants.keys import make_key
from controlplane.tenants.models import ApiKey, Tenant


def tenant_create(*, name: str, slug: str, priority_class: str = "normal") -> Tenant:
    """Returns a new tenant. Raises: ValidationError."""
    tenant = Tenant(name=name, slug=slug, priority_class=priority_class)
    tenant.full_clean()
    tenant.save()
    return tenant


def key_create(
    *, tenant: Tenant, name: str, expires_at: datetime | None = None
) -> tuple[ApiKey, str]:
    """Returns a new key's row and its text, which cannot be had again. Raises: ValidationError."""
    new = make_key()
    key = ApiKey(
        tenant=tenant,
        name=name,
        public_id=new.public_id,
        secret_digest=new.secret_digest,
        last4=new.last4,
        expires_at=expires_at,
    )
    key.full_clean()
    key.save()
    return key, new.text


def key_revoke(*, key: ApiKey) -> None:
    """Ends a key; web processes that have it in their cache notice within a second."""
    ApiKey.objects.filter(pk=key.pk, revoked_at=None).update(revoked_at=timezone.now())


def keys_note_used(*, used: dict[int, datetime]) -> None:
    """Writes when keys were last used: key's row id -> time."""
    for key_id, at in used.items():
        ApiKey.objects.filter(pk=key_id).update(last_used_at=at)
