"""Questions about SLOs: how they stand, and which requests missed them."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from django.db.models import Q

from controlplane.gateway.models import MISSED, RequestRecord
from controlplane.tenants.access import Access
from controlplane.tenants.models import Slo
from controlplane.tenants.selectors import Target, tenants_list, visible_to
from controlplane.usage import slo, sums_sql
from controlplane.usage.rollups import DAY_S, LONG_S, SHORT_S, floor
from controlplane.usage.slo import Counted
from controlplane.usage.sums import SloPoint, SloState
from engine_pool.types import PriorityClass

WINDOWS: Final[Mapping[str, timedelta]] = {
    "5m": timedelta(minutes=5),
    "30m": timedelta(minutes=30),
    "1h": timedelta(hours=1),
    "6h": timedelta(hours=6),
    "3d": timedelta(days=3),
}
"""Times over which burn rates are computed, in periods of five minutes, those above SHORT_MAX in
hours: a time is up to one period longer than it says."""
SHORT_MAX: Final = timedelta(hours=6)
SERIES_MAX: Final = 60
"""States that get a series; with more (all tenants of a large installation) nobody looks at it, and
it would be a hundred thousand points."""
HOURLY_MAX_DAYS: Final = 3
"""Windows up to this have a point an hour, longer ones a point a day."""
SLOW_MAX: Final = 1000

_Key = tuple[int, str]
"""Tenant's row id and class."""
_DEFAULT: Final = Slo()
"""Objective and window of requests that had targets of their own, without an SLO."""


@dataclass(slots=True)
class _Counts:
    """Sums of one tenant and class."""

    window: list[int]
    """Requests, met, TTFT missed, TPOT missed, failed."""
    short: dict[str, Counted]

    @classmethod
    def none(cls) -> "_Counts":
        return cls([0] * 5, {name: Counted() for name in WINDOWS})


def slo_report(*, access: Access, now: datetime, tenant_id: int | None = None) -> list[SloState]:
    """Returns how every SLO stands, by tenant and class; also those that had no request.

    Right to the second. A query for each length of window, and three or four more.
    """
    rows = tenants_list(access=access).only("pk", "slug")
    tenants = {t.pk: t for t in rows if tenant_id is None or t.pk == tenant_id}
    if not tenants:
        return []
    only = None if access.sees_all and tenant_id is None else sorted(tenants)
    slos = _slos(tenants)
    counts = _counts({s.window_days for s in slos.values()} | {_DEFAULT.window_days}, only, now)
    # Targets by header alone make a state too.
    for days, tenant, name in counts:
        if tenant in tenants and days == _DEFAULT.window_days:
            slos.setdefault((tenant, name), Slo(priority_class=name))
    states = [
        _state(
            tenants[key[0]].slug, key, row, counts.get((row.window_days, *key)) or _Counts.none()
        )
        for key, row in slos.items()
    ]
    states.sort(key=lambda state: (state.tenant, state.priority_class.rank))
    return states if len(states) > SERIES_MAX else _with_series(states, now)


def slow_requests(
    *,
    access: Access,
    tenant_id: int | None,
    priority_class: PriorityClass | None,
    since: datetime,
    limit: int,
) -> Sequence[RequestRecord]:
    """Returns requests that missed a target, newest arrival first, SLOW_MAX at most."""
    found = visible_to(access, RequestRecord.objects.prefetch_related("tenant"))
    found = found.filter(MISSED, arrived_at__gte=since)
    if tenant_id is not None:
        found = found.filter(tenant_id=tenant_id)
    if priority_class is not None:
        found = found.filter(priority_class=priority_class.value)
    return list(found.order_by("-arrived_at", "-pk")[: min(limit, SLOW_MAX)])


def _slos(tenants: Collection[int]) -> dict[_Key, Slo]:
    """Returns the SLO that counts, by tenant and class: the tenant's own, else everybody's."""
    rows = list(Slo.objects.filter(Q(tenant_id=None) | Q(tenant_id__in=list(tenants))))
    general = {row.priority_class: row for row in rows if row.tenant_id is None}
    found = {(pk, name): row for pk in tenants for name, row in general.items()}
    own = {(row.tenant_id, row.priority_class): row for row in rows if row.tenant_id is not None}
    return found | own


def _counts(
    windows_days: Iterable[int], only: Collection[int] | None, now: datetime
) -> dict[tuple[int, int, str], _Counts]:
    """Returns sums by (window in days, tenant's id, class)."""
    sinces, long_sinces = (
        {
            name: floor(now - length, length_s)
            for name, length in WINDOWS.items()
            if (length > SHORT_MAX) is is_long
        }
        for length_s, is_long in ((SHORT_S, False), (LONG_S, True))
    )
    found: dict[tuple[int, int, str], _Counts] = {}
    for days in sorted(windows_days):
        start = window_start(now, days)
        for tenant, name, *sums in sums_sql.slo_parts(
            tenants=only, start=start, sinces=sinces, long_sinces=long_sinces
        ):
            known = found.setdefault((days, tenant, name), _Counts.none())
            known.window = [a + b for a, b in zip(known.window, sums[:5], strict=True)]
            pairs = zip(sums[5::2], sums[6::2], strict=True)
            for window, (requests, missed) in zip(WINDOWS, pairs, strict=True):
                known.short[window] += Counted(requests, missed)
    return found


def window_start(now: datetime, days: int) -> datetime:
    """Returns where a rolling window begins: `days` ago, at the beginning of that hour."""
    return floor(now - timedelta(days=days), LONG_S)


def _state(tenant: str, key: _Key, row: Slo, counts: _Counts) -> SloState:
    requests, met, ttft_missed, tpot_missed, failed = counts.window
    counted = Counted(requests, requests - met)
    burns = {name: slo.burn_rate(c, row.objective) for name, c in counts.short.items()}
    return SloState(
        tenant_id=key[0],
        tenant=tenant,
        priority_class=PriorityClass(key[1]),
        target=Target(row.ttft_ms, row.tpot_ms),
        objective=row.objective,
        window_days=row.window_days,
        requests=requests,
        met=met,
        failed=failed,
        ttft_missed=ttft_missed,
        tpot_missed=tpot_missed,
        attainment=slo.attainment(counted),
        budget_left=slo.budget_left(counted, row.objective),
        burn_5m=burns["5m"],
        burn_30m=burns["30m"],
        burn_1h=burns["1h"],
        burn_6h=burns["6h"],
        burn_3d=burns["3d"],
        alert=slo.alert(burns, row.window_days),
    )


def _with_series(states: Sequence[SloState], now: datetime) -> list[SloState]:
    tenants = {state.tenant_id for state in states}
    found: dict[tuple[bool, int, str], dict[datetime, Counted]] = defaultdict(dict)
    for by_day in {not _is_hourly(state) for state in states}:
        days = max(state.window_days for state in states if _is_hourly(state) is not by_day)
        parts = sums_sql.slo_series_parts(
            tenants=tenants, start=window_start(now, days), by_day=by_day
        )
        for tenant, name, at, requests, met in parts:
            periods = found[by_day, tenant, name]
            periods[at] = periods.get(at, Counted()) + Counted(requests, requests - met)
    return [
        replace(
            state,
            series=_series(
                state, found[not _is_hourly(state), state.tenant_id, state.priority_class], now
            ),
        )
        for state in states
    ]


def _is_hourly(state: SloState) -> bool:
    return state.window_days <= HOURLY_MAX_DAYS


def _series(
    state: SloState, periods: Mapping[datetime, Counted], now: datetime
) -> tuple[SloPoint, ...]:
    """Returns a point for each hour or day with requests that count."""
    start = window_start(now, state.window_days)
    points: dict[datetime, Counted] = {}
    for at in sorted(at for at in periods if at >= start):
        begin = at if _is_hourly(state) else floor(at, DAY_S)
        points[begin] = points.get(begin, Counted()) + periods[at]
    return tuple(
        SloPoint(at, counted.requests, slo.attainment(counted)) for at, counted in points.items()
    )
