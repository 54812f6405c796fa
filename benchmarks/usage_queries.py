"""The queries of the pages about requests, usage and SLOs, each as its page asks it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from controlplane.gateway.models import RequestRecord
from controlplane.tenants.access import Access, Role
from controlplane.tenants.selectors import Limits
from controlplane.usage.limits_preview import preview
from controlplane.usage.selectors import (
    RequestFilters,
    month_cost,
    request_get,
    requests_list,
    slo_report,
    slow_requests,
    usage_rows,
)
from controlplane.usage.sums import GroupBy
from engine_pool.types import PriorityClass

PAGE_ROWS: Final = 50
OPERATOR: Final = Access("operator", platform=Role.OPERATOR)
DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Sample:
    """What the pages are asked for."""

    now: datetime
    tenant_id: int
    key_id: int
    model: str
    instance: str
    request_id: str
    client_request_id: str
    span_days: int
    """How far back the pages look."""


@dataclass(frozen=True, slots=True)
class Query:
    """One page's question."""

    name: str
    run: Callable[[], Any]


def page_queries(sample: Sample) -> Sequence[Query]:
    """Returns all that the pages ask."""
    return [*_lists(sample), *_usage(sample), *_slos(sample)]


def _lists(s: Sample) -> list[Query]:
    member = Access("member", tenants={s.tenant_id: Role.VIEWER})
    middle = s.now - s.span_days * DAY / 2
    filters = {
        "newest": RequestFilters(),
        "an old page": RequestFilters(until=middle),
        "failed": RequestFilters(status="failed"),
        "of a tenant": RequestFilters(tenant_id=s.tenant_id),
        "of a tenant, failed": RequestFilters(tenant_id=s.tenant_id, status="failed"),
        "of a key": RequestFilters(key_id=s.key_id),
        "of a model": RequestFilters(model=s.model),
        "of an instance": RequestFilters(instance=s.instance),
        "missed": RequestFilters(missed_only=True),
        "of a tenant, missed": RequestFilters(tenant_id=s.tenant_id, missed_only=True),
        "by our id": RequestFilters(search=s.request_id),
        "by the client's id": RequestFilters(search=s.client_request_id),
    }
    found = [_list(f"requests, {name}", OPERATOR, one) for name, one in filters.items()]
    found.append(_list("requests, a member's", member, RequestFilters()))
    found.append(
        Query("one request", lambda: request_get(access=OPERATOR, request_id=s.request_id))
    )
    return found


def _list(name: str, access: Access, filters: RequestFilters) -> Query:
    return Query(name, lambda: list(requests_list(access=access, filters=filters)[:PAGE_ROWS]))


def _usage(s: Sample) -> list[Query]:
    def sums(group_by: GroupBy, tenants: list[int] | None, days: int) -> Callable[[], Any]:
        since = s.now - days * DAY
        return lambda: usage_rows(
            access=OPERATOR, tenants=tenants, since=since, until=s.now, group_by=group_by
        )

    own, limits = [s.tenant_id], Limits(100, 10_000, 10, None)
    return [
        Query("usage of a tenant by hour, a day", sums("hour", own, 1)),
        Query("usage of a tenant by day", sums("day", own, s.span_days)),
        Query("usage of a tenant by key", sums("key", own, s.span_days)),
        Query("usage of all by day", sums("day", None, s.span_days)),
        Query("usage of all by model", sums("model", None, s.span_days)),
        Query("usage of all by tenant", sums("tenant", None, s.span_days)),
        Query("a tenant's cost this month", lambda: month_cost(tenant_id=s.tenant_id, at=s.now)),
        Query(
            "preview of limits", lambda: preview(tenant_id=s.tenant_id, limits=limits, now=s.now)
        ),
    ]


def _slos(s: Sample) -> list[Query]:
    def slow(tenant_id: int | None, name: PriorityClass | None) -> Callable[[], Any]:
        return lambda: slow_requests(
            access=OPERATOR, tenant_id=tenant_id, priority_class=name,
            since=s.now - s.span_days * DAY, limit=PAGE_ROWS,
        )  # fmt: skip

    return [
        Query("SLOs of all", lambda: slo_report(access=OPERATOR, now=s.now)),
        Query(
            "SLOs of a tenant",
            lambda: slo_report(access=OPERATOR, now=s.now, tenant_id=s.tenant_id),
        ),
        Query("slow requests of all", slow(None, None)),
        Query("slow requests of a tenant and class", slow(s.tenant_id, PriorityClass.NORMAL)),
    ]


def sample_of(now: datetime, span_days: int) -> Sample:
    """Returns a sample of what is in the tables: of the tenant with most requests, the first."""
    newest = RequestRecord.objects.order_by("-arrived_at")
    row = newest.filter(tenant_id=1).exclude(client_request_id="")[0]
    return Sample(
        now, row.tenant_id, row.key_id, row.model, row.instance, row.request_id,
        row.client_request_id, span_days,
    )  # fmt: skip
