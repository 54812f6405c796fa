"""The status page: every part of the installation, and what to do when one does not answer."""

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe

from controlplane.fleet.watch import fleet_watch
from controlplane.tenants.access import Role
from web.live import known_topics, snapshot_of
from web.views.access import needs
from web.views.frame import render_page


@needs(Role.VIEWER)
@require_safe
def status(request: HttpRequest) -> HttpResponse:
    picture = fleet_watch().observer.look()
    return render_page(request, "status.html", picture, {"page": "status", "parts": picture.parts})


@needs(Role.VIEWER)
@require_safe
def live_snapshot(request: HttpRequest) -> HttpResponse:
    """Answers with the snapshots of some topics, for pages whose socket does not get through."""
    watch = fleet_watch()
    topics = [topic for topic in request.GET.get("topics", "").split(",") if topic]
    unknown = set(topics) - known_topics(watch.pool)
    if unknown:
        return JsonResponse(
            {"message": f"topics: unknown {', '.join(sorted(unknown))}"}, status=400
        )
    picture = watch.observer.look()
    answer = JsonResponse({"messages": [snapshot_of(picture, topic) for topic in topics]})
    answer["Cache-Control"] = "no-store"
    return answer
