"""One instance, and the requests that an operator may move away from it."""

from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_safe

from controlplane.fleet import fleet_now as fleet
from controlplane.fleet.captions import SAFE
from controlplane.fleet.middleware import PARAMETER
from controlplane.fleet.observer import Observer, Picture
from controlplane.fleet.picture import InstanceRow, natural
from controlplane.fleet.rebalancing_picture import thinks_of_row
from controlplane.fleet.watch import fleet_watch
from controlplane.fleet.wish_rows import wishes_now
from controlplane.fleet.wish_selectors import InstanceDrain, drain_of
from controlplane.tenants.access import Role
from engine_pool.client import served_clients
from engine_pool.types import InstanceLoad, RequestLoad
from web.drain_panel import actions_of, notes_of, panel_of
from web.views.access import needs
from web.views.frame import render_page

REQUESTS_SHOWN: Final = 100
A_SIDE: Final = 10
"""Requests that the cluster page shows of each instance of a pool of two."""


class RequestRow(NamedTuple):
    """One request on its instance."""

    request_id: str
    priority_class: str
    state: str
    kv_tokens: int | None
    prompt_tokens: int
    output_tokens: int
    moves_to: str
    """Where it is on its way to; empty: nowhere."""
    migration_id: str


class Side(NamedTuple):
    """The requests of one instance, the first ones."""

    name: str
    rows: list[RequestRow]
    total: int
    at_unix_s: float | None


@needs(Role.VIEWER)
@require_safe
def instance(request: HttpRequest, name: str) -> HttpResponse:
    """Shows one instance; a script asks for the fragment again every second."""
    watch = fleet_watch()
    picture = watch.observer.look()
    row = picture.rows.get(name)
    if row is None:
        if pool := _pool_with(name):
            return redirect(f"{request.path}?{urlencode({PARAMETER: pool})}")
        raise Http404("There is no instance of this name.")
    side = side_of(watch.observer, picture, name, REQUESTS_SHOWN)
    drain = drain_of(name, watch.pool, fleet.fleet_now(), wishes_now())
    context = {
        "page": "cluster",
        "name": name,
        "row": row,
        "side": side,
        "sentence": sentence(row, drain),
        "notes": notes_of(drain),
        "actions": actions_of(drain),
        "panel": panel_of(drain, picture.at_unix_s),
        "rebalancer": thinks_of_row(row, picture.rebalancing, picture.at_unix_s),
        "band": picture.band,
        "now_unix_s": picture.at_unix_s,
    }
    return _page_or_part(request, "instances/part.html", "instances/page.html", picture, context)


@needs(Role.VIEWER)
@require_safe
def requests(request: HttpRequest) -> HttpResponse:
    """Answers with the cluster page's panel of requests."""
    watch = fleet_watch()
    picture = watch.observer.look()
    context = {"sides": sides_of(watch.observer, picture), "now_unix_s": picture.at_unix_s}
    response = render(request, "cluster/requests.html", context)
    response["Cache-Control"] = "no-store"
    return response


def _pool_with(instance: str) -> str:
    """Returns the pool of an instance, whose name is unique in the installation; empty: none."""
    clients = served_clients()
    return next((c.config.pool for c in clients if instance in c.view.statuses), "")


def sides_of(observer: Observer, picture: Picture) -> list[Side]:
    """Returns the first requests of each instance of a small pool; nothing for a larger one."""
    if len(picture.rows) > 2:
        return []
    return [side_of(observer, picture, name, A_SIDE) for name in picture.rows]


def side_of(observer: Observer, picture: Picture, name: str, limit: int) -> Side:
    """Returns an instance's requests in an order that does not change: running ones by id, then the
    queue in its own order."""
    load = observer.load(name)
    if load is None:
        return Side(name, [], 0, None)
    going = {
        move.request_id: (move.destination, migration_id)
        for migration_id, move in picture.moves.items()
        if move.took_s is None
    }
    found = _in_order(load)
    rows = [_row(state, r, going.get(r.request_id, ("", ""))) for state, r in found[:limit]]
    return Side(name, rows, len(found), load.at_unix_s)


def sentence(row: InstanceRow, drain: InstanceDrain) -> str:
    """Says what the instance does, with its numbers."""
    caption = row.caption
    if caption.startswith(SAFE) and not drain.is_safe:
        # The pool has not heard yet that it is released, or nobody checks any more.
        caption = f"empty, and not safe to stop: {drain.why_not_safe}"
    word = row.state.replace("_", " ").capitalize()
    if row.running is None:
        return f"{word}: {caption}."
    queue = f", {row.waiting:,} in the queue" if row.waiting else ""
    return f"{word}, {row.running:,} running{queue}. {caption[:1].upper()}{caption[1:]}."


def _in_order(load: InstanceLoad) -> list[tuple[str, RequestLoad]]:
    running = sorted(load.running, key=lambda r: natural(r.request_id))
    return [*(("running", r) for r in running), *(("waiting", r) for r in load.waiting)]


def _row(state: str, load: RequestLoad, going: tuple[str, str]) -> RequestRow:
    return RequestRow(
        request_id=load.request_id,
        priority_class=load.priority_class.value,
        state=state,
        kv_tokens=load.kv_tokens if state == "running" else None,
        prompt_tokens=load.prompt_tokens,
        output_tokens=load.output_tokens,
        moves_to=going[0],
        migration_id=going[1],
    )


def _page_or_part(
    request: HttpRequest, part: str, page: str, picture: Picture, context: dict[str, Any]
) -> HttpResponse:
    if not getattr(request, "htmx", False):
        return render_page(request, page, picture, context)
    response = render(request, part, context)
    response["Cache-Control"] = "no-store"
    return response
