"""Rows of requests that have ended, for tests of what is counted from them."""

import itertools
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from controlplane.gateway.models import RequestRecord
from controlplane.tenants.models import Tenant

NOW = datetime(2026, 3, 15, 12, 34, 56, tzinfo=UTC)
_numbers = itertools.count()


def tenant(slug: str = "alice", **fields: Any) -> Tenant:
    return Tenant.objects.get_or_create(slug=slug, defaults={"name": slug.title(), **fields})[0]


def row(of: Tenant, ended_at: datetime = NOW, **fields: Any) -> RequestRecord:
    """Returns a completed request's row that is not in the database yet."""
    values: dict[str, Any] = {
        "request_id": f"chatcmpl-{next(_numbers)}",
        "tenant": of,
        "key_id": 1,
        "model": "m",
        "endpoint": "chat",
        "priority_class": "normal",
        "status": "completed",
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "output_tokens": 5,
        "cost": Decimal("0.00000125"),
        "arrived_at": ended_at - timedelta(seconds=2),
        "ended_at": ended_at,
        "duration_ms": 2000.0,
    }
    return RequestRecord(**(values | fields))


def add(*rows: RequestRecord) -> None:
    RequestRecord.objects.bulk_create(rows)
