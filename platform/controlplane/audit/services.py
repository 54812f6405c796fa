"""Writes of the audit."""

from collections.abc import Mapping
from typing import Any, Final

from controlplane.audit.models import AuditEntry, AuditResult
from controlplane.tenants.access import Access

SECRET_WORDS: Final = ("secret", "digest", "password", "token_hash", "authorization")
"""A field whose name holds one of these is shown as MASK, whoever put it there."""
MASK: Final = "********"


def audit_write(
    *,
    access: Access,
    action: str,
    object: str,
    tenant: str = "",
    tenant_id: int | None = None,
    reason: str = "",
    result: AuditResult = AuditResult.DONE,
    detail: str = "",
    request_id: str = "",
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> AuditEntry:
    """Adds a row, in the caller's transaction. Raises: DatabaseError."""
    role = access.role_in(tenant_id)
    entry = AuditEntry(
        who=access.who,
        role="" if role is None else role.value,
        action=action,
        object=object[:200],
        tenant=tenant,
        reason=reason.strip(),
        result=result,
        detail=detail,
        request_id=request_id,
        http_request_id=access.http_request_id,
        before=masked(before),
        after=masked(after),
    )
    entry.save()
    return entry


def masked(values: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Returns the values with every secret replaced, at any depth."""
    if values is None:
        return None
    return {name: _mask(name, value) for name, value in values.items()}


def _mask(name: str, value: Any) -> Any:
    if any(word in name.lower() for word in SECRET_WORDS):
        return MASK
    if isinstance(value, Mapping):
        return masked(value)
    if isinstance(value, list):
        return [_mask(name, item) for item in value]
    return value
