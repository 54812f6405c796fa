"""Usage over time: every step of a range, empty ones too, and the chart's data. Pure."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from controlplane.usage.sums import GroupBy, UsageSum


def in_steps(
    rows: Iterable[UsageSum], since: datetime, until: datetime, step: GroupBy
) -> list[UsageSum]:
    """Returns a row for every step of the range: one without requests is 0, not a gap."""
    known = {row.at.astimezone(UTC): row for row in rows if row.at is not None}
    at, found = _floor(since, step), []
    while at < until:
        found.append(known.get(at) or UsageSum(group=at.isoformat(), at=at))
        at = _next(at, step)
    return found


def total_of(rows: Iterable[UsageSum]) -> UsageSum:
    found = list(rows)
    return UsageSum(
        group="Total",
        requests=sum(row.requests for row in found),
        failed=sum(row.failed for row in found),
        partial=sum(row.partial for row in found),
        prompt_tokens=sum(row.prompt_tokens for row in found),
        cached_tokens=sum(row.cached_tokens for row in found),
        output_tokens=sum(row.output_tokens for row in found),
        cost=sum((row.cost for row in found), Decimal(0)),
    )


def chart_data(rows: Sequence[UsageSum], step: GroupBy) -> dict[str, Any]:
    """Returns the series: prompt tokens without the cached ones, which stand on their own."""
    return {
        "step": step,
        "at": [row.at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S") for row in rows if row.at],
        "prompt": [row.prompt_tokens - row.cached_tokens for row in rows],
        "cached": [row.cached_tokens for row in rows],
        "output": [row.output_tokens for row in rows],
        "cost": [float(row.cost) for row in rows],
    }


def _floor(at: datetime, step: GroupBy) -> datetime:
    at = at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    if step == "hour":
        return at
    at = at.replace(hour=0)
    return at if step == "day" else at.replace(day=1)


def _next(at: datetime, step: GroupBy) -> datetime:
    if step == "hour":
        return at + timedelta(hours=1)
    if step == "day":
        return at + timedelta(days=1)
    return (at + timedelta(days=32)).replace(day=1)
