"""The dialog that ends a running request."""

from typing import Final

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_http_methods

from controlplane.requests_cancel import RequestEnded, request_cancel
from controlplane.tenants.access import Role
from engine_pool.errors import StoreUnavailable
from web.views.access import PageRequest, signed_in
from web.views.ledger import see, show
from web.views.request_page import context_of

REASON_MAX_CHARS: Final = 500


@signed_in
@require_http_methods(["GET", "HEAD", "POST"])
def cancel(request: PageRequest, request_id: str) -> HttpResponse:
    """Shows the dialog, or ends the request and goes to its page, which says what came of it."""
    if request.method != "POST":
        return _dialog(request, request_id, "", "", 200)
    reason = request.POST.get("reason", "").strip()[:REASON_MAX_CHARS]
    if not reason:
        return _dialog(request, request_id, "", "Say why: it goes into the audit.", 400)
    try:
        request_cancel(access=request.access, request_id=request_id, reason=reason)
    except RequestEnded as ended:
        return _dialog(request, request_id, reason, str(ended), 409)
    except StoreUnavailable as problem:
        return _dialog(request, request_id, reason, f"{problem} It goes on.", 503)
    return see("web:request", request_id)


def _dialog(
    request: PageRequest, request_id: str, reason: str, error: str, status: int
) -> HttpResponse:
    """Raises: NotVisible, NotAllowed."""
    context = context_of(request, request_id)
    request.access.require(Role.OPERATOR, context["tenant_id"])
    context |= {"reason": reason, "error": error}
    if not context["live"] and not error and context["record"] is not None:
        context["error"] = "It has ended already: there is nothing to cancel."
    if not getattr(request, "htmx", False):
        return show(request, "requests/cancel_page.html", context, status)
    response = render(request, "requests/cancel.html", context, status=status)
    response["Cache-Control"] = "no-store"
    return response
