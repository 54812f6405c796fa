"""Rows that the pages of requests and SLOs are tested on."""

from datetime import datetime, timedelta
from decimal import Decimal
from itertools import count
from typing import Any

from django.utils import timezone

from controlplane.fleet.models import MigrationRecord
from controlplane.gateway.models import RequestRecord
from controlplane.tenants.access import Access, Role
from controlplane.tenants.models import Tenant
from controlplane.tenants.services import tenant_create

ROOT = Access("root", platform=Role.OWNER)
_numbers = count(1)


def tenant(slug: str) -> Tenant:
    return tenant_create(access=ROOT, name=slug.title(), slug=slug)


def request_id() -> str:
    """Returns an id like the gateway's."""
    return f"chatcmpl-{next(_numbers):032x}"


def record(of: Tenant, *, save: bool = True, **fields: Any) -> RequestRecord:
    """Returns a request of 231 tokens that took 6.1 s and moved once."""
    arrived_at: datetime = fields.pop("arrived_at", timezone.now() - timedelta(minutes=1))
    values: dict[str, Any] = {
        "request_id": request_id(),
        "model": "tiny",
        "endpoint": "chat",
        "priority_class": "normal",
        "status": "completed",
        "instance": "i-01",
        "instances": ["i-01", "i-02"],
        "migrations": 1,
        "dispatch_reason": "i-01 is the freest: 412 decode steps",
        "prompt_tokens": 512,
        "cached_tokens": 128,
        "output_tokens": 231,
        "cost": Decimal("0.00012"),
        "ended_at": arrived_at + timedelta(seconds=6.1),
        "queue_ms": 200.0,
        "prefill_ms": 300.0,
        "ttft_ms": 500.0,
        "decode_ms": 5589.0,
        "migration_ms": 9.0,
        "tpot_ms": 24.3,
        "duration_ms": 6100.0,
        "ttft_target_ms": 1000.0,
        "tpot_target_ms": 20.0,
        "is_ttft_met": True,
        "is_tpot_met": False,
    }
    row = RequestRecord(tenant=of, arrived_at=arrived_at, **{**values, **fields})
    if save:
        row.save()
    return row


def move(of: RequestRecord, *, after_ms: float = 2000.0, **fields: Any) -> MigrationRecord:
    """Returns a committed move of a request from i-01 to i-02, which paused it 300 ms later."""
    started_at = of.arrived_at + timedelta(milliseconds=after_ms)
    values: dict[str, Any] = {
        "migration_id": f"mig{next(_numbers)}",
        "request_id": of.request_id,
        "pool": "default",
        "source": "i-01",
        "destination": "i-02",
        "state": "committed",
        "asked_by": "rebalancer",
        "reason": "i-01 12 < 48 and i-02 204 > 48",
        "started_at": started_at,
        "ended_at": started_at + timedelta(milliseconds=320),
        "downtime_ms": 9.0,
        "total_ms": 320.0,
        "sent_bytes": 22_000_000,
        "report": {"paused_ms": 300.0},
    }
    row = MigrationRecord(**{**values, **fields})
    row.save()
    return row
