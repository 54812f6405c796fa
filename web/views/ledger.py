"""What the pages of requests, SLOs, audit and settings share."""

from typing import Any

from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import resolve_url

from controlplane.fleet.watch import fleet_watch
from web.views.access import PageRequest
from web.views.frame import render_page


def show(
    request: PageRequest, template: str, context: dict[str, Any], status: int = 200
) -> HttpResponse:
    """Renders a page inside the frame."""
    response = render_page(request, template, fleet_watch().observer.look(), context)
    response.status_code = status
    return response


def see(to: str, *args: str) -> HttpResponse:
    """Leads to another page after a change."""
    response = HttpResponseRedirect(resolve_url(to, *args))
    response.status_code = 303
    return response
