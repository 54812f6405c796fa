"""What runs or waits now, what has ended, and one request with where its time went."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final, NamedTuple

from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from controlplane.gateway.models import RequestRecord, RequestStatus
from controlplane.tenants.models import Tenant
from controlplane.tenants.selectors import tenants_list
from controlplane.usage.selectors import RequestFilters, requests_list
from engine_pool.errors import StoreUnavailable
from engine_pool.types import PriorityClass
from web.keyset import count_words, page_of
from web.query import Choice, Query, minus, words_of
from web.request_live import RUNNING, WAITING, LiveRequest, live_requests
from web.request_words import slo_mark
from web.views.access import PageRequest, signed_in
from web.views.ledger import show

ROWS: Final = 50
LIVE_SHOWN: Final = 200
LIVE_ABOVE: Final = 10
"""Above those that have ended: they must not be pushed from the screen."""
ENDED: Final = "ended"
STATES: Final = (
    Choice("", "All"),
    Choice(RUNNING, "Running"),
    Choice(WAITING, "Waiting"),
    Choice(ENDED, "Ended"),
)
SINCE: Final = (
    Choice("1h", "Last hour"),
    Choice("24h", "Last 24 hours"),
    Choice("7d", "Last 7 days"),
    Choice("28d", "Last 28 days"),
    Choice("all", "All that is kept"),
)
SPANS: Final = {
    "1h": timedelta(hours=1),
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
    "28d": timedelta(days=28),
    "all": None,
}
SINCE_DEFAULT: Final = "24h"
"""A bounded time by default, so that the page reads a part of ten million rows."""
SLO: Final = (
    Choice("missed", "Missed a target"),
    Choice("ttft", "Slow first token (TTFT missed)"),
    Choice("tpot", "Slow tokens (TPOT missed)"),
)
WAYS: Final = (
    Choice("moved", "Moved while it ran"),
    Choice("replayed", "Replayed after a loss"),
)
FILTERS: Final = (
    "state", "tenant", "class", "model", "status", "slo", "way", "since", "instance", "q",
)  # fmt: skip


class Ended(NamedTuple):
    """One row of the list."""

    record: RequestRecord
    tenant: str
    slo_words: str
    slo: str

    @property
    def way(self) -> str:
        """The first and the last instance, and how many it had."""
        visited = self.record.instances or [self.record.instance or "–"]  # noqa: RUF001
        replayed = ", replayed" if self.record.replays else ""
        if len(visited) == 1:
            return f"{visited[0]}{replayed}"
        count = f" ({len(visited)})" if len(visited) > 2 else ""
        return f"{visited[0]} → {visited[-1]}{count}{replayed}"


class Live(NamedTuple):
    """What runs or waits, as far as it is shown."""

    rows: list[LiveRequest]
    total: int
    problem: str = ""


@signed_in
@require_safe
def requests(request: PageRequest) -> HttpResponse:
    """Lists requests: on top those of now, below those that have ended, newest first."""
    query = Query.of(request.GET, FILTERS)
    older = request.GET.get("older", "")
    tenants = list(tenants_list(access=request.access))
    context = {**_choices(query, tenants), "is_older": bool(older)}
    try:
        shows_live = _check(query) and not older
        if query["state"] not in (RUNNING, WAITING):
            context |= _ended(request, query, tenants, older)
    except ValidationError as problem:
        context["problem"] = words_of(problem)
        return show(request, "requests/list.html", context, 400)
    if shows_live:
        context["live"] = _live(request, query)
    return show(request, "requests/list.html", context)


@signed_in
@require_safe
def now(request: PageRequest) -> HttpResponse:
    """Answers with the panel of what runs and waits; a script asks every second."""
    query = Query.of(request.GET, FILTERS)
    context = {
        "query": query,
        "now_query": query.link(),
        "running_link": query.link(state=RUNNING),
        "is_one_tenant": tenants_list(access=request.access).count() == 1,
        "live": _live(request, query),
        "now_unix_s": timezone.now().timestamp(),
    }
    response = render(request, "requests/live.html", context)
    response["Cache-Control"] = "no-store"
    return response


def _check(query: Query) -> bool:
    """Says whether live requests can match. Raises: ValidationError naming the field."""
    query.choice("state", _keys(STATES))
    query.choice("slo", _keys(SLO))
    query.choice("way", _keys(WAYS))
    query.choice("since", _keys(SINCE))
    query.choice("status", RequestStatus.values)
    query.choice("class", [c.value for c in PriorityClass])
    return query["state"] != ENDED and not (query["status"] or query["slo"] or query["way"])


def _live(request: PageRequest, query: Query) -> Live:
    try:
        found = [r for r in live_requests(request.access) if _matches(query, r)]
    except StoreUnavailable as problem:
        return Live([], 0, f"{problem} What runs now cannot be told.")
    shown = LIVE_SHOWN if query["state"] in (RUNNING, WAITING) else LIVE_ABOVE
    return Live(found[:shown], len(found))


def _matches(query: Query, r: LiveRequest) -> bool:
    facts = r.facts
    wanted = {
        "state": r.state,
        "class": r.priority_class,
        "instance": r.instance,
        "tenant": facts.tenant if facts else "",
        "model": facts.model if facts else "",
    }
    if any(query[name] and query[name] != value for name, value in wanted.items()):
        return False
    return r.request_id.startswith(query["q"]) or r.engine_id.startswith(query["q"])


def _ended(request: PageRequest, query: Query, tenants: list[Tenant], older: str) -> dict[str, Any]:
    rows = _rows(request, query, tenants)
    page = page_of(rows, "arrived_at", older, ROWS)
    slugs = {tenant.pk: tenant.slug for tenant in tenants}
    return {
        "ended": [
            Ended(record, slugs.get(record.tenant_id, "removed"), *slo_mark(record))
            for record in page.rows
        ],
        "count": "" if older else count_words(rows, len(page.rows)),
        "older": query.link(older=page.older) if page.older else "",
        "shows_ended": True,
    }


def _rows(request: PageRequest, query: Query, tenants: list[Tenant]) -> "QuerySet[RequestRecord]":
    """Raises: ValidationError for a tenant that is not to be seen."""
    tenant_id = next((t.pk for t in tenants if t.slug == query["tenant"]), None)
    if query["tenant"] and tenant_id is None:
        raise ValidationError({"tenant": f"there is no {query['tenant']!r}"})
    # An id is looked for in all that is kept.
    since = "all" if query["q"] else query["since"] or SINCE_DEFAULT
    filters = RequestFilters(
        tenant_id=tenant_id,
        status=query["status"],
        priority_class=query["class"],
        model=query["model"],
        instance=query["instance"],
        since=minus(timezone.now(), since, SPANS),
        missed_only=query["slo"] == "missed",
        replayed_only=query["way"] == "replayed",
        search=query["q"],
    )
    rows = requests_list(access=request.access, filters=filters)
    if query["way"] == "moved":
        rows = rows.filter(migrations__gt=0)
    missed = {"ttft": {"is_ttft_met": False}, "tpot": {"is_tpot_met": False}}
    return rows.filter(**missed.get(query["slo"], {}))


def _choices(query: Query, tenants: list[Tenant]) -> dict[str, Any]:
    return {
        "page": "requests",
        "query": query,
        "now_query": query.link(),
        "first_link": query.link(),
        "running_link": query.link(state=RUNNING),
        "states": [(c, query.link(state=c.key)) for c in STATES],
        "since_choices": SINCE,
        "since": query["since"] or SINCE_DEFAULT,
        "slo_choices": SLO,
        "ways": WAYS,
        "statuses": RequestStatus.values,
        "classes": [c.value for c in PriorityClass],
        "tenants": tenants,
        "is_one_tenant": len(tenants) == 1,
    }


def _keys(choices: Iterable[Choice]) -> list[str]:
    return [c.key for c in choices]
