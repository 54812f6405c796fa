"""What pages, the admin and /api/v1 answer while the database is away: why, at once, with a 503.

They live on it (sessions, roles, rows), so they cannot go on without; a page that waits for it, or
shows a stack trace, would help nobody.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import render

from controlplane.fleet.watch import database_is_away

RETRY_S: Final = 5
"""A database that was restarted is back about so soon; the page looks again after it."""
API_PREFIX: Final = "/api/"


def is_away(error: BaseException | None) -> bool:
    """Says whether a failure means that the database does not answer, or takes nothing."""
    return isinstance(error, OperationalError | InterfaceError)


def answer(request: HttpRequest) -> HttpResponse:
    """Returns the 503, as a page or in the API's shape. Makes no query."""
    response: HttpResponse
    if request.path.startswith(API_PREFIX):
        problem = {
            "message": "The database does not answer; try again soon.",
            "type": "api_error",
            "param": None,
            "code": "database_unavailable",
        }
        response = JsonResponse({"error": problem}, status=503)
    else:
        response = render(request, "503.html", {"retry_s": RETRY_S}, status=503)
    response["Retry-After"] = str(RETRY_S)
    response["Cache-Control"] = "no-store"
    return response


class WithoutDatabase:
    """Middleware: does not even try what would wait for a database that is known to be away."""

    sync_capable = True
    async_capable = True

    def __init__(
        self, get_response: Callable[[HttpRequest], HttpResponseBase | Awaitable[HttpResponseBase]]
    ) -> None:
        self._get_response = get_response
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if self._is_async:
            return self._later(request)
        return answer(request) if database_is_away() else self._get_response(request)

    async def _later(self, request: HttpRequest) -> HttpResponseBase:
        if database_is_away():
            return answer(request)
        response = self._get_response(request)
        return response if isinstance(response, HttpResponseBase) else await response
