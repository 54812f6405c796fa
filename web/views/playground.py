"""The playground: does the model answer, how fast, and from which instance?

It speaks to the gateway in this process, with the person's session, so no API key is ever in the
browser: for the platform's operators as a tenant of its own, for operators of a tenant as theirs
(`tenant` in the query string, for who has several). Everything else is as at
`/v1/chat/completions`: checks, limits, dispatch, records.
"""

import json
from collections.abc import AsyncIterator
from typing import Any, Final
from urllib.parse import urlencode

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.urls import reverse
from django.views.decorators.csrf import ensure_csrf_cookie
from django.views.decorators.http import require_POST, require_safe

from controlplane.errors import NotAllowed, Refused
from controlplane.fleet.watch import fleet_watch
from controlplane.gateway import completions
from controlplane.gateway.call import Call
from controlplane.gateway.completions import Completion, EventStream
from controlplane.gateway.errors import ApiError, error_body
from controlplane.gateway.pools import pools
from controlplane.gateway.sse import Mark, Numbering, parse_mark
from controlplane.gateway.views import resume_completion
from controlplane.middleware import request_id_of
from controlplane.tenants.access import Access, Role, access_of_user
from controlplane.tenants.models import Tenant
from controlplane.tenants.selectors import KeyPolicy, limits_of, targets_of, tenant_get
from engine_pool.types import PriorityClass
from web.views.access import PageRequest, signed_in
from web.views.frame import render_page

TENANT_SLUG: Final = "playground"
EVENTS: Final = "text/event-stream; charset=utf-8"
ENDPOINT: Final = "chat"
LEFT_ALONE_S: Final = 30.0
"""How long an answer goes on when its page lost the connection; long enough to come back."""

_open: dict[str, Completion] = {}
"""Streams of this process by request id, so that Stop can end one that might be resumed."""


@signed_in
@require_safe
@ensure_csrf_cookie
def playground(request: PageRequest) -> HttpResponse:
    watch = fleet_watch()
    picture = watch.observer.look()
    tenant = tenant_of(request.access, request.GET.get("tenant", ""))
    model = watch.model
    if tenant.allowed_models and model not in tenant.allowed_models:
        model = tenant.allowed_models[0]
    config = {
        "model": model,
        "base_url": request.build_absolute_uri("/v1"),
        "query": f"?{urlencode({'tenant': tenant.slug})}" if tenant.slug != TENANT_SLUG else "",
    }
    context = {
        "page": "playground",
        "model": model,
        "config": config,
        "keys_url": reverse("web:tenant-keys", args=[tenant.slug]),
    }
    return render_page(request, "playground/page.html", picture, context)


@require_POST
async def stream(request: HttpRequest) -> HttpResponse | StreamingHttpResponse:
    """Streams an answer as events; with `Last-Event-ID`, goes on with one after that event."""
    try:
        policy = await _policy(request)
        completion, after = await _completion(request, policy)
    except ApiError as error:
        return JsonResponse(error_body(error), status=error.status)
    call = completion.call
    numbering = Numbering(
        call.request_id,
        completion.choices,
        completion.created_unix_s,
        after,
        tell_move=lambda move: _ours({"request_id": call.request_id, **move.facts}),
    )
    events = EventStream(completion, numbering)
    response = StreamingHttpResponse(_events(events, completion), content_type=EVENTS)
    response["Cache-Control"] = "no-cache"
    response["X-Accel-Buffering"] = "no"
    return response


@require_POST
async def stop(request: HttpRequest) -> HttpResponse:
    """Ends a stream for good: its engine stops as soon as the page closes the connection."""
    try:
        policy = await _policy(request)
    except ApiError as error:
        return JsonResponse(error_body(error), status=error.status)
    completion = _open.get(request.headers.get("X-Stream-Id", ""))
    if completion is not None and completion.call.tenant_id == policy.tenant_id:
        completion.detach_s = 0.0
    return HttpResponse(status=204)


def tenant_of(access: Access, slug: str) -> Tenant:
    """Returns the tenant as which the person asks; without a slug the playground's own for the
    platform's operators, else the first one of which they are operator.

    Raises: NotVisible; NotAllowed for a lesser role.
    """
    if slug:
        tenant = tenant_get(access=access, slug=slug)
        access.require(Role.OPERATOR, tenant.pk)
        return tenant
    if access.sees_all:
        access.require(Role.OPERATOR)
        return Tenant.objects.get_or_create(slug=TENANT_SLUG, defaults={"name": "Playground"})[0]
    allowed = [pk for pk, role in access.tenants.items() if role.covers(Role.OPERATOR)]
    first = Tenant.objects.filter(pk__in=allowed).first()
    if first is None:
        raise NotAllowed("Needs the operator role.")
    return first


def policy_of(tenant: Tenant) -> KeyPolicy:
    """Returns what a tenant may do without a key. Raises: ApiError 403 when it is blocked."""
    if not tenant.is_active:
        raise ApiError(403, f"The tenant {tenant.slug!r} is not active.", "permission_denied")
    return KeyPolicy(
        key_id=0,
        secret_digest="",
        tenant_id=tenant.pk,
        tenant=tenant.slug,
        default_class=PriorityClass(tenant.default_class),
        highest_class=PriorityClass(tenant.highest_class),
        weight=tenant.weight,
        limits=limits_of(tenant),
        allowed_models=frozenset(tenant.allowed_models) or None,
        targets=targets_of(tenant_id=tenant.pk),
    )


async def _policy(request: HttpRequest) -> KeyPolicy:
    """Returns what the person may do here. Raises: ApiError 403."""
    user = await request.auser()

    def read() -> KeyPolicy:
        access = access_of_user(user, request_id_of(request))
        return policy_of(tenant_of(access, request.GET.get("tenant", "")))

    try:
        return await sync_to_async(read)()
    except Refused as refusal:
        raise ApiError(403, f"{refusal} Log in again.", "permission_denied") from None


async def _completion(request: HttpRequest, policy: KeyPolicy) -> tuple[Completion, Mark | None]:
    last_event_id = request.headers.get("Last-Event-ID")
    if last_event_id is None:
        completion = completions.read(pools(), ENDPOINT, request.body, policy, {})
        if not completion.request.stream:
            raise ApiError(400, "The playground only streams.", param="stream")
        completion.detach_s = min(LEFT_ALONE_S, completion.runtime.client.config.orphan_grace_s)
        return completion, None
    mark = parse_mark(last_event_id)
    if mark is None:
        raise ApiError(400, "Last-Event-ID must be the id of an event.", param="Last-Event-ID")
    return await resume_completion(pools(), ENDPOINT, policy, mark.request_id), mark


async def _events(events: EventStream, completion: Completion) -> AsyncIterator[str]:
    """Yields the gateway's events, and ours about where the answer comes from and how fast."""
    call = completion.call
    _open[call.request_id] = completion
    told = ""
    try:
        await events.start()
        async for event in events:
            if call.instance != told:
                told = call.instance
                yield _ours({"request_id": call.request_id, "instance": told})
            yield event
        yield _ours(_ending(call))
    except ApiError as error:
        yield f"data: {json.dumps(error_body(error))}\n\n"
    finally:
        _open.pop(call.request_id, None)
        await events.aclose()


def _ending(call: Call) -> dict[str, Any]:
    first_s, last_s = call.first_token_s, call.last_token_s
    decode_s = (last_s - first_s) if first_s is not None and last_s is not None else 0.0
    return {
        "request_id": call.request_id,
        "migrations": call.migrations,
        # A resumed answer's times would be those of the replay.
        "ttft_ms": None
        if first_s is None or call.is_resumed
        else (first_s - call.arrived_s) * 1000,
        "tokens_per_s": None
        if call.is_resumed or decode_s <= 0
        else (call.output_tokens - 1) / decode_s,
        "output_tokens": call.output_tokens,
        "prompt_tokens": call.prompt_tokens,
    }


def _ours(data: dict[str, Any]) -> str:
    return f"event: ferry\ndata: {json.dumps(data)}\n\n"
