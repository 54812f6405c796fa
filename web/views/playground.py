"""The playground: does the model answer, how fast, and from which instance?"""

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from controlplane.fleet.observer import fleet_watch
from web.views.frame import operators_only, render_page


@operators_only
@require_safe
def playground(request: HttpRequest) -> HttpResponse:
    picture = fleet_watch().observer.look()
    return render_page(request, "playground/page.html", picture, {"page": "playground"})
