"""Who did what, with what effect: the audit, its filters and its export."""

from typing import Final

from django.core.exceptions import ValidationError
from django.http import HttpResponse, HttpResponseBadRequest, HttpResponseBase
from django.utils import timezone
from django.views.decorators.http import require_safe

from controlplane.audit.export import ROWS_MAX, audit_csv
from controlplane.audit.models import AuditResult
from controlplane.audit.selectors import AuditFilters, audit_list, sees_audit
from controlplane.errors import NotAllowed
from controlplane.tenants.selectors import tenants_list
from web.audit_words import differences
from web.keyset import count_words, page_of
from web.query import Query, words_of
from web.streams import csv_response
from web.views.access import PageRequest, signed_in
from web.views.ledger import show

ROWS: Final = 50
FILTERS: Final = ("who", "action", "object", "tenant", "result", "since", "until", "q")


@signed_in
@require_safe
def audit(request: PageRequest) -> HttpResponse:
    """Lists actions, newest first; filters and place stand in the query string."""
    _require(request)
    query = Query.of(request.GET, FILTERS)
    older = request.GET.get("older", "")
    context = {
        "page": "audit",
        "query": query,
        "results": AuditResult.values,
        "tenants": tenants_list(access=request.access).values_list("slug", "name"),
        "is_older": bool(older),
        "export_max": ROWS_MAX,
        "export_query": query.link(),
        "first_link": query.link(),
    }
    try:
        rows = audit_list(access=request.access, filters=_filters(query))
        found = page_of(rows, "at", older, ROWS)
    except ValidationError as problem:
        context["problem"] = words_of(problem)
        return show(request, "audit/list.html", context, 400)
    context |= {
        "entries": [(entry, differences(entry.before, entry.after)) for entry in found.rows],
        "count": "" if older else count_words(rows, len(found.rows)),
        "older": query.link(older=found.older) if found.older else "",
    }
    return show(request, "audit/list.html", context)


@signed_in
@require_safe
def export(request: PageRequest) -> HttpResponseBase:
    """Gives the rows of the same filters as CSV."""
    _require(request)
    try:
        filters = _filters(Query.of(request.GET, FILTERS))
    except ValidationError as problem:
        return HttpResponseBadRequest(words_of(problem), content_type="text/plain; charset=utf-8")
    rows = audit_list(access=request.access, filters=filters)
    name = f"audit-{timezone.now():%Y-%m-%d-%H%M}.csv"
    return csv_response(request, audit_csv(rows), name)


def _require(request: PageRequest) -> None:
    if not sees_audit(request.access):
        raise NotAllowed("Needs the tenant admin role.")


def _filters(query: Query) -> AuditFilters:
    """Raises: ValidationError naming the field."""
    return AuditFilters(
        who=query["who"],
        action=query["action"],
        object=query["object"],
        tenant=query["tenant"],
        result=query.choice("result", AuditResult.values),
        since=query.moment("since"),
        until=query.moment("until"),
        q=query["q"],
    )
