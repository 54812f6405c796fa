"""What a tenant uses now and used lately, as the pages show it: a store or a table that does not
answer makes dashes, never a page that fails."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal

from redis.exceptions import RedisError

from controlplane.admission.usage_now import Use, usage_now
from controlplane.tenants.access import Access
from controlplane.tenants.models import Tenant
from controlplane.tenants.selectors import limits_of
from controlplane.usage.selectors import slo_report, usage_rows
from controlplane.usage.sums import SloState
from web.tenant_words import Meter, MeterKey, month_start

logger = logging.getLogger(__name__)


def meters_of(tenant: Tenant) -> dict[MeterKey, Meter]:
    """Returns how full the tenant's limits are; unknown ones while the store is away."""
    return _meters(tenant) or _unknown(tenant)


@dataclass(frozen=True, slots=True)
class TenantRow:
    """One line of the list."""

    tenant: Tenant
    meters: dict[MeterKey, Meter]
    states: tuple[SloState, ...] = field(default_factory=tuple)


def rows_of(access: Access, tenants: Sequence[Tenant], now: datetime) -> list[TenantRow]:
    """Returns the lines of these tenants: three queries, and one call to the store for each."""
    ids = [tenant.pk for tenant in tenants]
    spent = spent_since(access, ids, month_start(now), now)
    states = slo_report(access=access, now=now)
    rows: list[TenantRow] = []
    is_away = False
    for tenant in tenants:
        # A store that did not answer for one tenant is not waited for again.
        meters = None if is_away else _meters(tenant)
        is_away = meters is None
        meters = with_ledger(meters or _unknown(tenant), spent.get(tenant.pk, Decimal(0)))
        own = tuple(state for state in states if state.tenant_id == tenant.pk)
        rows.append(TenantRow(tenant, meters, own))
    return rows


def spent_since(
    access: Access, tenant_ids: Iterable[int], since: datetime, now: datetime
) -> dict[int, Decimal]:
    """Returns cost by tenant's row id."""
    rows = usage_rows(
        access=access, tenants=list(tenant_ids), since=since, until=now, group_by="tenant"
    )
    return {row.row_id: row.cost for row in rows if row.row_id is not None}


def spent_in_a_day(access: Access, tenant: Tenant, now: datetime) -> Decimal:
    found = spent_since(access, [tenant.pk], now - timedelta(hours=24), now)
    return found.get(tenant.pk, Decimal(0))


def with_ledger(meters: dict[MeterKey, Meter], spent: Decimal) -> dict[MeterKey, Meter]:
    """Fills in the month's cost from the ledger where the store does not tell it: it is the same
    but for the requests that go on."""
    budget = meters["budget"]
    if budget.used is None:
        meters = {**meters, "budget": Meter("budget", used=spent, limit=budget.limit)}
    return meters


def _meters(tenant: Tenant) -> dict[MeterKey, Meter] | None:
    """Returns what the store says; None while it does not answer."""
    try:
        use = usage_now(tenant.pk)
    except (RedisError, OSError) as error:
        logger.warning("limits of %s not known: %s", tenant.slug, type(error).__name__)
        return None
    found: dict[MeterKey, Use] = {
        "requests": use.requests_per_minute,
        "tokens": use.tokens_per_minute,
        "concurrency": use.concurrency,
        "budget": use.monthly_budget,
    }
    return {
        key: Meter(key, one.used, one.reserved, one.limit, one.resets_at)
        for key, one in found.items()
    }


def _unknown(tenant: Tenant) -> dict[MeterKey, Meter]:
    limits = limits_of(tenant)
    return {
        "requests": Meter("requests", limit=limits.requests_per_minute),
        "tokens": Meter("tokens", limit=limits.tokens_per_minute),
        "concurrency": Meter("concurrency", limit=limits.concurrency),
        "budget": Meter("budget", limit=limits.monthly_budget),
    }
