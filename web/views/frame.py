"""What the frame around every page shows, and who may see it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from controlplane.fleet.observer import Picture
from controlplane.fleet.parts import StripRow
from controlplane.fleet.permissions import is_operator
from controlplane.fleet.watch import fleet_watch
from web.messages import PATH

P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, P], HttpResponse]


@dataclass(frozen=True, slots=True)
class Frame:
    """The pool's name and the strip, as of `at_unix_s`."""

    pool: str
    model: str
    strip: StripRow
    at_unix_s: float
    live: dict[str, Any]
    """What the scripts need to go on from here."""


def operators_only(view: View[P]) -> View[P]:
    """Asks for a login, and refuses whoever is no operator."""

    @wraps(view)
    def checked(request: HttpRequest, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        if not is_operator(request.user):
            raise PermissionDenied("Needs the operator role.")
        return view(request, *args, **kwargs)

    return login_required(checked)


def render_page(
    request: HttpRequest, template: str, picture: Picture, context: dict[str, Any]
) -> HttpResponse:
    """Renders a page inside the frame, with the picture's strip."""
    watch = fleet_watch()
    frame = Frame(
        pool=watch.pool,
        model=watch.model or watch.pool,
        strip=picture.strip,
        at_unix_s=picture.at_unix_s,
        live={
            "path": PATH,
            "pool": watch.pool,
            "at": round(picture.at_unix_s, 3),
            "seq": picture.version,
            "strip": picture.strip,
        },
    )
    response = render(
        request, template, {**context, "frame": frame, "now_unix_s": picture.at_unix_s}
    )
    # A page of live numbers must not come back from the browser's cache as if it were now.
    response["Cache-Control"] = "no-store"
    return response
