"""How full a tenant's limits are now, for pages and the REST API."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from asgiref.sync import sync_to_async
from django.conf import settings

from controlplane.admission.scripts import LOOK
from controlplane.admission.verdict import from_units
from controlplane.tenants.models import Tenant
from controlplane.tenants.selectors import Limits, limits_of
from controlplane.usage.selectors import month_cost
from engine_pool.store import connect


@dataclass(frozen=True, slots=True)
class Use:
    """Of one limit. `used` includes nothing of what is only `reserved`; `limit` None: none."""

    used: Decimal
    reserved: Decimal
    """By requests under way, beyond what they have used so far."""
    limit: Decimal | None
    resets_at: datetime | None
    """When all of it is free if nothing more comes; None: as requests end."""

    @property
    def share(self) -> float | None:
        """How much of the limit is taken, reservations too; None without a limit."""
        if self.limit is None:
            return None
        taken = self.used + self.reserved
        return float(taken / self.limit) if self.limit else float(taken > 0)


@dataclass(frozen=True, slots=True)
class LimitUse:
    """Of a tenant."""

    requests_per_minute: Use
    tokens_per_minute: Use
    concurrency: Use
    monthly_budget: Use
    at: datetime


def usage_now(tenant_id: int) -> LimitUse:
    """Returns a tenant's use of its limits. One round trip to the store, one or two queries.

    Whether the caller may know it is the caller's to check. Raises: Tenant.DoesNotExist;
    redis.RedisError when the store does not answer.
    """
    limits = limits_of(Tenant.objects.get(pk=tenant_id))
    store = connect(settings.POOL.redis_url)
    try:
        found = store.register_script(LOOK)(keys=[], args=[tenant_id, 1])
    finally:
        store.close()
    requests, tokens, live, requests_reset_ms, tokens_reset_ms = map(int, found[:5])
    now = datetime.now(UTC)
    spent_units, held_tokens, held_units = map(int, found[6:])
    spent = from_units(spent_units)
    if spent_units < 0:
        # No request has needed it since the store's start, so none reserves any of it.
        spent, held_units = month_cost(tenant_id=tenant_id, at=now), 0
    return _use_of(
        limits, now, (requests, requests_reset_ms), (tokens - held_tokens, tokens_reset_ms),
        held_tokens, live, spent - from_units(held_units), from_units(held_units),
    )  # fmt: skip


ausage_now = sync_to_async(usage_now)


def _use_of(
    limits: Limits,
    now: datetime,
    requests: tuple[int, int],
    tokens: tuple[int, int],
    held_tokens: int,
    live: int,
    spent: Decimal,
    held_cost: Decimal,
) -> LimitUse:
    def window(used: tuple[int, int], held: int, limit: int | None) -> Use:
        resets_at = now + timedelta(milliseconds=used[1])
        return Use(Decimal(max(0, used[0])), Decimal(held), _number(limit), resets_at)

    next_month = (now.replace(day=1) + timedelta(days=32)).replace(
        day=1, hour=0, minute=0, second=0, microsecond=0
    )
    return LimitUse(
        window(requests, 0, limits.requests_per_minute),
        window(tokens, held_tokens, limits.tokens_per_minute),
        Use(Decimal(live), Decimal(0), _number(limits.concurrency), None),
        Use(max(Decimal(0), spent), held_cost, limits.monthly_budget, next_month),
        now,
    )


def _number(limit: int | None) -> Decimal | None:
    return None if limit is None else Decimal(limit)
