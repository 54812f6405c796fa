"""How a row that is managed here is changed: checked, versioned, told to the audit."""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, TypeVar

from django.db import transaction
from django.utils import timezone

from controlplane.audit.services import audit_write
from controlplane.errors import VersionConflict
from controlplane.tenants.access import Access
from controlplane.tenants.models import Versioned

V = TypeVar("V", bound=Versioned)


def values_of(row: Versioned, fields: Iterable[str]) -> dict[str, Any]:
    """Returns a row's fields as the audit and the pages show them, in JSON's types."""
    return {name: _plain(getattr(row, name)) for name in fields}


@transaction.atomic
def row_add(
    row: V,
    *,
    access: Access,
    action: str,
    fields: Iterable[str],
    tenant: str = "",
    tenant_id: int | None = None,
    reason: str = "",
) -> V:
    """Checks and saves a new row. Raises: ValidationError naming the field."""
    row.full_clean()
    row.save(force_insert=True)
    audit_write(
        access=access, action=action, object=str(row), tenant=tenant, tenant_id=tenant_id,
        reason=reason, after=values_of(row, fields),
    )  # fmt: skip
    return row


@transaction.atomic
def row_change(
    row: V,
    changes: Mapping[str, Any],
    *,
    access: Access,
    action: str,
    version: int | None = None,
    tenant: str = "",
    tenant_id: int | None = None,
    reason: str = "",
) -> V:
    """Sets fields of a row; does nothing when none differs.

    `version`: the one that the person has seen; None: whatever it is now.
    Raises: ValidationError naming the field; VersionConflict.
    """
    rows = type(row)._default_manager
    # Its own row alone: an ordering may join others, and PostgreSQL locks none that may be missing.
    current = rows.select_for_update(of=("self",)).filter(pk=row.pk).first()
    if current is None:
        raise VersionConflict(str(row), 0)
    if version is not None and current.version != version:
        raise VersionConflict(str(row), current.version)
    before = values_of(current, changes)
    for name, value in changes.items():
        setattr(current, name, value)
    current.full_clean()
    after = values_of(current, changes)
    if after == before:
        return current
    current.version += 1
    current.updated_at = timezone.now()
    current.save()
    audit_write(
        access=access, action=action, object=str(current), tenant=tenant, tenant_id=tenant_id,
        reason=reason, before=before, after=after,
    )  # fmt: skip
    return current


@transaction.atomic
def row_remove(
    row: Versioned,
    *,
    access: Access,
    action: str,
    fields: Iterable[str],
    tenant: str = "",
    tenant_id: int | None = None,
    reason: str = "",
) -> None:
    """Deletes a row."""
    before, name = values_of(row, fields), str(row)
    row.delete()
    audit_write(
        access=access, action=action, object=name, tenant=tenant, tenant_id=tenant_id,
        reason=reason, before=before,
    )  # fmt: skip


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return format(value.normalize(), "f")
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "pk"):
        return str(value)
    return value
