"""Changes to tenants, members, keys, classes and SLOs.

Each checks the role first, so that a door cannot forget it, and writes the audit in the same
transaction. All raise NotVisible, NotAllowed, VersionConflict, and ValidationError for a wrong
value.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from django.contrib.auth.models import AbstractBaseUser
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from controlplane.audit.services import audit_write
from controlplane.errors import NotAllowed
from controlplane.fleet.publishing import pools_publish_soon
from controlplane.tenants.access import Access, Role
from controlplane.tenants.changes import row_add, row_change, row_remove, values_of
from controlplane.tenants.keys import make_key
from controlplane.tenants.models import ApiKey, ClassSettings, Membership, Slo, Tenant

LIMIT_FIELDS: Final = (
    "requests_per_minute",
    "tokens_per_minute",
    "concurrency",
    "monthly_budget",
)
TENANT_FIELDS: Final = (
    "name",
    "slug",
    "state",
    "allowed_models",
    "default_class",
    "highest_class",
    "weight",
    *LIMIT_FIELDS,
)
KEY_FIELDS: Final = ("name", "scopes", "allowed_models", "allowed_networks", "expires_at")
SLO_FIELDS: Final = ("ttft_ms", "tpot_ms", "objective", "window_days")
CLASS_FIELDS: Final = ("headroom_tokens", "headroom_share", "ageing_s", "is_preemptible")
ROTATION_MAX: Final = timedelta(days=90)
"""How long both secrets of a key may work: a rotation that is never finished is none."""


def tenant_create(
    *, access: Access, name: str, slug: str, reason: str = "", **fields: Any
) -> Tenant:
    """Returns a new tenant. `fields`: of TENANT_FIELDS. Needs the platform's operator."""
    access.require(Role.OPERATOR)
    tenant = Tenant(name=name, slug=slug, **_only(fields, TENANT_FIELDS))
    return row_add(
        tenant, access=access, action="tenant_create", fields=TENANT_FIELDS, tenant=slug,
        reason=reason,
    )  # fmt: skip


def tenant_update(
    *,
    access: Access,
    tenant: Tenant,
    changes: Mapping[str, Any],
    version: int | None = None,
    reason: str = "",
) -> Tenant:
    """Changes any of TENANT_FIELDS but the slug. Needs the platform's operator."""
    access.require(Role.VIEWER, tenant.pk)
    _require_platform(access)
    allowed = _only(changes, [name for name in TENANT_FIELDS if name != "slug"])
    is_block = "state" in allowed and allowed["state"] != tenant.state
    return row_change(
        tenant, allowed, access=access, action="tenant_state" if is_block else "tenant_update",
        version=version, tenant=tenant.slug, tenant_id=tenant.pk, reason=reason,
    )  # fmt: skip


def member_set(
    *, access: Access, tenant: Tenant, user: AbstractBaseUser, role: Role, reason: str = ""
) -> Membership:
    """Adds a member, or gives another role. Needs the tenant's admin; for owners its owner."""
    access.require(Role.TENANT_ADMIN, tenant.pk)
    member = Membership.objects.filter(tenant=tenant, user=user).first()
    if Role.OWNER in (role, member and Role(member.role)):
        access.require(Role.OWNER, tenant.pk)
    if member is not None and role is not Role.OWNER:
        _keep_an_owner(access, member)
    about: dict[str, Any] = {"access": access, "tenant": tenant.slug, "tenant_id": tenant.pk}
    if member is None:
        member = Membership(tenant=tenant, user=user, role=role.value)
        return row_add(member, action="member_add", fields=("user", "role"), reason=reason, **about)
    return row_change(member, {"role": role.value}, action="member_role", reason=reason, **about)


def member_remove(*, access: Access, member: Membership, reason: str = "") -> None:
    """Needs the tenant's admin; for owners its owner."""
    tenant = member.tenant
    needed = Role.OWNER if member.role == Role.OWNER else Role.TENANT_ADMIN
    access.require(needed, tenant.pk)
    _keep_an_owner(access, member)
    row_remove(
        member, access=access, action="member_remove", fields=("user", "role"),
        tenant=tenant.slug, tenant_id=tenant.pk, reason=reason,
    )  # fmt: skip


def _keep_an_owner(access: Access, member: Membership) -> None:
    """Raises: ValidationError when a tenant's last owner would go by the tenant's own hand; the
    platform's owner may leave it without one."""
    owners = Membership.objects.filter(tenant_id=member.tenant_id, role=Role.OWNER.value)
    is_last = member.role == Role.OWNER and not owners.exclude(pk=member.pk).exists()
    if is_last and access.platform is not Role.OWNER:
        raise ValidationError(
            {"role": "the tenant would have no owner: make somebody else one first"}
        )


def key_create(
    *, access: Access, tenant: Tenant, name: str, reason: str = "", **fields: Any
) -> tuple[ApiKey, str]:
    """Returns a new key's row and its text, which cannot be had again. `fields`: of KEY_FIELDS.

    Needs the tenant's admin.
    """
    access.require(Role.TENANT_ADMIN, tenant.pk)
    new = make_key()
    key = ApiKey(
        tenant=tenant,
        name=name,
        public_id=new.public_id,
        secret_digest=new.secret_digest,
        last4=new.last4,
        created_by=access.who,
        **_only(fields, KEY_FIELDS),
    )
    row_add(
        key, access=access, action="key_create", fields=(*KEY_FIELDS, "public_id"),
        tenant=tenant.slug, tenant_id=tenant.pk, reason=reason,
    )  # fmt: skip
    return key, new.text


def key_update(
    *,
    access: Access,
    key: ApiKey,
    changes: Mapping[str, Any],
    version: int | None = None,
    reason: str = "",
) -> ApiKey:
    """Changes any of KEY_FIELDS. Needs the tenant's admin."""
    access.require(Role.TENANT_ADMIN, key.tenant_id)
    return row_change(
        key, _only(changes, KEY_FIELDS), access=access, action="key_update", version=version,
        tenant=key.tenant.slug, tenant_id=key.tenant_id, reason=reason,
    )  # fmt: skip


@transaction.atomic
def key_rotate(
    *, access: Access, key: ApiKey, old_until: datetime, reason: str = ""
) -> tuple[ApiKey, str]:
    """Gives a key a new secret; the old one works until `old_until`. Returns row and new text.

    A secret that was still alive from an earlier rotation ends now. Needs the tenant's admin.
    """
    access.require(Role.TENANT_ADMIN, key.tenant_id)
    now = timezone.now()
    if not now <= old_until <= now + ROTATION_MAX:
        raise ValidationError(
            {"old_until": f"must lie between now and {ROTATION_MAX.days} days from now"}
        )
    current = ApiKey.objects.select_for_update().get(pk=key.pk)
    if current.revoked_at is not None:
        raise ValidationError({"key": "is revoked; make a new one"})
    new = make_key(public_id=key.public_id)
    before = values_of(current, ("last4", "old_until"))
    current.old_secret_digest, current.old_last4 = current.secret_digest, current.last4
    current.old_until = old_until
    current.secret_digest, current.last4 = new.secret_digest, new.last4
    current.version += 1
    current.updated_at = now
    current.save()
    audit_write(
        access=access, action="key_rotate", object=str(current), tenant=key.tenant.slug,
        tenant_id=key.tenant_id, reason=reason, before=before,
        after=values_of(current, ("last4", "old_until")),
    )  # fmt: skip
    return current, new.text


def key_revoke(*, access: Access, key: ApiKey, reason: str = "") -> ApiKey:
    """Ends a key with both secrets, for good; web processes notice within a second.

    Does nothing to a key that is revoked. Needs the tenant's admin.
    """
    access.require(Role.TENANT_ADMIN, key.tenant_id)
    if key.revoked_at is not None:
        return key
    return row_change(
        key, {"revoked_at": timezone.now()}, access=access, action="key_revoke",
        tenant=key.tenant.slug, tenant_id=key.tenant_id, reason=reason,
    )  # fmt: skip


def keys_note_used(*, used: dict[int, datetime]) -> None:
    """Writes when keys were last used: key's row id -> time."""
    for key_id, at in used.items():
        ApiKey.objects.filter(pk=key_id).update(last_used_at=at)


def slo_set(
    *,
    access: Access,
    tenant: Tenant | None,
    priority_class: str,
    changes: Mapping[str, Any],
    version: int | None = None,
    reason: str = "",
) -> Slo:
    """Makes or changes the SLO of a tenant (None: of everybody without one) in a class.

    `changes`: of SLO_FIELDS. Needs the platform's operator.
    """
    if tenant is not None:
        access.require(Role.VIEWER, tenant.pk)
    _require_platform(access)
    about: dict[str, Any] = {
        "access": access,
        "tenant": "" if tenant is None else tenant.slug,
        "tenant_id": None if tenant is None else tenant.pk,
        "reason": reason,
    }
    values = _only(changes, SLO_FIELDS)
    slo = Slo.objects.filter(tenant=tenant, priority_class=priority_class).first()
    if slo is None:
        slo = Slo(tenant=tenant, priority_class=priority_class, **values)
        return row_add(slo, action="slo_create", fields=("priority_class", *SLO_FIELDS), **about)
    return row_change(slo, values, action="slo_update", version=version, **about)


def slo_remove(*, access: Access, slo: Slo, reason: str = "") -> None:
    """Needs the platform's operator."""
    if slo.tenant_id is not None:
        access.require(Role.VIEWER, slo.tenant_id)
    _require_platform(access)
    row_remove(
        slo, access=access, action="slo_remove", fields=("priority_class", *SLO_FIELDS),
        tenant=slo.tenant.slug if slo.tenant else "", tenant_id=slo.tenant_id, reason=reason,
    )  # fmt: skip


def class_update(
    *,
    access: Access,
    settings: ClassSettings,
    changes: Mapping[str, Any],
    version: int | None = None,
    reason: str = "",
) -> ClassSettings:
    """Changes any of CLASS_FIELDS. Needs the platform's operator."""
    access.require(Role.OPERATOR)
    changed = row_change(
        settings, _only(changes, CLASS_FIELDS), access=access, action="class_update",
        version=version, reason=reason,
    )  # fmt: skip
    transaction.on_commit(pools_publish_soon)
    return changed


def _require_platform(access: Access) -> None:
    """Raises: NotAllowed for who sees the thing, but does not run the platform."""
    if not access.allows(Role.OPERATOR):
        raise NotAllowed("Needs the operator role of the platform.")


def _only(values: Mapping[str, Any], names: Any) -> dict[str, Any]:
    """Returns the values. Raises: ValidationError for one that is not among the names."""
    for name in values:
        if name not in names:
            raise ValidationError({name: "cannot be set"})
    return dict(values)
