"""Every error under /api/ in one shape: `{"error": {"message", "type", "param", "code"}}`.

`exception_handler` is REST_FRAMEWORK's; `handler400` to `handler500` are Django's own, which also
answer for pages.
"""

import logging
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final

from django.core.exceptions import NON_FIELD_ERRORS, RequestDataTooBig
from django.core.exceptions import PermissionDenied as DjangoPermissionDenied
from django.core.exceptions import ValidationError as DjangoValidationError
from django.db import DatabaseError, DataError, IntegrityError
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.views import defaults
from rest_framework import exceptions
from rest_framework.response import Response
from rest_framework.views import set_rollback

from controlplane import database_away
from controlplane.api.problem import Problem
from controlplane.errors import NotAllowed, NotVisible, Refused, VersionConflict
from engine_pool.errors import PoolError, StoreUnavailable

logger = logging.getLogger(__name__)

RETRY_S: Final = 5
"""A database or a store that was restarted is back about so soon."""
API_PREFIX: Final = "/api/"
TYPES: Final = {
    401: "authentication_error",
    403: "permission_denied",
    404: "not_found_error",
    409: "conflict_error",
    412: "conflict_error",
    422: "idempotency_error",
    429: "rate_limit_exceeded",
}
"""Other 4xx are `invalid_request_error`, and what is our fault is an `api_error`."""


def error_body(
    status: int, message: str, *, code: str | None = None, param: str | None = None
) -> dict[str, dict[str, str | None]]:
    """Returns the one shape of all errors."""
    kind = TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def exception_handler(exc: Exception, context: Mapping[str, Any]) -> Response | None:
    """Returns the answer to what a view has raised; None: a bug, which Django logs (handler500)."""
    problem = _problem_of(exc, context)
    if problem is None:
        return None
    set_rollback()
    body = error_body(problem.status_code, problem.message, code=problem.code, param=problem.param)
    headers: dict[str, str] = {}
    if header := getattr(exc, "auth_header", None):
        headers["WWW-Authenticate"] = header
    if problem.retry_after_s is not None:
        headers["Retry-After"] = str(problem.retry_after_s)
    return Response(body, status=problem.status_code, headers=headers)


def _problem_of(exc: Exception, context: Mapping[str, Any]) -> Problem | None:
    if isinstance(exc, Problem):
        return exc
    if isinstance(exc, Refused):
        return _refused(exc, context)
    if isinstance(exc, DjangoValidationError):
        return _invalid(exc)
    if isinstance(exc, exceptions.APIException):
        return _of_framework(exc)
    if isinstance(exc, Http404):
        return Problem(404, "There is no such thing.", code="not_found")
    if isinstance(exc, DjangoPermissionDenied):
        return Problem(403, str(exc) or "That is not allowed.", code="permission_denied")
    if isinstance(exc, RequestDataTooBig):
        return Problem(413, "The body is too large.", code="body_too_large")
    return _of_dependency(exc)


def _refused(exc: Refused, context: Mapping[str, Any]) -> Problem:
    if isinstance(exc, NotVisible):
        return Problem(404, str(exc), code=exc.code)
    if isinstance(exc, NotAllowed):
        return Problem(403, str(exc), code=exc.code)
    if isinstance(exc, VersionConflict):
        # HTTP's own answer to an If-Match that does not hold.
        status = 412 if "If-Match" in context["request"].headers else 409
        return Problem(status, str(exc), code=exc.code)
    return Problem(409, str(exc), code=exc.code)


def _invalid(exc: DjangoValidationError) -> Problem:
    if not hasattr(exc, "error_dict"):
        return Problem(400, " ".join(exc.messages))
    name, messages = next(iter(exc.message_dict.items()))
    if name == NON_FIELD_ERRORS:
        return Problem(400, " ".join(messages))
    return Problem(400, f"{name}: {' '.join(messages)}", param=name)


def _of_framework(exc: exceptions.APIException) -> Problem:
    status = exc.status_code
    if isinstance(exc, exceptions.ValidationError):
        message = first_message(exc.detail)
        name, colon, _ = message.partition(":")
        return Problem(status, message, param=name if colon and name.isidentifier() else None)
    code = {401: "invalid_api_key", 403: "permission_denied", 404: "not_found"}.get(status)
    wait = getattr(exc, "wait", None)
    message = first_message(exc.detail)
    param = message.partition(":")[0] if status == 404 and ":" in message else None
    return Problem(
        status,
        message,
        code=code or ("rate_limit_exceeded" if status == 429 else None),
        param=param,
        retry_after_s=None if wait is None else max(1, round(wait)),
    )


def _of_dependency(exc: Exception) -> Problem | None:
    if isinstance(exc, IntegrityError):
        return Problem(409, "Somebody else has just made the same; read it again.", code="exists")
    if isinstance(exc, DataError):
        return Problem(400, "A value cannot be stored: it is out of range or has odd characters.")
    if isinstance(exc, DatabaseError):
        logger.error("the database failed: %s", exc)
        message = "The database does not answer; try again soon."
        return Problem(503, message, code="database_unavailable", retry_after_s=RETRY_S)
    if isinstance(exc, StoreUnavailable | PoolError):
        return Problem(503, str(exc), code=exc.code, retry_after_s=RETRY_S)
    return None


def first_message(detail: Any) -> str:
    """Returns the first message of a field's, or of its items', errors."""
    while isinstance(detail, dict | list) and detail:
        detail = next(iter(detail.values())) if isinstance(detail, dict) else detail[0]
    return str(detail)


def handler400(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Django's answer to a call that cannot be read."""
    if not _is_api(request):
        return defaults.bad_request(request, exception)
    if isinstance(exception, RequestDataTooBig):
        return JsonResponse(
            error_body(413, "The body is too large.", code="body_too_large"), status=413
        )
    return JsonResponse(error_body(400, "This call cannot be read."), status=400)


def handler403(request: HttpRequest, exception: Exception) -> HttpResponse:
    if not _is_api(request):
        return defaults.permission_denied(request, exception)
    body = error_body(403, str(exception) or "That is not allowed.", code="permission_denied")
    return JsonResponse(body, status=403)


def handler404(request: HttpRequest, exception: Exception) -> HttpResponse:
    if not _is_api(request):
        return defaults.page_not_found(request, exception)
    body = error_body(404, f"There is nothing at {request.path}.", code="not_found")
    return JsonResponse(body, status=404)


def handler500(request: HttpRequest) -> HttpResponse:
    # Django calls this while it handles the error.
    if database_away.is_away(sys.exc_info()[1]):
        return database_away.answer(request)
    if not _is_api(request):
        return defaults.server_error(request)
    message = "Something broke here; it is in the server's log under the call's X-Request-Id."
    return JsonResponse(error_body(500, message, code="internal_error"), status=500)


def _is_api(request: HttpRequest) -> bool:
    return request.path.startswith(API_PREFIX)


def names(found: Iterable[str]) -> str:
    """Returns words as a message lists them."""
    return ", ".join(sorted(found))
