"""The statements behind the sums: what is rolled up and what is not yet, in one snapshot.

Each question is one statement of several parts (UNION ALL), so that a roll-up that runs at the same
moment is seen whole or not at all. A group may come once from each part: the caller adds them up.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from django.db.models import Count, F, Q, QuerySet, Sum, Value
from django.db.models.functions import TruncHour

from controlplane.gateway.models import MISSED, RequestRecord, RequestStatus
from controlplane.usage.models import SloMinutes, UsageDay, UsageHour
from controlplane.usage.rollups import DAY_S, LONG_S, SHORT_S, USAGE_SUMS, ceil, floor

VALID: Final = Q(is_ttft_met__isnull=False) | Q(is_tpot_met__isnull=False)
FAILED: Final = Q(status=RequestStatus.FAILED)
Row = tuple[Any, ...]


def usage_parts(
    groups: Sequence[str],
    *,
    tenants: Collection[int] | None,
    since: datetime,
    until: datetime,
    by_hour: bool = False,
) -> Iterator[Row]:
    """Yields (the groups' values, USAGE_SUMS) of the requests that ended in the time. One query.

    `groups`: fields that UsageHour and UsageDay have, or `at`: the beginning of an hour, or of the
    day unless `by_hour`. `tenants`: None: all. `since`, `until`: whole hours.
    """
    first, last = ceil(since, DAY_S), floor(until, DAY_S)
    hours = UsageHour.objects.annotate(at=F("hour"))
    in_time = hours.filter(hour__gte=since, hour__lt=until)
    added = {name: Sum(name) for name in USAGE_SUMS}
    counted = {
        "requests": Count("pk"),
        "failed": Count("pk", filter=FAILED),
        "partial": Count("pk", filter=Q(is_partial=True) & ~FAILED),
        **{name: Sum(name) for name in USAGE_SUMS[3:]},
    }
    waiting = _unrolled(since).filter(ended_at__lt=until).annotate(at=_HOUR_OF_END)
    parts = [_grouped(_of(waiting, tenants), groups, counted)]
    if by_hour or first >= last:
        parts.append(_grouped(_of(in_time, tenants), groups, added))
    else:
        # Whole days by their own sums, the hours before and after them by theirs.
        days = UsageDay.objects.annotate(at=F("day")).filter(day__gte=first, day__lt=last)
        before = hours.filter(hour__gte=since, hour__lt=first)
        after = hours.filter(hour__gte=last, hour__lt=until)
        parts += [_grouped(_of(part, tenants), groups, added) for part in (days, before, after)]
    # Without groups a part without rows gives one row of NULLs.
    return (row for row in parts[0].union(*parts[1:], all=True) if row[len(groups)])


def slo_parts(
    *,
    tenants: Collection[int] | None,
    start: datetime,
    sinces: Mapping[str, datetime],
    long_sinces: Mapping[str, datetime],
) -> Iterator[Row]:
    """Yields (tenant's id, class, requests, met, TTFT missed, TPOT missed, failed since `start`,
    then requests and missed ones of each of `sinces` and `long_sinces`, in their order). One query.

    `start`, `long_sinces`: whole hours; `sinces`: whole five minutes.
    """
    groups = ("tenant_id", "priority_class")
    window = {
        "in_window": Sum("requests"),
        "in_met": Sum("met"),
        "in_ttft": Sum("ttft_missed"),
        "in_tpot": Sum("tpot_missed"),
        "in_failed": Sum("failed"),
    }
    late = sinces | long_sinces
    nothing: dict[str, Any] = dict.fromkeys(
        [*window, *(f"{kind}_{name}" for name in late for kind in ("valid", "missed"))], Value(0)
    )
    parts = [(part, nothing | window) for part in _periods(start, by_day=True)]
    for length_s, some in ((SHORT_S, sinces), (LONG_S, long_sinces)):
        since = min(some.values(), default=start)
        rows = SloMinutes.objects.filter(length_s=length_s, at__gte=since)
        parts.append((rows, nothing | _late_sums(some)))
    counted = {
        "in_window": Count("pk"),
        "in_met": Count("pk") - Count("pk", filter=MISSED),
        "in_ttft": Count("pk", filter=Q(is_ttft_met=False) & ~FAILED),
        "in_tpot": Count("pk", filter=Q(is_tpot_met=False) & ~FAILED),
        "in_failed": Count("pk", filter=FAILED),
    }
    for name, since in late.items():
        ended = Q(ended_at__gte=since)
        counted[f"valid_{name}"] = Count("pk", filter=ended)
        counted[f"missed_{name}"] = Count("pk", filter=ended & MISSED)
    waiting = _grouped(_of(_unrolled(start).filter(VALID), tenants), groups, counted)
    others = [_grouped(_of(part, tenants), groups, sums) for part, sums in parts]
    return iter(waiting.union(*others, all=True))


def _late_sums(sinces: Mapping[str, datetime]) -> dict[str, Any]:
    """Returns the requests and the missed ones of each time, from the periods' sums."""
    found: dict[str, Any] = {}
    for name, since in sinces.items():
        late = Q(at__gte=since)
        valid = Sum("requests", filter=late, default=0)
        found[f"valid_{name}"] = valid
        found[f"missed_{name}"] = valid - Sum("met", filter=late, default=0)
    return found


def slo_series_parts(
    *, tenants: Collection[int] | None, start: datetime, by_day: bool
) -> Iterator[Row]:
    """Yields (tenant's id, class, beginning, requests, met) of each hour since `start`, a whole
    hour; or of each whole day, and of the hours before the first. One query."""
    groups = ("tenant_id", "priority_class", "at")
    added = {"valid": Sum("requests"), "good": Sum("met")}
    counted = {"valid": Count("pk"), "good": Count("pk") - Count("pk", filter=MISSED)}
    waiting = _of(_unrolled(start).filter(VALID), tenants).annotate(at=_HOUR_OF_END)
    parts = [_grouped(_of(part, tenants), groups, added) for part in _periods(start, by_day=by_day)]
    return iter(_grouped(waiting, groups, counted).union(*parts, all=True))


_HOUR_OF_END: Final = TruncHour("ended_at", tzinfo=UTC)


def _periods(start: datetime, *, by_day: bool) -> list["QuerySet[SloMinutes]"]:
    """Returns the periods since a moment: hours, or whole days and the hours before the first."""
    hours = SloMinutes.objects.filter(length_s=LONG_S, at__gte=start)
    if not by_day:
        return [hours]
    first = ceil(start, DAY_S)
    days = SloMinutes.objects.filter(length_s=DAY_S, at__gte=first)
    return [days, hours.filter(at__lt=first)]


def _unrolled(since: datetime) -> "QuerySet[RequestRecord]":
    return RequestRecord.objects.filter(is_rolled=False, ended_at__gte=since)


def _of(rows: "QuerySet[Any]", tenants: Collection[int] | None) -> "QuerySet[Any]":
    return rows if tenants is None else rows.filter(tenant_id__in=sorted(tenants))


def _grouped(
    rows: "QuerySet[Any]", groups: Sequence[str], sums: Mapping[str, Any]
) -> "QuerySet[Any, Row]":
    # Names of their own: a sum may be called as a field is.
    named = {f"sum_{name}": expression for name, expression in sums.items()}
    # Without a group Django would take each row for one.
    base = rows.order_by().annotate(all_rows=Value(1)).values(*(groups or ["all_rows"]))
    return base.annotate(**named).values_list(*groups, *named)
