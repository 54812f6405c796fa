"""A tenant's targets: what is promised in each class, and how it stands."""

from dataclasses import dataclass

from django.http import Http404, HttpResponse
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_safe

from controlplane.tenants.access import Role
from controlplane.tenants.models import Slo, Tenant
from controlplane.tenants.selectors import slos_list
from controlplane.tenants.services import slo_remove, slo_set
from controlplane.usage.selectors import slo_report
from controlplane.usage.sums import SloState
from engine_pool.types import PriorityClass
from web.action_forms import ActionForm
from web.ledger_words import lasts, percent
from web.tenant_dialog import Dialog, show_dialog, submit
from web.tenant_forms import SloForm
from web.views.access import PageRequest, tenant_view
from web.views.ledger import see
from web.views.tenants import show_tab


@dataclass(frozen=True, slots=True)
class ClassRow:
    """One class. `own`: the tenant's SLO; `common`: the one for everybody, which holds without."""

    name: str
    own: Slo | None
    common: Slo | None
    state: SloState | None
    detail_url: str

    @property
    def slo(self) -> Slo | None:
        return self.own or self.common


@tenant_view(Role.VIEWER)
@require_safe
def slo(request: PageRequest, tenant: Tenant) -> HttpResponse:
    """Shows targets and how they are kept, by class."""
    states = slo_report(access=request.access, now=timezone.now(), tenant_id=tenant.pk)
    by_class = {state.priority_class: state for state in states}
    rows = [
        ClassRow(c.value, *_slos(request, tenant, c), by_class.get(c), _detail_url(tenant, c))
        for c in sorted(PriorityClass, key=lambda c: c.rank)
    ]
    context = {"page": "slo", "rows": rows}
    return show_tab(request, tenant, "slo", "tenants/slo.html", context)


@tenant_view(Role.VIEWER)
@require_http_methods(["GET", "HEAD", "POST"])
def targets(request: PageRequest, tenant: Tenant, priority_class: str) -> HttpResponse:
    """Sets the tenant's targets in a class."""
    request.access.require(Role.OPERATOR)
    own, common = _slos(request, tenant, _class(priority_class))
    dialog = Dialog(
        title=f"Targets of {tenant.name}, {priority_class}",
        what="Requests that come from now on are judged by these; earlier ones keep the targets"
        " that they came with.",
        verb="Set the targets",
        back=reverse("web:tenant-slo", args=[tenant.slug]),
        facts=(
            (
                "Now",
                _words(own) if own else f"{_words(common)} (everybody's)" if common else "none",
            ),
        ),
        undo="Undo: set them back.",
    )
    if request.method != "POST":
        return show_dialog(
            request, dialog, SloForm.filled(own or common, own.version if own else None)
        )
    form = SloForm(request.POST)

    def act() -> HttpResponse:
        slo_set(
            access=request.access, tenant=tenant, priority_class=priority_class,
            changes=form.values, version=form.cleaned_data["version"], reason=form.why,
        )  # fmt: skip
        return see("web:tenant-slo", tenant.slug)

    return submit(request, dialog, form, act)


@tenant_view(Role.VIEWER)
@require_http_methods(["GET", "HEAD", "POST"])
def remove(request: PageRequest, tenant: Tenant, priority_class: str) -> HttpResponse:
    """Takes the tenant's own targets away: those for everybody hold then."""
    request.access.require(Role.OPERATOR)
    own, common = _slos(request, tenant, _class(priority_class))
    if own is None:
        raise Http404("The tenant has no targets of its own in this class.")
    dialog = Dialog(
        title=f"Take back the targets of {tenant.name}, {priority_class}?",
        what="Requests that come from now on are judged by everybody's targets, if there are any.",
        verb="Take them back",
        back=reverse("web:tenant-slo", args=[tenant.slug]),
        facts=(("Now", _words(own)), ("Then", _words(common) if common else "no target")),
        undo="Undo: set them again.",
    )
    if request.method != "POST":
        return show_dialog(request, dialog, ActionForm())
    form = ActionForm(request.POST)

    def act() -> HttpResponse:
        slo_remove(access=request.access, slo=own, reason=form.why)
        return see("web:tenant-slo", tenant.slug)

    return submit(request, dialog, form, act)


def _slos(
    request: PageRequest, tenant: Tenant, priority_class: PriorityClass
) -> tuple[Slo | None, Slo | None]:
    """Returns the tenant's SLO of a class, and everybody's."""
    rows = slos_list(access=request.access).filter(priority_class=priority_class.value)
    return rows.filter(tenant=tenant).first(), rows.filter(tenant=None).first()


def _class(name: str) -> PriorityClass:
    try:
        return PriorityClass(name)
    except ValueError:
        raise Http404(f"There is no class {name!r}.") from None


def _words(slo: Slo) -> str:
    parts = [
        f"{what} {lasts(target)}"
        for what, target in (("TTFT", slo.ttft_ms), ("TPOT", slo.tpot_ms))
        if target is not None
    ]
    return f"{', '.join(parts)} for {percent(slo.objective)} of {slo.window_days} days"


def _detail_url(tenant: Tenant, priority_class: PriorityClass) -> str:
    try:
        return reverse("web:slo-detail", args=[tenant.slug, priority_class.value])
    except NoReverseMatch:
        return ""
