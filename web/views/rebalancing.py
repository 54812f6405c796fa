"""The dialogs that pause automatic moves and let them begin again."""

from typing import Any, Final

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from controlplane.fleet.rebalancing import MINUTES_MAX, rebalancing_pause, rebalancing_resume
from controlplane.fleet.watch import fleet_watch
from controlplane.tenants.access import Role
from engine_pool.errors import MoveRefused, PoolError
from web.views.access import needs
from web.views.frame import render_page

UNTIL_RESUMED: Final = "resumed"
CHOICES: Final = (
    ("15", "15 minutes"),
    ("60", "1 hour"),
    (UNTIL_RESUMED, "until somebody resumes it"),
)
REASON_MAX_CHARS: Final = 500


@needs(Role.OPERATOR)
@require_http_methods(["GET", "HEAD", "POST"])
def pause(request: HttpRequest) -> HttpResponse:
    """Shows the dialog, or pauses rebalancing and goes back to the cluster."""
    wanted = request.POST.get("minutes", CHOICES[0][0])[:10]
    reason = request.POST.get("reason", "")[:REASON_MAX_CHARS]
    context = {"wanted": wanted, "reason": reason, "choices": CHOICES}
    form = "rebalancing/pause.html"
    if request.method != "POST":
        return _dialog(request, form, context, "", 200)
    is_number = wanted.isascii() and wanted.isdigit()
    if wanted != UNTIL_RESUMED and not (is_number and 1 <= int(wanted) <= MINUTES_MAX):
        said = f"minutes: choose 1 to {MINUTES_MAX:,}, or until somebody resumes it."
        return _dialog(request, form, context, said, 400)
    minutes = None if wanted == UNTIL_RESUMED else int(wanted)
    try:
        rebalancing_pause(user=request.user, minutes=minutes, reason=reason)
    except PoolError as error:
        return _dialog(request, form, context, str(error), 503)
    return _to_cluster()


@needs(Role.OPERATOR)
@require_http_methods(["GET", "HEAD", "POST"])
def resume(request: HttpRequest) -> HttpResponse:
    """Shows the dialog, or resumes rebalancing and goes back to the cluster."""
    reason = request.POST.get("reason", "")[:REASON_MAX_CHARS]
    context = {"reason": reason}
    form = "rebalancing/resume.html"
    if request.method != "POST":
        return _dialog(request, form, context, "", 200)
    try:
        rebalancing_resume(user=request.user, reason=reason)
    except PoolError as error:
        status = 409 if isinstance(error, MoveRefused) else 503
        return _dialog(request, form, context, str(error), status)
    return _to_cluster()


def _to_cluster() -> HttpResponse:
    response = HttpResponseRedirect(reverse("web:cluster"))
    response.status_code = 303
    return response


def _dialog(
    request: HttpRequest, form: str, context: dict[str, Any], error: str, status: int
) -> HttpResponse:
    picture = fleet_watch().observer.look()
    context |= {
        "page": "cluster",
        "form": form,
        "error": error,
        "now": picture.rebalancing,
        "going_on": sum(move.took_s is None for move in picture.moves.values()),
    }
    if getattr(request, "htmx", False):
        response = render(request, form, context)
        response["Cache-Control"] = "no-store"
    else:
        response = render_page(request, "rebalancing/page.html", picture, context)
    response.status_code = status
    return response
