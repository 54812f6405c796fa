"""Questions about the audit."""

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q, QuerySet

from controlplane.audit.models import AuditEntry
from controlplane.errors import NotVisible
from controlplane.tenants.access import Access, Role
from controlplane.tenants.models import Tenant


@dataclass(frozen=True, slots=True)
class AuditFilters:
    """Which rows a list has; empty: all."""

    who: str = ""
    action: str = ""
    object: str = ""
    tenant: str = ""
    """A tenant's slug."""
    result: str = ""
    since: datetime | None = None
    """At or after."""
    until: datetime | None = None
    """Before."""
    q: str = ""
    """In the object, the reason or the detail; or the beginning of a request's id."""


def sees_audit(access: Access) -> bool:
    """Says whether there can be rows for this person: of the whole platform, or as an admin."""
    return access.sees_all or bool(_administered(access))


def audit_list(*, access: Access, filters: AuditFilters) -> "QuerySet[AuditEntry]":
    """Returns rows, newest first: all for the platform's people, else of administered tenants.

    A tenant's rows carry its slug; those of the installation carry none and stay with the platform.
    """
    rows = AuditEntry.objects.order_by("-at", "-id")
    if not access.sees_all:
        slugs = Tenant.objects.filter(pk__in=_administered(access)).values("slug")
        rows = rows.filter(tenant__in=slugs)
    for name in ("who", "action", "object", "tenant", "result"):
        value = getattr(filters, name)
        if value:
            rows = rows.filter(**{name: value})
    if filters.since is not None:
        rows = rows.filter(at__gte=filters.since)
    if filters.until is not None:
        rows = rows.filter(at__lt=filters.until)
    return rows.filter(_about(filters.q)) if filters.q else rows


def audit_get(*, access: Access, entry_id: int) -> AuditEntry:
    """Raises: NotVisible."""
    found = audit_list(access=access, filters=AuditFilters()).filter(pk=entry_id).first()
    if found is None:
        raise NotVisible("There is no such entry.")
    return found


def _administered(access: Access) -> list[int]:
    return [pk for pk in access.tenants if access.allows(Role.TENANT_ADMIN, pk)]


def _about(words: str) -> Q:
    return (
        Q(object__icontains=words)
        | Q(reason__icontains=words)
        | Q(detail__icontains=words)
        | Q(request_id__startswith=words)
        | Q(http_request_id__startswith=words)
    )
