"""Who sends what, how near to which limit: the list of tenants, one tenant, a new one."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from django.db.models import Q
from django.http import HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_safe

from controlplane.tenants.access import Role
from controlplane.tenants.models import Tenant, TenantState
from controlplane.tenants.selectors import keys_list, members_list, tenants_list
from controlplane.tenants.services import tenant_create, tenant_update
from controlplane.usage.selectors import RequestFilters, requests_list, slo_report
from web.action_forms import ActionForm
from web.query import Query
from web.tenant_dialog import Dialog, show_dialog, submit
from web.tenant_forms import ConfirmForm, TenantForm
from web.tenant_use import TenantRow, meters_of, rows_of, spent_in_a_day, spent_since, with_ledger
from web.tenant_words import (
    attainment_of,
    attainment_tile,
    budget_tile,
    key_state,
    meter_tile,
    misses,
    month_start,
)
from web.views.access import PageRequest, needs, signed_in, tenant_view
from web.views.ledger import see, show

SHOWN: Final = 100
"""Lines of the list; the rest is found by its search."""
RECENT: Final = 8
SORTS: Final[dict[str, Callable[[TenantRow], Any]]] = {
    "name": lambda row: row.tenant.name.lower(),
    "requests": lambda row: -(row.meters["concurrency"].taken or 0),
    "tokens": lambda row: -(row.meters["tokens"].share or 0),
    "budget": lambda row: -(row.meters["budget"].share or 0),
    "spent": lambda row: -(row.meters["budget"].taken or 0),
    "attainment": lambda row: (lambda share: 2.0 if share is None else share)(
        attainment_of(row.states)[0]
    ),
}
"""What the list can be sorted by: the one to look at first on top."""
COLUMNS: Final = (
    ("name", "Tenant", ""),
    ("", "State", ""),
    ("requests", "Requests now", "num"),
    ("tokens", "Tokens a minute", "meter-cell"),
    ("", "Concurrency", "meter-cell"),
    ("budget", "Budget of the month", "meter-cell"),
    ("attainment", "SLO attainment", "num"),
)


@signed_in
@require_safe
def tenants(request: PageRequest) -> HttpResponse:
    """Lists the tenants that the person may see; search, state and sort stand in the address."""
    query = Query.of(request.GET, ("q", "state", "sort"))
    state = query["state"] if query["state"] in TenantState.values else ""
    sort = query["sort"] if query["sort"] in SORTS else "name"
    found = tenants_list(access=request.access)
    total = found.count()
    if query["q"]:
        found = found.filter(Q(name__icontains=query["q"]) | Q(slug__icontains=query["q"]))
    if state:
        found = found.filter(state=state)
    count = found.count()
    rows = rows_of(request.access, list(found[:SHOWN]), timezone.now())
    context = {
        "page": "tenants",
        "rows": [
            (row, attainment_of(row.states), misses(row.states))
            for row in sorted(rows, key=SORTS[sort])
        ],
        "columns": [
            (key, word, css, query.link(sort=key) if key else "") for key, word, css in COLUMNS
        ],
        "sort": sort,
        "q": query["q"],
        "state": state,
        "states": [("", "All", query.link(state=""))]
        + [(s.value, s.value.capitalize(), query.link(state=s.value)) for s in TenantState],
        "count": count,
        "total": total,
        "left_out": max(0, count - SHOWN),
    }
    return show(request, "tenants/list.html", context)


@needs(Role.OPERATOR)
@require_http_methods(["GET", "HEAD", "POST"])
def create(request: PageRequest) -> HttpResponse:
    """Shows the form, or makes a tenant and goes to its page."""
    dialog = Dialog(
        title="New tenant",
        what="A customer or a team: it owns keys, and limits, usage and SLOs are counted for it.",
        verb="Create the tenant",
        back=reverse("web:tenants"),
    )
    if request.method != "POST":
        return show_dialog(request, dialog, TenantForm())
    form = TenantForm(request.POST)

    def act() -> HttpResponse:
        made = tenant_create(access=request.access, reason=form.why, **form.values)
        return see("web:tenant", made.slug)

    return submit(request, dialog, form, act)


@tenant_view(Role.VIEWER)
@require_safe
def overview(request: PageRequest, tenant: Tenant) -> HttpResponse:
    """Shows how the tenant stands."""
    access, now = request.access, timezone.now()
    spent = spent_since(access, [tenant.pk], month_start(now), now).get(tenant.pk)
    meters = with_ledger(meters_of(tenant), spent or Decimal(0))
    states = slo_report(access=access, now=now, tenant_id=tenant.pk)
    links = {
        name: reverse(f"web:tenant-{name}", args=[tenant.slug])
        for name in ("limits", "usage", "slo")
    }
    keys = [key_state(key, now)[0] for key in keys_list(access=access, tenant=tenant)]
    limits_link = links["limits"]
    context = {
        "page": "tenant",
        "tiles": [
            meter_tile(meters["concurrency"], "Requests now", ""),
            meter_tile(meters["tokens"], "Tokens, last minute", limits_link),
            meter_tile(meters["requests"], "Requests, last minute", limits_link),
            budget_tile(meters["budget"], spent_in_a_day(access, tenant, now), now, links["usage"]),
            attainment_tile(states, links["slo"]),
        ],
        "meters": list(meters.values()),
        "recent": list(
            requests_list(access=access, filters=RequestFilters(tenant_id=tenant.pk))[:RECENT]
        ),
        "live_keys": sum(state in ("live", "rotating") for state in keys),
        "keys": len(keys),
        "members": members_list(access=access, tenant=tenant).count(),
        "slos": len(states),
    }
    return show_tab(request, tenant, "overview", "tenants/overview.html", context)


@tenant_view(Role.VIEWER)
@require_http_methods(["GET", "HEAD", "POST"])
def block(request: PageRequest, tenant: Tenant) -> HttpResponse:
    """Has a tenant's requests refused, after its name was typed."""
    request.access.require(Role.OPERATOR)
    keys = sum(key.is_live for key in keys_list(access=request.access, tenant=tenant))
    dialog = Dialog(
        title=f"Block {tenant.name}?",
        what="New requests of all its keys get 403 within a second, on every web process. What runs"
        " goes on to its end. Its pages stay.",
        verb=f"Block {tenant.slug}",
        back=reverse("web:tenant", args=[tenant.slug]),
        grade="C",
        facts=(
            ("Live keys", str(keys)),
            ("Requests now", meters_of(tenant)["concurrency"].words),
        ),
        undo="Undo: unblock it at any time.",
    )
    if request.method != "POST":
        return show_dialog(request, dialog, ConfirmForm(expected=tenant.slug))
    form = ConfirmForm(request.POST, expected=tenant.slug)
    return submit(
        request, dialog, form, lambda: _set_state(request, tenant, form, TenantState.BLOCKED)
    )


@tenant_view(Role.VIEWER)
@require_http_methods(["GET", "HEAD", "POST"])
def unblock(request: PageRequest, tenant: Tenant) -> HttpResponse:
    request.access.require(Role.OPERATOR)
    dialog = Dialog(
        title=f"Unblock {tenant.name}?",
        what="Requests of its keys are taken again within a second.",
        verb=f"Unblock {tenant.slug}",
        back=reverse("web:tenant", args=[tenant.slug]),
        undo="Undo: block it again.",
    )
    if request.method != "POST":
        return show_dialog(request, dialog, ActionForm())
    form = ActionForm(request.POST)
    return submit(
        request, dialog, form, lambda: _set_state(request, tenant, form, TenantState.ACTIVE)
    )


def show_tab(
    request: PageRequest, tenant: Tenant, tab: str, template: str, context: dict[str, Any],
    status: int = 200,
) -> HttpResponse:  # fmt: skip
    """Renders one of the tenant's pages with their common head."""
    tabs = [
        (
            name,
            word,
            reverse(f"web:tenant{'' if name == 'overview' else f'-{name}'}", args=[tenant.slug]),
        )
        for name, word in TABS
    ]
    about = {"tenant": tenant, "tab": tab, "tabs": tabs, "role": request.access.role_in(tenant.pk)}
    page = (
        "tenants" if request.access.sees_all or len(request.access.tenants) > 1 else context["page"]
    )
    may_manage = request.access.allows(Role.TENANT_ADMIN, tenant.pk)
    return show(
        request, template, {**context, **about, "page": page, "may_manage": may_manage}, status
    )


TABS: Final = (
    ("overview", "Overview"),
    ("keys", "Keys"),
    ("limits", "Limits"),
    ("slo", "SLO"),
    ("usage", "Usage"),
    ("members", "Members"),
)


def _set_state(
    request: PageRequest, tenant: Tenant, form: ActionForm, state: TenantState
) -> HttpResponse:
    tenant_update(
        access=request.access, tenant=tenant, changes={"state": state.value}, reason=form.why
    )
    return see("web:tenant", tenant.slug)
