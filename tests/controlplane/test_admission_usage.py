"""What pages and the REST API are told of a tenant's limits."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from controlplane.admission.estimate import Estimate
from controlplane.admission.leases import Asked, Change
from controlplane.admission.store import AdmissionStore
from controlplane.admission.usage_now import LimitUse, ausage_now
from controlplane.admission.verdict import NO_POOL_LIMITS
from controlplane.tenants.models import Tenant
from controlplane.tenants.selectors import limits_of
from engine_pool.store import connect
from engine_pool.token_log import LogTimes, TokenLogReader

pytestmark = [pytest.mark.asyncio, pytest.mark.django_db(transaction=True)]


@pytest.fixture
async def tenant(store_url: str, monkeypatch: pytest.MonkeyPatch) -> Tenant:
    monkeypatch.setattr("controlplane.admission.usage_now.connect", lambda url: connect(store_url))
    return await Tenant.objects.acreate(
        name="t", slug="t", requests_per_minute=10, tokens_per_minute=1000,
        concurrency=4, monthly_budget=Decimal(2),
    )  # fmt: skip


async def test_who_has_asked_for_nothing_has_used_nothing(tenant: Tenant) -> None:
    use = await ausage_now(tenant.pk)
    for one in (use.requests_per_minute, use.tokens_per_minute, use.concurrency):
        assert (one.used, one.reserved, one.share) == (0, 0, 0.0)
    assert use.monthly_budget.limit == 2


async def test_what_runs_is_reserved_and_what_was_used_is_used(
    tenant: Tenant, async_store: Any
) -> None:
    calls = AdmissionStore(async_store, TokenLogReader(async_store, LogTimes()), "web")
    now = datetime.now(UTC)
    await calls.set_spent(tenant.pk, f"{now:%Y-%m}", 100_000_000)
    for request_id in ("ended", "runs"):
        asked = Asked(request_id, tenant.pk, "default", "m", Estimate(50, 250), limits_of(tenant))
        await calls.reserve(asked, NO_POOL_LIMITS, 30_000_000, 15_000)
    await calls.change(
        [
            Change("s", "ended", 0, 50, 0, 100, 10_000_000),
            Change("r", "runs", 15_000, 50, 0, 80, 8_000_000),
        ]
    )
    use: LimitUse = await ausage_now(tenant.pk)
    assert (use.requests_per_minute.used, use.requests_per_minute.limit) == (2, 10)
    assert (use.tokens_per_minute.used, use.tokens_per_minute.reserved) == (180, 220)
    assert use.tokens_per_minute.share == 0.4
    assert (use.concurrency.used, use.concurrency.resets_at) == (1, None)
    budget = use.monthly_budget
    assert (budget.used, budget.reserved) == (Decimal("1.18"), Decimal("0.22"))
    assert budget.resets_at is not None
    assert (budget.resets_at.day, budget.resets_at > now) == (1, True)
    window = use.requests_per_minute.resets_at
    assert window is not None
    assert 50 < (window - now).total_seconds() < 65
