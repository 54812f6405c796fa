"""What the last day would have looked like under other limits, in words."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple

from controlplane.fleet.tiles import DASH, number
from controlplane.tenants.models import Tenant
from controlplane.tenants.selectors import Limits, limits_of
from controlplane.usage.limits_preview import LimitPreview, preview
from web.ledger_words import money
from web.move_units import plural
from web.tenant_forms import LIMITS

NAMES: Final = {
    "default_class": "Class of requests that name none",
    "highest_class": "Highest class",
    "weight": "Weight",
    "allowed_models": "Models",
    "requests_per_minute": "Requests a minute",
    "tokens_per_minute": "Tokens a minute",
    "concurrency": "Requests at the same time",
    "monthly_budget": "Budget a month",
}
COUNTED: Final = ("requests_per_minute", "tokens_per_minute", "concurrency", "monthly_budget")
BASIS: Final = (
    "Each limit replayed on its own over the requests that were let in. Who is refused comes again,"
    " so it is a preview, not a forecast."
)


class LimitRow(NamedTuple):
    """One limit, and how many requests it would have refused."""

    label: str
    limit: str
    refused: str
    is_over: bool


@dataclass(frozen=True, slots=True)
class Preview:
    verdict: str
    basis: str
    rows: Sequence[LimitRow]
    changes: Sequence[tuple[str, str, str]]
    """Name, value now, new value."""


def preview_of(tenant: Tenant, wanted: Tenant, now: datetime) -> Preview:
    """Replays the tenant's last day under the limits of `wanted`, which need not be saved."""
    limits = limits_of(wanted)
    found = preview(tenant_id=tenant.pk, limits=limits, now=now)
    since = (
        f" Since {found.since:%H:%M} UTC: earlier requests are left out." if found.is_cut else ""
    )
    return Preview(
        verdict_of(found), f"{BASIS}{since}", rows_of(found, limits), changes_of(tenant, wanted)
    )


def verdict_of(found: LimitPreview) -> str:
    """Returns the answer in one sentence; what several limits refuse may be the same requests."""
    if not found.requests:
        return "No request came in the last 24 h."
    counts = [getattr(found, name) for name in COUNTED]
    most = max((count for count in counts if count is not None), default=None)
    if most is None:
        return f"No limit is set: all {plural(found.requests, 'request')} pass."
    if most == 0:
        return f"All {plural(found.requests, 'request')} of the last 24 h would have passed."
    at_least = "" if sum(bool(count) for count in counts) == 1 else "At least "
    return f"{at_least}{most:,} of {plural(found.requests, 'request')} would have been refused."


def rows_of(found: LimitPreview, limits: Limits) -> list[LimitRow]:
    rows = []
    for name in COUNTED:
        refused = getattr(found, name)
        words = DASH if refused is None else f"{refused:,}"
        rows.append(LimitRow(NAMES[name], shown(name, getattr(limits, name)), words, bool(refused)))
    return rows


def changes_of(tenant: Tenant, wanted: Tenant) -> list[tuple[str, str, str]]:
    """Returns what differs: its name, now, new."""
    return [
        (NAMES[name], shown(name, getattr(tenant, name)), shown(name, getattr(wanted, name)))
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
