"""Lets every page and every door of `/api/v1` look at the pool that its URL names (choice.py)."""

from collections.abc import Awaitable, Callable
from urllib.parse import parse_qs, urlsplit

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponseBase

from controlplane.fleet.choice import pool_chosen

PARAMETER = "pool"


class ChosenPool:
    """Middleware, for both kinds of view."""

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
        with pool_chosen(pool_of(request)):
            return self._get_response(request)

    async def _later(self, request: HttpRequest) -> HttpResponseBase:
        with pool_chosen(pool_of(request)):
            answer = self._get_response(request)
            return answer if isinstance(answer, HttpResponseBase) else await answer


def pool_of(request: HttpRequest) -> str:
    """Returns the pool that a request is about; empty: the default one.

    A form, or a part of a page, is about the page's pool where its own URL names none.
    """
    named = request.GET.get(PARAMETER, "")
    if not named and (request.method == "POST" or "HX-Request" in request.headers):
        page = request.headers.get("HX-Current-URL") or request.headers.get("Referer") or ""
        named = parse_qs(urlsplit(page).query).get(PARAMETER, [""])[0]
    return named
