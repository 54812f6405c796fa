"""One request: now, while it runs, and where its time went when it has ended."""

from typing import Any

from django.http import HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from controlplane.audit.models import AuditEntry
from controlplane.audit.selectors import AuditFilters, audit_list, sees_audit
from controlplane.errors import NotVisible
from controlplane.fleet.models import MigrationRecord
from controlplane.gateway.live_requests import Facts, facts_of, may_see, public_id
from controlplane.gateway.models import RequestRecord
from controlplane.tenants.access import Role
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.usage.selectors import request_get
from engine_pool.errors import StoreUnavailable
from web import request_lanes, request_words
from web.request_live import LiveRequest, live_requests
from web.views.access import PageRequest, signed_in
from web.views.ledger import show

CHILDREN_MAX = 8
"""Choices or prompts of one request whose moves are looked for."""
PLAYGROUND_KEY = 0


@signed_in
@require_safe
def one(request: PageRequest, request_id: str) -> HttpResponse:
    """Shows one request; a script asks for the fragment again while it runs."""
    public = public_id(request_id)
    context = context_of(request, public)
    if getattr(request, "htmx", False):
        response = render(request, "requests/one.html", context)
        response["Cache-Control"] = "no-store"
        return response
    return show(request, "requests/page.html", context)


def context_of(request: PageRequest, request_id: str) -> dict[str, Any]:
    """Returns what the page shows. Raises: NotVisible."""
    access = request.access
    try:
        live = live_requests(access, only=request_id)
    except StoreUnavailable:
        live = []
    record = _record(request, request_id)
    facts = None if record is not None else _facts(request, request_id)
    if record is None and not live and facts is None:
        raise NotVisible("There is no such request.")
    tenant_id = record.tenant_id if record is not None else facts.tenant_id if facts else None
    context: dict[str, Any] = {
        "page": "requests",
        "request_id": request_id,
        "tenant_id": tenant_id,
        "live": live,
        "record": record,
        "facts": facts,
        "may_act": access.allows(Role.OPERATOR, tenant_id),
        "now_unix_s": timezone.now().timestamp(),
        "moves": _moves(request_id),
    }
    if record is not None:
        context |= _ended(record, context["moves"])
        context["tenant"] = Tenant.objects.filter(pk=record.tenant_id).first()
    else:
        context |= _now(live, facts, context["now_unix_s"])
    context["audit"] = _audit(request, request_id)
    return context


def _record(request: PageRequest, request_id: str) -> RequestRecord | None:
    try:
        return request_get(access=request.access, request_id=request_id)
    except NotVisible:
        return None


def _facts(request: PageRequest, request_id: str) -> Facts | None:
    """Returns the store's record, if the person may see the request."""
    try:
        facts = facts_of([request_id]).get(request_id)
    except StoreUnavailable:
        return None
    return facts if facts is not None and may_see(request.access, facts) else None


def _ended(record: RequestRecord, moves: list[MigrationRecord]) -> dict[str, Any]:
    return {
        "sentence": request_words.sentence(record),
        "timeline": request_lanes.timeline(record, moves),
        "parts": request_words.parts(record),
        "kept": request_words.facts(record, _key_name(record)),
        "moments": request_words.moments(record, moves),
        "slo": request_words.slo_mark(record),
    }


def _now(live: list[LiveRequest], facts: Facts | None, now_unix_s: float) -> dict[str, Any]:
    first = live[0] if live else None
    told = facts or (first.facts if first else None)
    age_s = None if told is None else max(0.0, now_unix_s - told.created_unix_s)
    return {
        "told": told,
        "age_ms": None if age_s is None else age_s * 1000,
        "output_tokens": sum(r.output_tokens for r in live),
        "first": first,
        "state": first.state if first else "unknown",
    }


def _moves(request_id: str) -> list[MigrationRecord]:
    rows = MigrationRecord.objects.filter(request_id__in=_engine_ids(request_id))
    return list(rows.order_by("started_at")[:100])


def _engine_ids(request_id: str) -> list[str]:
    """Returns the ids under which engines may have known it: choices and prompts of several."""
    numbers = range(CHILDREN_MAX)
    prompts = [request_id, *(f"{request_id}-{n}" for n in numbers)]
    return [*prompts, *(f"{n}_{prompt}" for prompt in prompts for n in numbers)]


def _key_name(record: RequestRecord) -> str:
    if record.key_id == PLAYGROUND_KEY:
        return "the playground"
    key = ApiKey.objects.filter(pk=record.key_id).first()
    return "removed since" if key is None else f"{key.name} ({key.hint})"


def _audit(request: PageRequest, request_id: str) -> list[AuditEntry]:
    if not sees_audit(request.access):
        return []
    rows = audit_list(access=request.access, filters=AuditFilters())
    return list(rows.filter(request_id__in=_engine_ids(request_id))[:20])
