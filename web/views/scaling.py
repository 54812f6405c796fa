"""Why are there this many instances? The loop's state, its decisions, and one of them."""

from datetime import datetime
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.http import Http404, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from controlplane.fleet.models import FleetEventRecord, Pool, ScalingMode
from controlplane.fleet.observer import Picture
from controlplane.fleet.parts import scaling_stands_still
from controlplane.fleet.pool_selectors import pool_get, pools_list
from controlplane.fleet.pool_services import pool_update
from controlplane.fleet.watch import Watch, fleet_watch
from controlplane.scaling.live import Seen, pool_seen
from controlplane.scaling.models import DecisionKind, ScalingDecision
from controlplane.scaling.selectors import decisions_list, scaling_now, windows_list
from controlplane.tenants.access import Role
from engine_pool.errors import ConfigError
from web import scaling_charts, scaling_words
from web.keyset import page_of
from web.query import Choice, Query, words_of
from web.views.access import PageRequest, needs
from web.views.frame import render_page

PAGE: Final = "scaling"
ROWS: Final = 50
POINTS_READ_MAX: Final = 4000
"""Rows of a day: 1,440 heartbeats, and what was decided."""
LED_TO_SHOWN: Final = 8
ALL: Final = "all"
KINDS: Final = (
    Choice("", "Decisions"),
    Choice("changes", "Changes"),
    Choice("refused", "Refused"),
    Choice("hold", "Held still"),
    Choice(ALL, "With heartbeats"),
)
_SHOWN: Final = {
    "": [k.value for k in DecisionKind if k is not DecisionKind.HEARTBEAT],
    "changes": [k.value for k in scaling_words.WOULD],
    "refused": [DecisionKind.REFUSED.value],
    "hold": [DecisionKind.HOLD.value],
    ALL: [],
}
FILTERS: Final = ("pool", "range", "kind")


@needs(Role.VIEWER)
@require_safe
def scaling(request: PageRequest) -> HttpResponse:
    """Shows the page's pool; a script asks for it again and again."""
    if not pools_list().exists():
        # Before the first start has written its pool down.
        return redirect("web:pools")
    return _page(request, {})


@needs(Role.OPERATOR)
@require_POST
def mode(request: PageRequest) -> HttpResponse:
    """Sets whether scaling is off, advises or acts, and goes back to the page."""
    pool = pool_get(fleet_watch().pool)
    wanted = request.POST.get("mode", "")[:20]
    if wanted not in ScalingMode.values:
        return _page(request, {"problem": f"mode: is none of {', '.join(ScalingMode.values)}"}, 400)
    try:
        pool_update(access=request.access, pool=pool, changes={"scaling_mode": wanted})
    except ValidationError as problem:
        return _page(request, {"problem": words_of(problem)}, 400)
    response = redirect(f"{reverse('web:scaling')}{Query.of(request.GET, FILTERS).link()}")
    response.status_code = 303
    return response


@needs(Role.VIEWER)
@require_safe
def decision(request: PageRequest, key: str) -> HttpResponse:
    """Shows one decision with its numbers, and what it led to."""
    named = scaling_words.tick_of(key)
    rows = decisions_list(access=request.access)
    found = named and rows.filter(pool=named[0], tick=named[1]).first()
    if not found:
        raise Http404("There is no such decision.")
    later = list(rows.filter(pool=found.pool, tick__gt=found.tick).order_by("tick")[:LED_TO_SHOWN])
    context = {
        "page": PAGE,
        "row": found,
        "told": scaling_words.row_of(found),
        "title": scaling_words.title_of(found),
        "why": scaling_words.as_sentence(scaling_words.reason_words(found.reason)),
        "tiles": scaling_words.decision_tiles(found),
        "events": _events_after(found, later),
        "later": [scaling_words.row_of(row) for row in later],
    }
    return render_page(request, "scaling/decision.html", fleet_watch().observer.look(), context)


def _page(request: PageRequest, more: dict[str, Any], status: int = 200) -> HttpResponse:
    watch, at = fleet_watch(), timezone.now()
    picture = watch.observer.look()
    query = Query.of(request.GET, FILTERS)
    older = request.GET.get("older", "")
    pool = pool_get(watch.pool)
    context = {"page": PAGE, "query": query, "pool": pool, "is_older": bool(older), **more}
    try:
        query.choice("kind", [c.key for c in KINDS])
        query.choice("range", scaling_charts.SPANS)
        context |= _decisions(request, pool, query, older)
    except ValidationError as problem:
        context["problem"] = words_of(problem)
        status = 400
    context |= _standing(request, watch, picture, pool, at)
    context |= _chart(request, pool, context["seen"], query, at) if status == 200 else {}
    response = render_page(request, "scaling/page.html", picture, context)
    response.status_code = status
    return response


def _standing(
    request: PageRequest, watch: Watch, picture: Picture, pool: Pool, at: datetime
) -> dict[str, Any]:
    now = scaling_now(access=request.access, pool=pool, now=at)
    seen = _seen(watch, pool, picture)
    held = picture.totals.held
    still = scaling_stands_still(picture.parts) if now.mode is not ScalingMode.OFF else ""
    windows = windows_list(access=request.access, pool=pool.name)
    return {
        "now": now,
        "seen": seen,
        "still": still,
        "sentence": scaling_words.sentence(now, seen, pool, still, at),
        "tiles": scaling_words.tiles(now, seen, pool, held, at),
        "modes": list(ScalingMode.choices),
        "way": [scaling_words.way_row(one) for one in (seen.on_their_way if seen else ())],
        "windows": [scaling_words.window_row(w, now.bounds) for w in windows],
    }


def _seen(watch: Watch, pool: Pool, picture: Picture) -> Seen | None:
    """Returns the pool as it is now; None when its settings cannot be or nobody can tell."""
    view = watch.client.view
    if not view.store_connected:
        return None
    try:
        return pool_seen(pool, dict(view.statuses), dict(view.loads), picture.at_unix_s)
    except ConfigError:
        return None


def _chart(
    request: PageRequest, pool: Pool, seen: Seen | None, query: Query, at: datetime
) -> dict[str, Any]:
    span = query["range"] or scaling_charts.SPAN_DEFAULT
    start = at - scaling_charts.SPANS[span]
    rows = decisions_list(access=request.access, pool=pool.name, since=start)[:POINTS_READ_MAX]
    newest = None
    if seen is not None:
        newest = scaling_charts.Point(at, seen.average_steps, seen.wanted, seen.serving)
    band = (pool.band_low_steps, pool.band_high_steps)
    return {
        "chart": scaling_charts.chart_of(list(rows), newest, band, start, at),
        "span": span,
        "span_words": scaling_charts.SPAN_WORDS[span],
        "spans": [
            (w, query.link(range=k), k == span) for k, w in scaling_charts.SPAN_WORDS.items()
        ],
    }


def _decisions(request: PageRequest, pool: Pool, query: Query, older: str) -> dict[str, Any]:
    """Raises: ValidationError for a place that is none of the list's."""
    rows = decisions_list(access=request.access, pool=pool.name, kinds=_SHOWN[query["kind"]])
    page = page_of(rows, "at", older, ROWS)
    return {
        "rows": [scaling_words.row_of(row) for row in page.rows],
        "older": query.link(older=page.older) if page.older else "",
        "first_link": query.link(),
        "kinds": [(c, query.link(kind=c.key), c.key == query["kind"]) for c in KINDS],
    }


def _events_after(
    found: ScalingDecision, later: "list[ScalingDecision]"
) -> "list[FleetEventRecord]":
    """Returns what happened to the decision's instance until the next change."""
    if not found.instance:
        return []
    rows = FleetEventRecord.objects.filter(instance=found.instance, at__gte=found.at)
    changes = [row.at for row in later if scaling_words.is_change(row)]
    if changes:
        rows = rows.filter(at__lt=changes[0])
    return list(rows.order_by("at")[:LED_TO_SHOWN])
