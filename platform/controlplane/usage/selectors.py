"""Questions about usage, requests and SLOs. Each sees what the caller's access shows, no more."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.db.models import QuerySet

from controlplane.gateway.models import RequestRecord
from controlplane.tenants.access import Access
from controlplane.usage.sums import GroupBy, SloState, UsageSum
from engine_pool.types import PriorityClass


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
    since: datetime | None = None
    """Of the arrival; also bounds how many rows a rare filter reads."""
    until: datetime | None = None
    missed_only: bool = False
    """Those that missed a target."""
    search: str = ""
    """The beginning of our id, or a client's X-Request-Id."""


def month_cost(*, tenant_id: int, at: datetime) -> Decimal:
    """Returns what a tenant's requests have cost in the calendar month (UTC) of a moment."""
    raise NotImplementedError


def usage_rows(
    *,
    access: Access,
    tenants: list[int] | None,
    since: datetime,
    until: datetime,
    group_by: GroupBy,
) -> list[UsageSum]:
    """Returns sums by group, times first to last, others by cost and tokens, most first.

    `tenants`: None: all that are visible. Whole hours: `since` is rounded down, `until` up.
    """
    raise NotImplementedError


def requests_list(*, access: Access, filters: RequestFilters) -> "QuerySet[RequestRecord]":
    """Returns ended requests, newest arrival first. Page it by (arrived_at, id), do not count it."""
    raise NotImplementedError


def request_get(*, access: Access, request_id: str) -> RequestRecord:
    """Raises: NotVisible."""
    raise NotImplementedError


def slo_report(*, access: Access, now: datetime, tenant_id: int | None = None) -> list[SloState]:
    """Returns how every SLO stands, by tenant and class; those that had no request too."""
    raise NotImplementedError


def slow_requests(
    *,
    access: Access,
    tenant_id: int | None,
    priority_class: PriorityClass | None,
    since: datetime,
    limit: int,
) -> Sequence[RequestRecord]:
    """Returns requests that missed a target, newest end first."""
    raise NotImplementedError
