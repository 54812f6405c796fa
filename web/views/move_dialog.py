"""The dialog that moves a request: where it could go, at what cost, and the press itself."""

from typing import Any, Final, NamedTuple

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from controlplane.fleet.moves import migration_plan, migration_request
from controlplane.fleet.picture import BAND_STEPS, SHORT_BELOW_STEPS, Band
from controlplane.fleet.preflight_run import preflight_get
from controlplane.fleet.watch import fleet_watch
from controlplane.tenants.access import Role
from engine_pool.errors import InstanceLost, MoveRefused, PoolError, RequestNotRunning
from engine_pool.moves import MovePlan
from engine_pool.policy.destinations import Destination
from web.move_units import megabytes, plural, steps
from web.preflight_words import forecast_for
from web.views.access import needs
from web.views.frame import render_page

FREEST: Final = ""
"""The choice of no instance in particular: the freest at the moment of the press."""
REASON_MAX_CHARS: Final = 500
UNFIT_SHOWN: Final = 12
"""Instances that cannot take it are listed so far; a pool of 500 would fill the dialog."""
FIT_SHOWN: Final = 12


class Choice(NamedTuple):
    """One destination as the dialog lists it."""

    instance: str
    freeness_now: str
    freeness_after: str
    warning: str
    why_not: str


@needs(Role.OPERATOR)
@require_http_methods(["GET", "HEAD", "POST"])
def migrate(request: HttpRequest, request_id: str) -> HttpResponse:
    """Shows the dialog, or moves the request and goes to the move's page."""
    wanted = request.POST.get("destination", request.GET.get("destination", FREEST))[:64]
    reason = request.POST.get("reason", "")[:REASON_MAX_CHARS]
    if request.method != "POST":
        return _dialog(request, request_id, wanted, reason, "", 200)
    if "destination" not in request.POST:
        return _dialog(request, request_id, wanted, reason, "Choose where it goes.", 400)
    if not reason.strip():
        return _dialog(request, request_id, wanted, reason, "Say why: it goes into the log.", 400)
    try:
        move = migration_request(
            user=request.user, request_id=request_id, destination=wanted or None, reason=reason
        )
    except (MoveRefused, RequestNotRunning) as error:
        return _dialog(request, request_id, wanted, reason, str(error), 409)
    except InstanceLost as error:
        said = f"{error} Whether the move began will show under Migrations."
        return _dialog(request, request_id, wanted, reason, said, 503)
    response = HttpResponseRedirect(reverse("web:migration", args=[move.migration_id]))
    response.status_code = 303
    return response


def choices_of(plan: MovePlan, band: Band = BAND_STEPS) -> tuple[list[Choice], list[Choice]]:
    """Returns the destinations that fit, the freest afterwards first, and those that do not.
    `band`: of the pool's scaling."""
    every = [_choice(place, band) for place in plan.destinations]
    return [c for c in every if not c.why_not], [c for c in every if c.why_not]


def size_words(plan: MovePlan, token_bytes: int | None) -> str:
    """Says what is to be copied. `token_bytes`: KV bytes of a token, None when nobody knows."""
    if plan.is_queued:
        return "nothing: it waits in the queue and holds no KV"
    tokens = plural(plan.request.kv_tokens, "token")
    if token_bytes is None:
        return f"{tokens} of KV cache"
    return f"{megabytes(plan.request.kv_tokens * token_bytes)} MB of KV cache, {tokens}"


def _measured(plan: MovePlan) -> tuple[int | None, str]:
    """Returns KV bytes of a token and what the move would take, as far as anybody measured it."""
    token_bytes = fleet_watch().observer.kv_token_bytes()
    try:
        report = preflight_get()
    except PoolError:
        report = None
    if report is None:
        return token_bytes, ""
    forecast = "" if plan.is_queued else forecast_for(report.forecasts, plan.request.kv_tokens)
    return report.token_bytes or token_bytes, forecast


def _choice(place: Destination, band: Band) -> Choice:
    after = place.freeness_after_steps
    warning = ""
    if not place.why_not and after is not None:
        if after < min(SHORT_BELOW_STEPS, band[0]):
            warning = f"short of room afterwards (under {SHORT_BELOW_STEPS})"
        elif after < band[0]:
            warning = f"under the band of {band[0]:g} afterwards"
    return Choice(
        place.instance, steps(place.freeness_now_steps), steps(after), warning, place.why_not
    )


def _dialog(
    request: HttpRequest, request_id: str, wanted: str, reason: str, error: str, status: int
) -> HttpResponse:
    picture = fleet_watch().observer.look()
    context: dict[str, Any] = {
        "page": "cluster",
        "request_id": request_id,
        "wanted": wanted,
        "reason": reason,
        "error": error,
        "now_unix_s": picture.at_unix_s,
    }
    try:
        plan = migration_plan(request_id=request_id)
    except PoolError as refusal:
        context["error"] = error or str(refusal)
        status = 404 if isinstance(refusal, RequestNotRunning) and status == 200 else status
    else:
        fit, unfit = choices_of(plan, fleet_watch().observer.look().band)
        token_bytes, forecast = _measured(plan)
        if wanted and not any(c.instance == wanted for c in fit):
            why = next((c.why_not for c in unfit if c.instance == wanted), "there is none")
            context["error"] = error or f"{wanted} cannot take it: {why}."
        context |= {
            "plan": plan,
            "size": size_words(plan, token_bytes),
            "forecast": forecast,
            "source_freeness": steps(plan.source_freeness_steps),
            "fit": [c for i, c in enumerate(fit) if i < FIT_SHOWN or c.instance == wanted],
            "fit_left_out": max(0, len(fit) - FIT_SHOWN),
            "unfit": unfit[:UNFIT_SHOWN],
            "unfit_left_out": max(0, len(unfit) - UNFIT_SHOWN),
            "report_age": f"{max(0.0, plan.report_age_s):.1f} s",
            "is_old": plan.report_age_s > 2.0,
        }
    template = "requests/migrate.html" if getattr(request, "htmx", False) else None
    if template is None:
        response = render_page(request, "requests/migrate_page.html", picture, context)
    else:
        response = render(request, template, context)
        response["Cache-Control"] = "no-store"
    response.status_code = status
    return response
