"""What the last day would have looked like under other limits, in words."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from controlplane.fleet.tiles import number
from controlplane.tenants.access import Access
from controlplane.tenants.models import Tenant
from web.ledger_words import money
from web.tenant_forms import LIMITS

_NAMES = {
    "default_class": "Class of requests that name none",
    "highest_class": "Highest class",
    "weight": "Weight",
    "allowed_models": "Models",
    "requests_per_minute": "Requests a minute",
    "tokens_per_minute": "Tokens a minute",
    "concurrency": "Requests at the same time",
    "monthly_budget": "Budget a month",
}


class LimitRow(NamedTuple):
    """One limit. `most`: the most that was used of it at any moment of the day."""

    label: str
    most: str
    limit: str
    refused: str
    is_over: bool


@dataclass(frozen=True, slots=True)
class Preview:
    verdict: str
    basis: str
    """From what it is computed, and what it does not know."""
    rows: Sequence[LimitRow]
    changes: Sequence[tuple[str, str, str]]


def preview_of(access: Access, tenant: Tenant, wanted: Tenant, now: datetime) -> Preview:
    """Compares the limits of `wanted`, which is not saved, with those of the tenant."""
    return Preview("", "", (), changes_of(tenant, wanted))


def changes_of(tenant: Tenant, wanted: Tenant) -> list[tuple[str, str, str]]:
    """Returns what differs: its name, now, new."""
    return [
        (_NAMES[name], shown(name, getattr(tenant, name)), shown(name, getattr(wanted, name)))
        for name in LIMITS
        if getattr(tenant, name) != getattr(wanted, name)
    ]


def shown(name: str, value: Any) -> str:
    """Returns a setting's value as the pages write it."""
    if name == "allowed_models":
        return ", ".join(value) or "all"
    if value is None:
        return "no limit"
    if isinstance(value, Decimal):
        return money(value)
    return number(value) if isinstance(value, int | float) else str(value)
