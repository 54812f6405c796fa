"""What the questions about usage and SLOs are answered with. Values, no queries."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final, Literal

from controlplane.tenants.selectors import NO_TARGET, Target
from engine_pool.types import PriorityClass

GroupBy = Literal["hour", "day", "month", "model", "key", "class", "tenant"]
GROUPS: Final = ("hour", "day", "month", "model", "key", "class", "tenant")


@dataclass(frozen=True, slots=True)
class UsageSum:
    """Sums of the requests that ended within a time, of one group."""

    group: str
    """The hour's, day's or month's beginning (ISO 8601, UTC); or the model, the class, the tenant's
    slug, or the key's name and hint ("playground" without a key)."""
    at: datetime | None = None
    """The beginning of an hour, a day or a month; None of other groups."""
    row_id: int | None = None
    """Of the key or the tenant; 0: the playground's key; None of other groups."""
    requests: int = 0
    failed: int = 0
    partial: int = 0
    """Cancelled ones, with what they had used."""
    prompt_tokens: int = 0
    """The cached ones included."""
    cached_tokens: int = 0
    output_tokens: int = 0
    cost: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True)
class SloPoint:
    """A part of an SLO's window, for a chart."""

    at: datetime
    """Its beginning."""
    requests: int
    attainment: float | None
    """None: too few requests to say."""


@dataclass(frozen=True, slots=True)
class SloState:
    """How an SLO stands for one tenant in one class; the formulas stand in usage/slo.py."""

    tenant_id: int
    tenant: str
    """Slug."""
    priority_class: PriorityClass
    target: Target = NO_TARGET
    """What it is now; requests were judged by what it was when they came, or by their own."""
    objective: float = 0.99
    window_days: int = 28
    requests: int = 0
    """In the window, that count."""
    met: int = 0
    failed: int = 0
    ttft_missed: int = 0
    tpot_missed: int = 0
    attainment: float | None = None
    """Share that met all their targets; None: too few requests to say, as below."""
    budget_left: float | None = None
    """Share of the error budget; below 0 it is overspent."""
    burn_5m: float | None = None
    burn_30m: float | None = None
    burn_1h: float | None = None
    burn_6h: float | None = None
    burn_3d: float | None = None
    """Burn rates: 1 uses up the budget exactly by the window's end."""
    alert: Literal["page", "ticket", ""] = ""
    """What multi-window burn rate alerts say."""
    series: tuple[SloPoint, ...] = ()
    """Oldest first, an hour or a day each, those with requests; none when there are too many states
    to draw (slo_selectors.SERIES_MAX)."""
