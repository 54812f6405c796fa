"""Would moving work here, at what cost? The last measurement, and a button for a new one."""

from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from controlplane.fleet.preflight import LENGTHS
from controlplane.fleet.preflight_run import preflight_get, preflight_measure
from controlplane.fleet.preflight_values import PreflightReport
from controlplane.fleet.watch import fleet_watch
from controlplane.tenants.access import Role
from engine_pool.errors import PoolError
from web import preflight_words
from web.move_units import milliseconds, plural
from web.views.access import needs
from web.views.frame import render_page

LENGTHS_MAX = 8
TOKENS_MAX = 10_000_000


@needs(Role.VIEWER, to_post=Role.OPERATOR)
@require_http_methods(["GET", "HEAD", "POST"])
def preflight(request: HttpRequest) -> HttpResponse:
    """Shows the last result; POST measures anew and comes back here."""
    text = request.POST.get("lengths", ", ".join(map(str, LENGTHS)))[:100]
    if request.method != "POST":
        return _page(request, text)
    try:
        lengths = lengths_of(text)
    except ValueError as error:
        return _page(request, text, str(error), 400)
    try:
        preflight_measure(lengths)
    except PoolError as error:
        return _page(request, text, str(error), 409)
    response = HttpResponseRedirect(reverse("web:preflight"))
    response.status_code = 303
    return response


def lengths_of(text: str) -> list[int]:
    """Reads "128, 1024". Raises: ValueError that says what is expected."""
    parts = [part for part in text.replace(",", " ").split() if part]
    expected = f"Lengths: expected up to {LENGTHS_MAX} whole numbers of tokens, at least 1."
    if not parts or len(parts) > LENGTHS_MAX:
        raise ValueError(expected)
    if not all(p.isascii() and p.isdigit() and 1 <= int(p) <= TOKENS_MAX for p in parts):
        raise ValueError(expected)
    return [int(part) for part in parts]


def _page(request: HttpRequest, lengths: str, error: str = "", status: int = 200) -> HttpResponse:
    picture = fleet_watch().observer.look()
    report: PreflightReport | None = None
    try:
        report = preflight_get()
    except PoolError as refusal:
        error = error or str(refusal)
    context: dict[str, Any] = {
        "page": "migrations",
        "report": report,
        "lengths": lengths,
        "error": error,
    }
    if report is not None:
        context |= {
            "matrix": preflight_words.matrix(report),
            "columns": report.serving[: preflight_words.MATRIX_MAX],
            "left_out": len(report.left_out),
            "forecasts": preflight_words.forecast_rows(report),
            "obstacles": preflight_words.obstacle_rows(report),
            "step": milliseconds(report.step_ms),
            "block_words": plural(report.block_size_tokens or 0, "token"),
            "is_old": set(report.serving)
            != {name for name, row in picture.rows.items() if row.state == "serving"},
        }
    response = render_page(request, "migrations/preflight.html", picture, context)
    response.status_code = status
    return response
