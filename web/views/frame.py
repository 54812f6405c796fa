"""What the frame around every page shows."""

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from controlplane.fleet.middleware import pool_of
from controlplane.fleet.observer import Picture
from controlplane.fleet.parts import StripRow
from controlplane.fleet.pool_selectors import PoolEntry, pool_entries
from controlplane.fleet.watch import Watch, fleet_watch
from web.messages import PATH
from web.views.access import with_access


@dataclass(frozen=True, slots=True)
class Frame:
    """The pool's name and the strip, as of `at_unix_s`."""

    pool: str
    model: str
    strip: StripRow
    at_unix_s: float
    pools: list[PoolEntry]
    """What the switch offers; one or none: there is nothing to switch."""
    live: dict[str, Any] | None
    """What the scripts need to go on from here; None: nothing is live for who may not see pools."""


def watch_of(request: HttpRequest) -> Watch:
    """Returns the watch on the pool that a page is about: `?pool=`, else the default one.

    Raises: NotVisible.
    """
    return fleet_watch(pool_of(request))


def render_page(
    request: HttpRequest, template: str, picture: Picture, context: dict[str, Any]
) -> HttpResponse:
    """Renders a page inside the frame, with the picture's strip."""
    watch = fleet_watch()
    live: dict[str, Any] = {
        "path": PATH,
        "pool": watch.pool,
        "at": round(picture.at_unix_s, 3),
        "seq": picture.version,
        "strip": picture.strip,
    }
    sees_all = with_access(request).access.sees_all
    frame = Frame(
        pool=watch.pool,
        model=watch.model or watch.pool,
        strip=picture.strip if sees_all else members_strip(picture.strip),
        at_unix_s=picture.at_unix_s,
        pools=pool_entries() if sees_all else [],
        live=live if sees_all else None,
    )
    response = render(
        request, template, {**context, "frame": frame, "now_unix_s": picture.at_unix_s}
    )
    # A page of live numbers must not come back from the browser's cache as if it were now.
    response["Cache-Control"] = "no-store"
    return response


def members_strip(strip: StripRow) -> StripRow:
    """Returns what a tenant's member needs to know: whether the service answers, not of what it is
    made."""
    if strip.tone != "bad":
        return StripRow("ok", "The service answers.", None, "", 0, "", None)
    said = "Requests may wait longer or fail; its operators see why."
    headline = "Part of the service does not answer"
    return StripRow("bad", headline, strip.since_unix_s, said, 0, "", None)
