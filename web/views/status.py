"""The status page: every part of the installation, and what to do when one does not answer."""

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from controlplane.fleet.observer import fleet_watch
from web.views.frame import operators_only, render_page


@operators_only
@require_safe
def status(request: HttpRequest) -> HttpResponse:
    picture = fleet_watch().observer.look()
    return render_page(request, "status.html", picture, {"page": "status", "parts": picture.parts})
