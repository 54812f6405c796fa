"""What admission says of a request: taken, or refused by which limit; how full limits are. Pure.

The store's script answers with numbers (scripts.py); here they get their meaning.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Final

from controlplane.tenants.selectors import Limits

COST_UNITS: Final = 10**8
"""Of an amount of money in the store: the ledger's eight decimal places, as whole numbers."""
NO_LIMIT: Final = -1
"""What the scripts take for a limit that is not set."""


class LimitName(StrEnum):
    """Limits as a refusal names them. The order is that of the script's checks."""

    RPM = "rpm"
    TPM = "tpm"
    CONCURRENCY = "concurrency"
    BUDGET = "budget"
    POOL_RPM = "pool_rpm"
    POOL_TPM = "pool_tpm"
    POOL_CONCURRENCY = "pool_concurrency"


_NAMES: Final = tuple(LimitName)
DUPLICATE: Final = len(_NAMES) + 1
"""The script's answer when the request was given up before it came."""
BUDGET_UNKNOWN: Final = len(_NAMES) + 2
"""Its answer when it does not know what the tenant has spent this month."""


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Of a pool, over all tenants together; None: no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None


NO_POOL_LIMITS: Final = PoolLimits()


@dataclass(frozen=True, slots=True)
class Standing:
    """How full a tenant's windows are."""

    limits: Limits
    requests: int
    tokens: int
    concurrency: int
    requests_reset_ms: int
    """Until the window is empty, when nothing else comes."""
    tokens_reset_ms: int

    @property
    def headers(self) -> dict[str, str]:
        """Returns x-ratelimit-*, of those limits that are set."""
        found: dict[str, str] = {}
        for kind, limit, used, reset_ms in (
            ("requests", self.limits.requests_per_minute, self.requests, self.requests_reset_ms),
            ("tokens", self.limits.tokens_per_minute, self.tokens, self.tokens_reset_ms),
        ):
            if limit is not None:
                found[f"x-ratelimit-limit-{kind}"] = str(limit)
                found[f"x-ratelimit-remaining-{kind}"] = str(max(0, limit - used))
                found[f"x-ratelimit-reset-{kind}"] = duration_text(reset_ms)
        return found


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one request."""

    standing: Standing
    refused_by: LimitName | None = None
    retry_ms: int = 0
    """When there may be room; of no meaning for a budget."""


def read_verdict(answer: Sequence[int], limits: Limits) -> Verdict:
    """Returns the meaning of the reserve script's answer, of neither DUPLICATE nor
    BUDGET_UNKNOWN."""
    number, retry_ms = int(answer[0]), int(answer[1])
    standing = read_standing(answer[2:], limits)
    return Verdict(standing, _NAMES[number - 1] if number else None, retry_ms)


def read_standing(numbers: Sequence[int], limits: Limits) -> Standing:
    """Returns the meaning of the script's numbers about a tenant."""
    requests, tokens, concurrency, requests_reset_ms, tokens_reset_ms = map(int, numbers[:5])
    return Standing(limits, requests, tokens, concurrency, requests_reset_ms, tokens_reset_ms)


def limit_args(limits: Limits, pool: PoolLimits) -> list[int]:
    """Returns the limits as the script takes them."""
    budget = limits.monthly_budget
    numbers = (
        limits.requests_per_minute,
        limits.tokens_per_minute,
        limits.concurrency,
        None if budget is None else cost_units(budget),
        pool.requests_per_minute,
        pool.tokens_per_minute,
        pool.concurrency,
    )
    return [NO_LIMIT if number is None else number for number in numbers]


def cost_units(cost: Decimal) -> int:
    """Returns an amount in the store's units, rounded up: a cost is never forgotten."""
    return math.ceil(cost * COST_UNITS)


def from_units(units: int) -> Decimal:
    """Returns what `cost_units` was made of."""
    return Decimal(units) / COST_UNITS


def duration_text(ms: int) -> str:
    """Returns a time as OpenAI writes it in headers: 250ms, 1.5s, 1m0s."""
    if ms < 1000:
        return f"{max(0, ms)}ms"
    if ms < 60_000:
        return f"{ms / 1000:g}s"
    minutes, rest_ms = divmod(ms, 60_000)
    return f"{minutes}m{rest_ms // 1000}s"


REFUSALS: Final[Mapping[LimitName, str]] = {
    LimitName.RPM: "Rate limit reached: {limit} requests a minute (rpm) for this tenant.",
    LimitName.TPM: "Rate limit reached: {limit} tokens a minute (tpm) for this tenant; this request"
    " needs about {tokens}.",
    LimitName.CONCURRENCY: "Rate limit reached: {limit} requests at the same time (concurrency) for"
    " this tenant.",
    LimitName.BUDGET: "The tenant's budget of this month is spent, or too little of it is left for"
    " this request. Retrying does not help.",
    LimitName.POOL_RPM: "Rate limit reached: the model takes no more requests this minute"
    " (pool_rpm) of all tenants together.",
    LimitName.POOL_TPM: "Rate limit reached: the model takes no more tokens this minute (pool_tpm)"
    " of all tenants together.",
    LimitName.POOL_CONCURRENCY: "Rate limit reached: the model takes no more requests at the same"
    " time (pool_concurrency) of all tenants together.",
}


def refusal_text(name: LimitName, limits: Limits, tokens: int) -> str:
    """Returns what a client is told; of a pool's limit no number, which is nobody's business."""
    limit = {
        LimitName.RPM: limits.requests_per_minute,
        LimitName.TPM: limits.tokens_per_minute,
        LimitName.CONCURRENCY: limits.concurrency,
    }.get(name)
    return REFUSALS[name].format(limit=limit, tokens=tokens)


def never_fits(tokens: int, limits: Limits, pool: PoolLimits) -> int | None:
    """Returns the tokens a minute that a request is above by itself, None when it may fit."""
    known = [n for n in (limits.tokens_per_minute, pool.tokens_per_minute) if n is not None]
    lowest = min(known, default=None)
    return lowest if lowest is not None and tokens > lowest else None
