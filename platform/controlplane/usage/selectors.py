"""Questions about usage and requests. Each sees what the caller's access shows, no more.

Those about SLOs stand in slo_selectors.py, and can be had from here.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from django.db.models import QuerySet

from controlplane.errors import NotVisible
from controlplane.gateway.models import MISSED, REPLAYED, RequestRecord
from controlplane.tenants.access import Access
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.tenants.selectors import visible_to
from controlplane.usage import sums_sql
from controlplane.usage.rollups import LONG_S, USAGE_SUMS, ceil, floor
from controlplane.usage.slo_selectors import slo_report, slow_requests
from controlplane.usage.sums import GroupBy, UsageSum

__all__ = [
    "RequestFilters",
    "month_cost",
    "request_get",
    "requests_list",
    "slo_report",
    "slow_requests",
    "usage_rows",
]

_FIELDS: Final[dict[GroupBy, str]] = {
    "hour": "at",
    "day": "at",
    "month": "at",
    "model": "model",
    "key": "key_id",
    "class": "priority_class",
    "tenant": "tenant_id",
}
SEARCHED_MAX: Final = 1000
"""Requests that one X-Request-Id may find: clients may send the same one for ever."""


@dataclass(frozen=True, slots=True)
class RequestFilters:
    """Which requests a list shows; None or empty: whatever they are."""

    tenant_id: int | None = None
    status: str = ""
    priority_class: str = ""
    model: str = ""
    pool: str = ""
    key_id: int | None = None
    instance: str = ""
    """The one that took it first."""
    since: datetime | None = None
    """Of the arrival; also bounds how many rows a rare combination reads."""
    until: datetime | None = None
    missed_only: bool = False
    """Those that missed a target."""
    replayed_only: bool = False
    """Those that went on elsewhere after their engine was lost."""
    search: str = ""
    """Our id, or a client's X-Request-Id, whole."""


def month_cost(*, tenant_id: int, at: datetime) -> Decimal:
    """Returns what a tenant's requests have cost in the calendar month (UTC) of a moment."""
    since, until = month_of(at)
    parts = sums_sql.usage_parts((), tenants=[tenant_id], since=since, until=until)
    return sum((row[-1] for row in parts), Decimal(0))


def month_of(at: datetime) -> tuple[datetime, datetime]:
    """Returns the beginning of a moment's month (UTC), and of the next one."""
    since = at.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    years, month = divmod(since.month, 12)
    return since, since.replace(year=since.year + years, month=month + 1)


def usage_rows(
    *,
    access: Access,
    tenants: list[int] | None,
    since: datetime,
    until: datetime,
    group_by: GroupBy,
) -> list[UsageSum]:
    """Returns sums by group, times first to last, others by cost and tokens, most first.

    `tenants`: None: all that are visible. Whole hours: `since` is rounded down, `until` up. The
    sums are right to the second. One query, and one for names of keys or tenants.
    """
    parts = sums_sql.usage_parts(
        (_FIELDS[group_by],),
        tenants=_visible(access, tenants),
        since=floor(since, LONG_S),
        until=ceil(until, LONG_S),
        by_hour=group_by == "hour",
    )
    found: dict[Any, UsageSum] = {}
    for value, *sums in parts:
        group = _group(group_by, value)
        known = found.get(group) or _new(group_by, group)
        found[group] = replace(
            known, **{n: getattr(known, n) + v for n, v in zip(USAGE_SUMS, sums, strict=True)}
        )
    if group_by in ("hour", "day", "month"):
        return [found[group] for group in sorted(found)]
    rows = sorted(found.values(), key=_weight, reverse=True)
    return _named(rows, group_by) if group_by in ("key", "tenant") else rows


def requests_list(*, access: Access, filters: RequestFilters) -> "QuerySet[RequestRecord]":
    """Returns ended requests, newest arrival first.

    Page it by (arrived_at, id), as `before` does, and do not count it: there are millions.
    """
    # No join: SQLite would begin with the tenants, and sort all their requests.
    rows = visible_to(access, RequestRecord.objects.prefetch_related("tenant"))
    if not access.sees_all and len(access.tenants) == 1:
        # Said plainly, so that the index's own order is used.
        rows = rows.filter(tenant_id=next(iter(access.tenants)))
    same = {
        "tenant_id": filters.tenant_id,
        "status": filters.status,
        "priority_class": filters.priority_class,
        "model": filters.model,
        "pool": filters.pool,
        "key_id": filters.key_id,
        "instance": filters.instance,
        "arrived_at__gte": filters.since,
        "arrived_at__lt": filters.until,
    }
    rows = rows.filter(**{name: v for name, v in same.items() if v is not None and v != ""})
    if filters.missed_only:
        rows = rows.filter(MISSED)
    if filters.replayed_only:
        rows = rows.filter(REPLAYED)
    if filters.search:
        rows = rows.filter(pk__in=_searched(filters.search))
    return rows.order_by("-arrived_at", "-pk")


def request_get(*, access: Access, request_id: str) -> RequestRecord:
    """Raises: NotVisible."""
    rows = RequestRecord.objects.select_related("tenant").filter(request_id=request_id)
    found = visible_to(access, rows).first()
    if found is None:
        raise NotVisible(f"There is no request {request_id!r}.")
    return found


def _searched(text: str) -> list[int]:
    by_client = RequestRecord.objects.filter(client_request_id=text).order_by("-pk")
    newest = by_client.values_list("pk", flat=True)[:SEARCHED_MAX]
    return [*RequestRecord.objects.filter(request_id=text).values_list("pk", flat=True), *newest]


def _visible(access: Access, tenants: Collection[int] | None) -> list[int] | None:
    """Returns the tenants whose rows are to be read, None for all."""
    if access.sees_all:
        return None if tenants is None else list(tenants)
    return [i for i in access.tenants if tenants is None or i in tenants]


def _group(group_by: GroupBy, value: Any) -> Any:
    if group_by == "day":
        return value.astimezone(UTC).replace(hour=0)
    return month_of(value)[0] if group_by == "month" else value


def _new(group_by: GroupBy, group: Any) -> UsageSum:
    if isinstance(group, datetime):
        return UsageSum(group.astimezone(UTC).isoformat(), at=group)
    if group_by in ("key", "tenant"):
        return UsageSum(str(group), row_id=group)
    return UsageSum(group)


def _weight(row: UsageSum) -> tuple[Decimal, int]:
    return row.cost, row.prompt_tokens + row.output_tokens


def _named(rows: Sequence[UsageSum], group_by: GroupBy) -> list[UsageSum]:
    """Gives keys and tenants the names that people know; what is deleted keeps its number."""
    ids = [row.row_id for row in rows if row.row_id is not None]
    if group_by == "tenant":
        names = dict(Tenant.objects.filter(pk__in=ids).values_list("pk", "slug"))
    else:
        names = {key.pk: str(key) for key in ApiKey.objects.filter(pk__in=ids)}
        names[0] = "playground"
    return [replace(row, group=names.get(row.row_id, row.group)) for row in rows]
