"""What a tenant's last 24 hours would have looked like under other limits.

The records' arrivals are replayed against each limit on its own: the same sliding minute and the
same month as at the door. It is a preview, not a forecast: a client that is refused comes again,
and requests that a limit refused then are in no record. Tokens count at the arrival with what they
came to in the end, where the door reserves an estimate first.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from heapq import heappop, heappush
from typing import Final, NamedTuple

from controlplane.gateway.models import RequestRecord
from controlplane.tenants.selectors import Limits
from controlplane.usage import sums_sql
from controlplane.usage.selectors import month_of

SPAN: Final = timedelta(hours=24)
WINDOW_S: Final = 60.0
"""A limit by the minute looks back so far at each request."""
ROWS_MAX: Final = 50_000
"""Newest requests that are replayed: half a second; with more the preview says that it was cut."""


class Arrival(NamedTuple):
    """What a request took of each limit."""

    arrived_s: float
    """Unix seconds."""
    ended_s: float
    tokens: int
    """Prompt and output."""
    cost: Decimal


@dataclass(frozen=True, slots=True)
class LimitPreview:
    """How many requests each limit would have refused; None where there is no limit."""

    requests: int
    """That were replayed."""
    since: datetime
    """Arrival of the first one that was; later than 24 hours ago when it was cut."""
    is_cut: bool
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    monthly_budget: int | None = None


def preview(*, tenant_id: int, limits: Limits, now: datetime) -> LimitPreview:
    """Replays a tenant's last 24 hours under the limits. Two queries, ROWS_MAX rows at most."""
    since = now - SPAN
    rows = RequestRecord.objects.filter(
        tenant_id=tenant_id, arrived_at__gte=since, arrived_at__lt=now
    ).order_by("-arrived_at")
    values = rows.values_list("arrived_at", "duration_ms", "prompt_tokens", "output_tokens", "cost")
    found = list(values[: ROWS_MAX + 1])
    is_cut = len(found) > ROWS_MAX
    found = found[:ROWS_MAX][::-1]
    arrivals = [
        Arrival(at.timestamp(), at.timestamp() + took_ms / 1000, prompt + output, cost)
        for at, took_ms, prompt, output, cost in found
    ]
    begin = found[0][0] if is_cut else since
    spent = Decimal(0)
    if limits.monthly_budget is not None:
        spent = _spent_before(tenant_id, begin, now, arrivals)
    return replay(arrivals, limits, since=begin, is_cut=is_cut, spent=spent)


def replay(
    arrivals: Sequence[Arrival],
    limits: Limits,
    *,
    since: datetime,
    is_cut: bool = False,
    spent: Decimal = Decimal(0),
) -> LimitPreview:
    """Counts what each limit refuses, each as if it were the only one. Pure.

    `arrivals`: first to last. `spent`: of the month's budget, before the first.
    """
    return LimitPreview(
        requests=len(arrivals),
        since=since,
        is_cut=is_cut,
        requests_per_minute=_over_rate(
            [(a.arrived_s, 1) for a in arrivals], limits.requests_per_minute
        ),
        tokens_per_minute=_over_rate(
            [(a.arrived_s, a.tokens) for a in arrivals], limits.tokens_per_minute
        ),
        concurrency=_over_concurrency(arrivals, limits.concurrency),
        monthly_budget=_over_budget(arrivals, limits.monthly_budget, spent),
    )


def _over_rate(amounts: Sequence[tuple[float, int]], limit: int | None) -> int | None:
    """Counts what does not fit into a sliding minute; what is refused takes nothing of it."""
    if limit is None:
        return None
    taken: deque[tuple[float, int]] = deque()
    used = refused = 0
    for at_s, amount in amounts:
        while taken and taken[0][0] <= at_s - WINDOW_S:
            used -= taken.popleft()[1]
        if used + amount > limit:
            refused += 1
        else:
            taken.append((at_s, amount))
            used += amount
    return refused


def _over_concurrency(arrivals: Sequence[Arrival], limit: int | None) -> int | None:
    if limit is None:
        return None
    ends: list[float] = []
    refused = 0
    for arrival in arrivals:
        while ends and ends[0] <= arrival.arrived_s:
            heappop(ends)
        if len(ends) >= limit:
            refused += 1
        else:
            heappush(ends, arrival.ended_s)
    return refused


def _over_budget(arrivals: Sequence[Arrival], limit: Decimal | None, spent: Decimal) -> int | None:
    """Counts what comes when the budget does not hold it any more."""
    if limit is None:
        return None
    refused = 0
    for arrival in arrivals:
        if spent + arrival.cost > limit or spent >= limit:
            refused += 1
        else:
            spent += arrival.cost
    return refused


def _spent_before(
    tenant_id: int, begin: datetime, now: datetime, arrivals: Sequence[Arrival]
) -> Decimal:
    """Returns what the present month had cost before the replay began.

    When the month is younger than the replay, its own requests are all there is.
    """
    month, next_month = month_of(now)
    if begin < month:
        return Decimal(0)
    parts = sums_sql.usage_parts((), tenants=[tenant_id], since=month, until=next_month)
    whole = sum((row[-1] for row in parts), Decimal(0))
    return max(Decimal(0), whole - sum((a.cost for a in arrivals), Decimal(0)))
