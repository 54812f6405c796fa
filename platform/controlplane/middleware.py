"""What browsers may load on our pages (Content-Security-Policy), and an id for every call."""

import re
import uuid
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
PERMISSIONS: Final = ", ".join(
    f"{feature}=()"
    for feature in ("camera", "geolocation", "microphone", "payment", "usb", "browsing-topics")
)
"""No page asks for any of them. Django itself sends nosniff, opener and referrer policy."""


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
    response.headers.setdefault("Permissions-Policy", PERMISSIONS)
    response.headers.setdefault("Cross-Origin-Resource-Policy", "same-origin")
    return response


REQUEST_ID: Final = "X-Request-Id"
_REQUEST_ID_META: Final = "HTTP_X_REQUEST_ID"
_GIVEN_ID: Final = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
"""What of a client's id is taken over into the audit, logs and headers; /v1 takes the same."""


class RequestId:
    """Middleware: takes a usable X-Request-Id from the client or makes one, and answers with it."""

    sync_capable = True
    async_capable = True

    def __init__(
        self, get_response: Callable[[HttpRequest], HttpResponseBase | Awaitable[HttpResponseBase]]
    ) -> None:
        self._get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        given = request.META.get(_REQUEST_ID_META, "")
        request_id = given if _GIVEN_ID.fullmatch(given) else uuid.uuid4().hex
        request.META[_REQUEST_ID_META] = request_id
        answer = self._get_response(request)
        if isinstance(answer, HttpResponseBase):
            return _with_id(request_id, answer)
        return self._later(request_id, answer)

    async def _later(
        self, request_id: str, answer: Awaitable[HttpResponseBase]
    ) -> HttpResponseBase:
        return _with_id(request_id, await answer)


def address_of(request: HttpRequest) -> str | None:
    """Returns the client's address, as the web server has it from trusted proxies."""
    return request.META.get("REMOTE_ADDR") or None


def request_id_of(request: HttpRequest) -> str:
    """Returns the id that the call goes by."""
    return str(request.META.get(_REQUEST_ID_META, ""))


def _with_id(request_id: str, response: HttpResponseBase) -> HttpResponseBase:
    response.headers.setdefault(REQUEST_ID, request_id)
    return response
