"""What moved, at what cost, why: the list of moves, and the page of one."""

from datetime import timedelta
from typing import Final
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from controlplane.fleet import move_selectors as selectors
from controlplane.fleet.moves import migration_cancel
from controlplane.fleet.watch import fleet_watch
from controlplane.tenants.access import Role
from engine_pool.errors import PoolError
from migration.report import MoveReport, MoveState
from web import gantt, gaps, move_tiles, move_words
from web.scatter import scatter
from web.views.access import needs
from web.views.frame import render_page

ROWS: Final = 100
WINDOW: Final = timedelta(hours=24)
"""What the scatter and the counts of the list page cover."""
STATES: Final = (
    ("", "All"),
    (selectors.GOES_ON, "Going on"),
    ("committed", "Committed"),
    ("aborted", "Aborted"),
)


@needs(Role.VIEWER)
@require_safe
def migrations(request: HttpRequest) -> HttpResponse:
    """Lists moves, newest first; filters stand in the query string."""
    picture = fleet_watch().observer.look()
    state = request.GET.get("state", "")
    state = state if state in dict(STATES) else ""
    instance = request.GET.get("instance", "").strip()[:64]
    code = request.GET.get("reason", "").strip()[:32]
    filters = selectors.MigrationFilters(
        state=state or None, instance=instance or None, abort_code=code or None
    )
    page = selectors.migrations_list(filters, ROWS)
    since = timezone.now() - WINDOW
    points = selectors.downtime_points(since)
    context = {
        "page": "migrations",
        "moves": page.moves,
        "left_out": page.left_out,
        "state": state,
        "instance": instance,
        "reason": code,
        "is_filtered": bool(state or instance or code),
        "states": [
            (key, word, urlencode(_given(state=key, instance=instance))) for key, word in STATES
        ],
        "instances": list(picture.rows),
        "scatter": scatter(points),
        "points": len(points),
        "aborts": selectors.aborts_by_reason(since),
    }
    return render_page(request, "migrations/list.html", picture, context)


@needs(Role.VIEWER)
@require_safe
def migration(request: HttpRequest, migration_id: str) -> HttpResponse:
    """Shows one move; a script asks for the fragment again and again while it goes on."""
    return _one(request, migration_id)


@needs(Role.OPERATOR)
@require_POST
def cancel(request: HttpRequest, migration_id: str) -> HttpResponse:
    """Ends a move that goes on, and goes back to its page, which says what came of it."""
    try:
        migration_cancel(user=request.user, migration_id=migration_id)
    except PoolError as error:
        return _one(request, migration_id, error=str(error), status=409)
    response = HttpResponseRedirect(reverse("web:migration", args=[migration_id]))
    response.status_code = 303
    return response


def _one(
    request: HttpRequest, migration_id: str, *, error: str = "", status: int = 200
) -> HttpResponse:
    detail = selectors.migration_get(migration_id)
    if detail is None:
        raise Http404("There is no move of this id.")
    picture = fleet_watch().observer.look()
    report = detail.report
    context = {
        "page": "migrations",
        "move": report,
        "words": move_words.words_of(report, picture.at_unix_s),
        "is_silent": move_words.is_silent(report, picture.at_unix_s),
        "can_cancel": move_words.can_cancel(report),
        "can_move_back": _can_move_back(report),
        "tiles": move_tiles.tiles_of(report),
        "overview": gantt.overview(report),
        "enlarged": gantt.enlarged(report),
        "gaps": gaps.gap_plot(report),
        "stages": move_words.stage_rows(report),
        "why": move_words.why_facts(report),
        "now_unix_s": picture.at_unix_s,
        "error": error,
    }
    if getattr(request, "htmx", False):
        response = render(request, "migrations/move.html", context)
        response["Cache-Control"] = "no-store"
    else:
        response = render_page(request, "migrations/page.html", picture, context)
    response.status_code = status
    return response


def _can_move_back(report: MoveReport) -> bool:
    load = fleet_watch().observer.load(report.destination)
    if report.state is not MoveState.COMMITTED or load is None:
        return False
    return any(r.request_id == report.request_id for r in (*load.running, *load.waiting))


def _given(**values: str) -> dict[str, str]:
    return {name: value for name, value in values.items() if value}
