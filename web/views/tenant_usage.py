"""What a tenant used: over time as a chart, by model, key or class as a table, and as CSV."""

from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from django.http import HttpResponse, HttpResponseBase
from django.utils import timezone
from django.views.decorators.http import require_safe

from controlplane.tenants.access import Access, Role
from controlplane.tenants.models import Tenant
from controlplane.usage.export import usage_csv
from controlplane.usage.selectors import usage_rows
from controlplane.usage.sums import GroupBy, UsageSum
from web.query import Query
from web.streams import csv_response
from web.tenant_usage import chart_data, in_steps, total_of
from web.views.access import PageRequest, tenant_view
from web.views.tenants import show_tab


class Range(NamedTuple):
    """A span that ends now. `step`: what a bar of the chart covers."""

    word: str
    length: timedelta
    step: GroupBy


RANGES: Final = {
    "24h": Range("24 hours", timedelta(hours=24), "hour"),
    "7d": Range("7 days", timedelta(days=7), "hour"),
    "30d": Range("30 days", timedelta(days=30), "day"),
    "90d": Range("90 days", timedelta(days=90), "day"),
    "365d": Range("12 months", timedelta(days=365), "month"),
}
GROUPS: Final[dict[str, tuple[GroupBy, str]]] = {
    "model": ("model", "Model"),
    "key": ("key", "Key"),
    "class": ("class", "Class"),
}


@tenant_view(Role.VIEWER)
@require_safe
def usage(request: PageRequest, tenant: Tenant) -> HttpResponse:
    """Shows the usage; range and group stand in the address."""
    query, span, group = _asked(request)
    now = timezone.now()
    since = now - RANGES[span].length
    step = RANGES[span].step
    times = in_steps(_rows(request.access, tenant, since, now, step), since, now, step)
    groups = _rows(request.access, tenant, since, now, GROUPS[group][0])
    total = total_of(groups)
    context: dict[str, Any] = {
        "page": "tenant-usage",
        "span": span,
        "span_word": RANGES[span].word,
        "spans": [(key, r.word, query.link(range=key)) for key, r in RANGES.items()],
        "group": group,
        "group_word": GROUPS[group][1],
        "groups": [(key, word, query.link(group=key)) for key, (_, word) in GROUPS.items()],
        "step": step,
        "rows": groups,
        "times": [row for row in times if row.requests],
        "total": total,
        "chart": chart_data(times, step),
        "csv_query": query.link(range=span, group=group),
    }
    return show_tab(request, tenant, "usage", "tenants/usage.html", context)


@tenant_view(Role.VIEWER)
@require_safe
def download(request: PageRequest, tenant: Tenant) -> HttpResponseBase:
    """Gives the table's rows as CSV; `group` may also be hour, day or month."""
    _, span, group = _asked(request)
    by: GroupBy = GROUPS[group][0]
    if request.GET.get("group") == "time":
        by = RANGES[span].step
    now = timezone.now()
    rows = _rows(request.access, tenant, now - RANGES[span].length, now, by)
    return csv_response(request, usage_csv(rows), f"usage-{tenant.slug}-{span}-{by}.csv")


def _asked(request: PageRequest) -> tuple[Query, str, str]:
    query = Query.of(request.GET, ("range", "group"))
    span = query["range"] if query["range"] in RANGES else "7d"
    group = query["group"] if query["group"] in GROUPS else "model"
    return query, span, group


def _rows(
    access: Access, tenant: Tenant, since: datetime, until: datetime, group_by: GroupBy
) -> list[UsageSum]:
    return usage_rows(
        access=access, tenants=[tenant.pk], since=since, until=until, group_by=group_by
    )
