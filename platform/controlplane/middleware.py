"""What browsers may load on our pages (Content-Security-Policy)."""

from collections.abc import Awaitable, Callable
from typing import Final

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponseBase

STRICT: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:;"
    " font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'"
)
"""Our pages have no inline script or style and load nothing from elsewhere."""
LOOSE: Final = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval';"
    " style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:;"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""For what others wrote: the admin (Alpine.js evaluates attributes) and the API's documentation."""
LOOSE_PREFIXES: Final = ("/admin/", "/api/v1/schema/")


class ContentSecurityPolicy:
    """Middleware; asynchronous only, as the pages are served by ASGI."""

    sync_capable = True
    async_capable = True

    def __init__(
        self, get_response: Callable[[HttpRequest], HttpResponseBase | Awaitable[HttpResponseBase]]
    ) -> None:
        self._get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        answer = self._get_response(request)
        if isinstance(answer, HttpResponseBase):
            return _with_policy(request, answer)
        return self._later(request, answer)

    async def _later(
        self, request: HttpRequest, answer: Awaitable[HttpResponseBase]
    ) -> HttpResponseBase:
        return _with_policy(request, await answer)


def _with_policy(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    policy = LOOSE if request.path.startswith(LOOSE_PREFIXES) else STRICT
    response.headers.setdefault("Content-Security-Policy", policy)
    return response
