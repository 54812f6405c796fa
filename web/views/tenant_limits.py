"""What a tenant may use: the form, and what the last day would have looked like under it."""

from typing import Any, Final

from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from controlplane.errors import VersionConflict
from controlplane.tenants.access import Role
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import tenant_update
from web.tenant_dialog import conflict_words, is_so, renew_version
from web.tenant_forms import LIMITS, LimitsForm
from web.tenant_preview import NAMES, Preview, preview_of, shown
from web.views.access import PageRequest, tenant_view
from web.views.ledger import see
from web.views.tenants import show_tab

GROUPS: Final = (
    ("Class and share", ("default_class", "highest_class", "weight", "allowed_models")),
    ("In any minute, over all keys", ("requests_per_minute", "tokens_per_minute")),
    ("At the same time, and in a month", ("concurrency", "monthly_budget")),
)


@tenant_view(Role.VIEWER)
@require_http_methods(["GET", "HEAD", "POST"])
def limits(request: PageRequest, tenant: Tenant) -> HttpResponse:
    """Shows the limits; `preview` in a POST shows what they would do, without it they are saved."""
    if request.method != "POST":
        return _page(request, tenant, LimitsForm.filled(tenant), None)
    request.access.require(Role.OPERATOR)
    form = LimitsForm(request.POST)
    if not form.is_valid():
        return _page(request, tenant, form, None, 400)
    if "preview" in request.POST:
        return _page(request, tenant, form, _preview(request, tenant, form), _status(form))
    try:
        with transaction.atomic():
            tenant_update(
                access=request.access, tenant=tenant, changes=form.values,
                version=form.cleaned_data["version"], reason=form.why,
            )  # fmt: skip
        return see("web:tenant-limits", tenant.slug)
    except ValidationError as problem:
        form.take_errors(problem)
    except VersionConflict as conflict:
        if is_so(Tenant.objects.get(pk=tenant.pk), form.values):
            return see("web:tenant-limits", tenant.slug)
        form.add_error(None, conflict_words(tenant.name, conflict))
        renew_version(form, conflict.current)
        return _page(request, tenant, form, _preview(request, tenant, form), 409)
    return _page(request, tenant, form, None, 400)


def _preview(request: PageRequest, tenant: Tenant, form: LimitsForm) -> Preview | None:
    """Returns what the form's values would do; None, with its errors noted, for wrong ones."""
    wanted = Tenant.objects.get(pk=tenant.pk)
    for name, value in form.values.items():
        setattr(wanted, name, value)
    try:
        wanted.full_clean()
    except ValidationError as problem:
        form.take_errors(problem)
        return None
    return preview_of(tenant, wanted, timezone.now())


def _status(form: LimitsForm) -> int:
    return 400 if form.errors else 200


def _page(
    request: PageRequest, tenant: Tenant, form: LimitsForm, preview: Preview | None,
    status: int = 200,
) -> HttpResponse:  # fmt: skip
    may_set = request.access.allows(Role.OPERATOR)
    context: dict[str, Any] = {
        "page": "tenant-limits",
        "form": form,
        "groups": [(title, [form[name] for name in names]) for title, names in GROUPS],
        "reads": [(NAMES[name], shown(name, getattr(tenant, name))) for name in LIMITS],
        "may_set": may_set,
        "preview": preview
        or (preview_of(tenant, tenant, timezone.now()) if not form.errors else None),
        "is_asked": preview is not None,
    }
    if getattr(request, "htmx", False):
        response = render(request, "tenants/preview.html", context)
        response["Cache-Control"] = "no-store"
        return response
    return show_tab(request, tenant, "limits", "tenants/limits.html", context, status)
