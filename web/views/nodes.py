"""One node: its instances, what is wanted of it, and whether it may be switched off."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from controlplane.fleet.drain_words import progress_words
from controlplane.fleet.watch import fleet_watch
from controlplane.fleet.wish_rows import LEAVING, wanted_word
from controlplane.fleet.wish_selectors import NodeDrain, node_drain_get
from controlplane.tenants.access import Role
from web.drain_dialog import release_verb
from web.drain_panel import Action, node_sentence
from web.views.access import needs
from web.views.frame import render_page


@needs(Role.VIEWER)
@require_safe
def node(request: HttpRequest, node: str) -> HttpResponse:
    """Shows it; a script asks for the fragment again every second."""
    found = node_drain_get(node)
    picture = fleet_watch().observer.look()
    row = found.row
    safe = [i for i in found.instances if i.is_safe]
    context = {
        "page": "cluster",
        "name": node,
        "node": found,
        "wish": row,
        "wanted": wanted_word(row) if row is not None else "",
        "is_leaving": row is not None and row.wanted in LEAVING,
        "verified_unix_s": max((i.verified_unix_s or 0.0 for i in safe), default=0.0) or None,
        "safe": len(safe),
        "sentence": node_sentence(len(found.instances), len(safe), found.left),
        "actions": actions_of_node(found),
        "rows": [(i, progress_words(i).partition(": ")[2]) for i in found.instances],
        "now_unix_s": picture.at_unix_s,
    }
    if not getattr(request, "htmx", False):
        return render_page(request, "nodes/page.html", picture, context)
    response = render(request, "nodes/part.html", context)
    response["Cache-Control"] = "no-store"
    return response


def actions_of_node(found: NodeDrain) -> list[Action]:
    """Returns what can be wanted of a node now."""
    row = found.row
    if row is None:
        return [Action("cordon", "Cordon"), Action("drain", "Drain"), Action("stop", "Stop")]
    more = [Action("drain", "Drain")] if row.wanted == "cordoned" else []
    more += [Action("stop", "Stop")] if row.wanted != "stopped" else []
    return [Action("release", release_verb(row)), *more]
