"""Do we keep our word, how fast is the budget burnt, and which requests broke it?"""

from datetime import datetime
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.http import Http404, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_safe

from controlplane.errors import VersionConflict
from controlplane.gateway.models import RequestRecord
from controlplane.tenants.access import Role
from controlplane.tenants.models import Slo, Tenant
from controlplane.tenants.selectors import slos_list, tenant_get, tenants_list, visible_to
from controlplane.tenants.services import slo_set
from controlplane.usage.selectors import slo_report, slow_requests
from controlplane.usage.slo_selectors import window_start
from controlplane.usage.sums import SloState
from controlplane.usage.sums_sql import slo_series_parts
from engine_pool.types import PriorityClass
from web import slo_charts, slo_words
from web.settings_fields import field_errors, read, shown
from web.settings_known import SLO_FIELDS
from web.views.access import PageRequest, signed_in
from web.views.ledger import see, show

ROWS_MAX: Final = 300
SLOW_SHOWN: Final = 20
SLOW_LOOKED_AT: Final = 200
"""Newest ones that missed, of which the slowest are shown."""
SAMPLE_MAX: Final = 5000
"""Newest requests whose times the distributions show."""
EVERYBODY: Final = "-"
"""In the address, in place of a tenant's slug: the target of all that have none of their own."""
DEFAULTS: Final = {"objective": 99.0, "window_days": 28}


@signed_in
@require_safe
def overview(request: PageRequest) -> HttpResponse:
    """Lists how every SLO stands, what needs somebody first."""
    states = slo_report(access=request.access, now=timezone.now())
    rows = [slo_words.row_of(s) for s in slo_words.in_order(states)]
    context = {
        "page": "slo",
        "rows": rows[:ROWS_MAX],
        "left_out": max(0, len(rows) - ROWS_MAX),
        "sentence": slo_words.sentence(states),
        "tenants": tenants_list(access=request.access),
        "classes": [c.value for c in PriorityClass],
        "defaults": [
            (slo, slo_words.target_words(slo))
            for slo in slos_list(access=request.access).filter(tenant=None)
        ],
        "everybody": EVERYBODY,
    }
    return show(request, "slo/list.html", context)


@signed_in
@require_http_methods(["GET", "HEAD", "POST"])
def detail(request: PageRequest, slug: str, priority_class: str) -> HttpResponse:
    """Shows one tenant in one class; POST sets the target."""
    if priority_class not in [c.value for c in PriorityClass]:
        raise Http404("There is no such class.")
    tenant = None if slug == EVERYBODY else tenant_get(access=request.access, slug=slug)
    if request.method == "POST":
        return _set(request, tenant, slug, priority_class)
    return _page(request, tenant, priority_class, {})


def _set(
    request: PageRequest, tenant: Tenant | None, slug: str, priority_class: str
) -> HttpResponse:
    texts = {name: str(value).strip()[:500] for name, value in request.POST.items()}
    values, errors = read(SLO_FIELDS, texts)
    if not errors:
        if "objective" in values:
            # 99.9 / 100 is 0.9990000000000001.
            values["objective"] = round(values["objective"] / 100, 6)
        version = int(texts["version"]) if texts.get("version", "").isdigit() else None
        try:
            slo_set(
                access=request.access, tenant=tenant, priority_class=priority_class,
                changes=values, version=version, reason=texts.get("reason", ""),
            )  # fmt: skip
            return see("web:slo-detail", slug, priority_class)
        except ValidationError as problem:
            errors, others = field_errors(problem, SLO_FIELDS)
            errors |= {"": others} if others else {}
        except VersionConflict as conflict:
            return _page(request, tenant, priority_class, {"problem": str(conflict)}, 409)
    form = {"texts": texts, "errors": errors, "problem": errors.get("", "")}
    return _page(request, tenant, priority_class, form, 400)


def _page(
    request: PageRequest,
    tenant: Tenant | None,
    priority_class: str,
    form: dict[str, Any],
    status: int = 200,
) -> HttpResponse:
    slo = slos_list(access=request.access).filter(
        tenant=tenant, priority_class=priority_class
    ).first()  # fmt: skip
    context: dict[str, Any] = {
        "page": "slo",
        "tenant": tenant,
        "slug": EVERYBODY if tenant is None else tenant.slug,
        "priority_class": priority_class,
        "slo": slo,
        "may_set": request.access.allows(Role.OPERATOR),
        "fields": shown(SLO_FIELDS, _values(slo), form.get("errors"), form.get("texts")),
        "problem": form.get("problem", ""),
        "reason": form.get("texts", {}).get("reason", ""),
        "version": form.get("texts", {}).get("version") or (slo.version if slo else ""),
        "is_tried": bool(form),
    }
    state = _state(request, tenant, priority_class)
    if state is not None:
        context |= _standing(request, state)
    return show(request, "slo/detail.html", context, status)


def _state(request: PageRequest, tenant: Tenant | None, priority_class: str) -> SloState | None:
    if tenant is None:
        return None
    found = slo_report(access=request.access, now=timezone.now(), tenant_id=tenant.pk)
    return next((s for s in found if s.priority_class == priority_class), None)


def _standing(request: PageRequest, state: SloState) -> dict[str, Any]:
    since = window_start(timezone.now(), state.window_days)
    budget = slo_charts.budget_over_time(state.objective, _hours(state, since))
    times = list(
        visible_to(request.access, RequestRecord.objects.all())
        .filter(tenant_id=state.tenant_id, arrived_at__gte=since,
                priority_class=state.priority_class.value)
        .order_by("-arrived_at")
        .values_list("ttft_ms", "tpot_ms")[:SAMPLE_MAX]
    )  # fmt: skip
    ttft = slo_charts.bins_of([t for t, _ in times if t is not None], state.target.ttft_ms)
    tpot = slo_charts.bins_of([t for _, t in times if t is not None], state.target.tpot_ms)
    slow = slow_requests(
        access=request.access, tenant_id=state.tenant_id, priority_class=state.priority_class,
        since=since, limit=SLOW_LOOKED_AT,
    )  # fmt: skip
    return {
        "state": state,
        "row": slo_words.row_of(state),
        "charts": slo_charts.charts(state, budget, ttft, tpot),
        "chart_data": slo_charts.data(state, budget, ttft, tpot),
        "slow": slo_words.slow_rows(slow)[:SLOW_SHOWN],
        "slow_of": len(slow),
        "missed": state.requests - state.met,
    }


def _hours(state: SloState, since: datetime) -> dict[datetime, tuple[int, int]]:
    """Returns requests that count and those that met their targets, by the hour."""
    found: dict[datetime, tuple[int, int]] = {}
    rows = slo_series_parts(tenants=[state.tenant_id], start=since, by_day=False)
    for _, name, at, requests, met in rows:
        if name == state.priority_class.value:
            known = found.get(at, (0, 0))
            found[at] = (known[0] + requests, known[1] + met)
    return found


def _values(slo: Slo | None) -> dict[str, Any]:
    if slo is None:
        return dict(DEFAULTS)
    return {
        "ttft_ms": slo.ttft_ms,
        "tpot_ms": slo.tpot_ms,
        "objective": round(slo.objective * 100, 4),
        "window_days": slo.window_days,
    }
