"""Too many failed logins: what the person sees, and what the audit says."""

from typing import Any, Final

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from controlplane.audit.models import AuditResult
from controlplane.audit.services import audit_write
from controlplane.middleware import request_id_of
from controlplane.tenants.access import Access

WHO_MAX: Final = 150
"""Characters of a name that somebody typed, as many as a user's name may have."""


def lockout(
    request: HttpRequest, response: HttpResponse | None, credentials: dict[str, Any] | None
) -> HttpResponse:
    """Returns the page for who must wait; django-axes calls it after each refused login."""
    who = str((credentials or {}).get("username") or "")[:WHO_MAX]
    # Only the failure that locks has a count: what is tried in vain later is not told again.
    failures: int = getattr(request, "axes_failures_since_start", None) or 0
    if failures:
        address = request.META.get("REMOTE_ADDR", "")
        access = Access(who or "anonymous", http_request_id=request_id_of(request))
        audit_write(
            access=access,
            action="login_locked",
            object=who or "anonymous",
            result=AuditResult.REFUSED,
            detail=f"{failures} failed logins from {address}",
        )
    pause_s = int(settings.AXES_COOLOFF_TIME.total_seconds())
    context = {"pause_minutes": max(1, round(pause_s / 60))}
    page = render(request, "session/locked.html", context, status=429)
    page["Retry-After"] = str(pause_s)
    page["Cache-Control"] = "no-store"
    return page
