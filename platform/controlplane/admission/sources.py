"""What admission asks the database for, through caches that never hold up a request."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from django.db import close_old_connections

from controlplane.admission.pool_limits import PoolLimitBook
from controlplane.admission.verdict import PoolLimits
from controlplane.usage import selectors
from controlplane.usage.prices import Price, price_book


def _month_cost(tenant_id: int, at: datetime) -> Decimal:
    close_old_connections()
    return selectors.month_cost(tenant_id=tenant_id, at=at)


@dataclass(slots=True)
class Sources:
    """Of one web process. `start` before use; tests give functions of their own."""

    price: Callable[[str], Price]
    """Of a model now. Never waits."""
    pool_limits: Callable[[str], PoolLimits]
    """Of a pool now. Never waits."""
    month_cost: Callable[[int, datetime], Decimal]
    """Of a tenant and a month; blocking, one query. Raises: DatabaseError."""
    start: Callable[[], None] = field(default=lambda: None)
    stop: Callable[[], None] = field(default=lambda: None)


def database_sources() -> Sources:
    """Returns those that read the database."""
    prices, limits = price_book(), PoolLimitBook()

    def start() -> None:
        prices.start()
        limits.start()

    def stop() -> None:
        prices.stop()
        limits.stop()

    return Sources(prices.price, limits.of, _month_cost, start, stop)
