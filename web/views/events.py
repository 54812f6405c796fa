"""Older events, from the database: a page, or more rows for the cluster page's list."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from controlplane.fleet.models import FleetEventRecord
from controlplane.fleet.picture import EventRow, event_key
from controlplane.fleet.watch import fleet_watch
from controlplane.scaling.events import KIND_PREFIX
from controlplane.scaling.models import ScalingDecision
from controlplane.tenants.access import Role
from web.scaling_words import key_of
from web.views.access import needs
from web.views.frame import render_page

ROWS: Final = 50


def _links(found: Iterable[FleetEventRecord]) -> dict[datetime, str]:
    """Returns the addresses of the decisions that some of the events tell of, by their times."""
    times = [r.at for r in found if r.kind.startswith(KIND_PREFIX)]
    decisions = ScalingDecision.objects.filter(at__in=times) if times else ()
    return {
        d.at: f"{reverse('web:scaling-decision', args=[key_of(d)])}?pool={d.pool}"
        for d in decisions
    }


@needs(Role.VIEWER)
@require_safe
def events(request: HttpRequest) -> HttpResponse:
    """Lists the newest 50 events before a time (`before`, unix seconds; default: now)."""
    text = request.GET.get("before", "")
    try:
        before = datetime.fromtimestamp(float(text), UTC) if text else datetime.now(UTC)
    except (ValueError, OverflowError, OSError):
        return HttpResponseBadRequest("before: expected unix seconds")
    found = FleetEventRecord.objects.filter(at__lt=before).order_by("-at")[: ROWS + 1]
    links = _links(found)
    rows = [
        EventRow(
            r.at.timestamp(), r.kind, r.headline, r.detail, r.instance, r.severity,
            links.get(r.at, "") if r.kind.startswith(KIND_PREFIX) else "",
        )
        for r in found
    ]  # fmt: skip
    context = {
        "page": "events",
        "events": [(event_key(row), row) for row in rows[:ROWS]],
        "before": f"{rows[ROWS - 1].at_unix_s:.6f}" if len(rows) > ROWS else "",
    }
    if getattr(request, "htmx", False):
        return render(request, "events/rows.html", context)
    return render_page(request, "events/page.html", fleet_watch().observer.look(), context)
