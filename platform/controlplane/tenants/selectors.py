"""Questions about tenants and keys."""

from dataclasses import dataclass
from datetime import datetime

from controlplane.tenants.models import ApiKey
from engine_pool.types import PriorityClass


@dataclass(frozen=True, slots=True)
class KeyPolicy:
    """What a key allows; small enough to be kept in memory for all keys in use."""

    key_id: int
    secret_digest: str
    tenant_id: int
    tenant: str
    priority_class: PriorityClass
    expires_at: datetime | None
    is_active: bool
    """The key is not revoked and its tenant is active."""


def key_policy(*, public_id: str) -> KeyPolicy | None:
    """Returns what the key allows, None when there is no such key. One query."""
    key = ApiKey.objects.select_related("tenant").filter(public_id=public_id).first()
    if key is None:
        return None
    return KeyPolicy(
        key_id=key.pk,
        secret_digest=key.secret_digest,
        tenant_id=key.tenant_id,
        tenant=key.tenant.slug,
        priority_class=PriorityClass(key.tenant.priority_class),
        expires_at=key.expires_at,
        is_active=key.revoked_at is None and key.tenant.is_active,
    )
