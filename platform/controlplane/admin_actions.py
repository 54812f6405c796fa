"""Actions on several rows: they say what they will do, and ask why, before they do it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from controlplane.admin_base import RoleAdmin, sentence
from controlplane.errors import Refused
from controlplane.tenants.access import Access

AT_ONCE_MAX: Final = 200
"""Rows that one action may take: it is one transaction, and a person reads their names."""


@dataclass(frozen=True, slots=True)
class Action:
    """What is done to each row. `act` gets who does it, the row and the reason."""

    name: str
    """Of the admin's method."""
    button: str
    consequence: str
    """A sentence: what will happen."""
    act: Callable[[Access, Any, str], str | None]
    """Raises what services raise. Returns a line to be shown once, or None."""
    is_dangerous: bool = True


def confirmed(
    page: RoleAdmin, request: HttpRequest, rows: "QuerySet[Any]", action: Action
) -> HttpResponse | None:
    """Asks first; when the person has agreed, does it to all rows or, if one refuses, to none."""
    chosen = list(rows[: AT_ONCE_MAX + 1])
    if len(chosen) > AT_ONCE_MAX:
        messages.error(request, f"At most {AT_ONCE_MAX} at once.")
        return None
    if "confirmed" not in request.POST:
        context = {
            **page.admin_site.each_context(request),
            "title": action.button,
            "opts": page.opts,
            "action": action,
            "rows": chosen,
        }
        return TemplateResponse(request, "admin_pages/confirm.html", context)
    access = page.access_of(request)
    reason = request.POST.get("reason", "")[:500]
    try:
        with transaction.atomic():
            lines = [action.act(access, row, reason) for row in chosen]
    except (Refused, ValidationError) as error:
        messages.error(request, f"Nothing was changed: {sentence(error)}")
        return None
    for line in lines:
        if line:
            messages.warning(request, line)
    messages.success(request, f"{action.button}: {len(chosen)} done.")
    return None
