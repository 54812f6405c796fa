"""Tenants, keys and limits in words and bars. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final, Literal, NamedTuple

from controlplane.fleet.tiles import DASH, number
from controlplane.tenants.models import ApiKey
from controlplane.usage.sums import SloState
from web.ledger_words import money, percent

KeyState = Literal["live", "rotating", "expired", "revoked"]
MeterKey = Literal["requests", "tokens", "concurrency", "budget"]
NEAR_SHARE: Final = 0.8
"""From here on a limit is near: amber."""
ENOUGH_REQUESTS: Final = 30
"""Fewer say nothing about an attainment."""
_LABELS: Final[dict[MeterKey, str]] = {
    "requests": "Requests in the last minute",
    "tokens": "Tokens in the last minute",
    "concurrency": "Requests at the same time",
    "budget": "Budget of this month",
}


@dataclass(frozen=True, slots=True)
class Meter:
    """How full one limit is. `used` None: nobody can say now; `limit` None: there is none."""

    key: MeterKey
    used: Decimal | int | None = None
    reserved: Decimal | int | None = None
    """Of requests that go on, beside what is used."""
    limit: Decimal | int | None = None
    resets_at: datetime | None = None

    @property
    def label(self) -> str:
        return _LABELS[self.key]

    @property
    def taken(self) -> Decimal | int | None:
        return None if self.used is None else self.used + (self.reserved or 0)

    @property
    def share(self) -> float | None:
        """Of the limit, used and reserved; None when it is not known or there is no limit."""
        if self.taken is None or self.limit is None:
            return None
        return float(self.taken / self.limit) if self.limit else 1.0

    @property
    def tone(self) -> Literal["", "warn", "bad"]:
        share = self.share
        if share is None or share < NEAR_SHARE:
            return ""
        return "warn" if share < 1 else "bad"

    @property
    def widths(self) -> tuple[float, float]:
        """The used and the reserved part of the bar, in percent of its length."""
        if self.used is None or not self.limit:
            return (0.0, 0.0)
        used = min(100.0, round(float(self.used / self.limit) * 100, 2))
        reserved = min(100.0 - used, round(float((self.reserved or 0) / self.limit) * 100, 2))
        return (used, reserved)

    def amount(self, value: Decimal | int | None) -> str:
        """Returns a value of this limit as the pages write it."""
        if value is None:
            return DASH
        return money(Decimal(value)) if self.key == "budget" else number(int(value))

    @property
    def words(self) -> str:
        """ "1,200 of 10,000", "1,200, no limit", or a dash."""
        limit = f"of {self.amount(self.limit)}" if self.limit is not None else "no limit"
        if self.taken is None:
            return f"{DASH} {limit}" if self.limit is not None else DASH
        joint = " " if self.limit is not None else ", "
        return f"{self.amount(self.taken)}{joint}{limit}"

    @property
    def detail(self) -> str:
        if self.used is None:
            return "not reported: the store does not answer"
        held = f", {self.amount(self.reserved)} reserved" if self.reserved else ""
        return f"{self.amount(self.used)} used{held}"


class Tile(NamedTuple):
    label: str
    value: str
    unit: str
    context: str
    tone: str = ""
    link: str = ""


def key_state(key: ApiKey, now: datetime) -> tuple[KeyState, str]:
    """Returns what may become of a request with the key, and since or until when."""
    if key.revoked_at is not None:
        return "revoked", f"since {_stamp(key.revoked_at)}"
    if key.expires_at is not None and key.expires_at <= now:
        return "expired", f"since {_stamp(key.expires_at)}"
    if key.old_until is not None and key.old_until > now:
        return "rotating", f"sk-...{key.old_last4} works until {_stamp(key.old_until)}"
    return "live", "" if key.expires_at is None else f"until {_stamp(key.expires_at)}"


def runs_out(left: Decimal, a_day: Decimal, now: datetime) -> str:
    """Says on which day a budget is used up at the rate of the last 24 hours."""
    if left <= 0:
        return "used up: requests are refused until the 1st"
    if a_day <= 0:
        return "nothing was spent in the last 24 h"
    end = _next_month(now)
    lasts_s = min(float(left / a_day), 1000.0) * 86400
    at = now + timedelta(seconds=lasts_s)
    if at >= end:
        return "lasts the month at the rate of the last 24 h"
    return f"used up on {at:%d %b} at the rate of the last 24 h"


def month_start(now: datetime) -> datetime:
    return now.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def attainment_of(states: Iterable[SloState]) -> tuple[float | None, int]:
    """Returns the share over all classes that met its targets, and of how many requests; None when
    they are too few to say."""
    found = list(states)
    requests = sum(state.requests for state in found)
    met = sum(state.met for state in found)
    return (met / requests if requests >= ENOUGH_REQUESTS else None, requests)


def misses(states: Iterable[SloState]) -> list[SloState]:
    """Returns the classes that miss their objective, the worst first."""
    found = [s for s in states if s.attainment is not None and s.attainment < s.objective]
    return sorted(found, key=lambda s: (s.attainment or 0.0) - s.objective)


def attainment_tile(states: Sequence[SloState], link: str) -> Tile:
    """Amber or red only against a stated objective, and says which."""
    share, requests = attainment_of(states)
    if not states:
        return Tile("SLO attainment", DASH, "", "no target is set", link=link)
    window = max(state.window_days for state in states)
    if share is None:
        few = f"{requests} request{'s' if requests != 1 else ''} in {window} days: too few to say"
        return Tile("SLO attainment", DASH, "", few, link=link)
    objective = max(state.objective for state in states)
    missed = misses(states)
    if missed:
        worst = missed[0]
        name, kept = worst.priority_class.value, percent(worst.attainment)
        said = f"{name}: {kept} of {percent(worst.objective)}"
        return Tile("SLO attainment", _bare(percent(share)), "%", said, "bad", link)
    said = f"objective {percent(objective)}, {number(requests)} requests in {window} days"
    return Tile("SLO attainment", _bare(percent(share)), "%", said, link=link)


def budget_tile(meter: Meter, spent_24h: Decimal, now: datetime, link: str) -> Tile:
    """What is left of the month's budget and the day it runs out."""
    if meter.limit is None:
        spent = f"{meter.amount(meter.taken)} spent this month" if meter.taken is not None else ""
        return Tile("Budget left", "none set", "", spent or "no budget", link=link)
    if meter.taken is None:
        return Tile("Budget left", DASH, "", f"of {meter.amount(meter.limit)}", link=link)
    left = Decimal(meter.limit) - Decimal(meter.taken)
    said = f"of {meter.amount(meter.limit)}; {runs_out(left, spent_24h, now)}"
    return Tile("Budget left", money(max(left, Decimal(0))), "", said, meter.tone, link)


def meter_tile(meter: Meter, label: str, link: str) -> Tile:
    limit = f"of {meter.amount(meter.limit)}" if meter.limit is not None else "no limit"
    held = f", {meter.amount(meter.reserved)} of it reserved" if meter.reserved else ""
    value = meter.amount(meter.taken)
    return Tile(label, value, "", f"{limit}{held}", meter.tone, link)


def names(values: Sequence[str], everything: str) -> str:
    """Returns a list for a table's cell; `everything`: what an empty one means."""
    return ", ".join(values) if values else everything


def _next_month(now: datetime) -> datetime:
    return (month_start(now) + timedelta(days=32)).replace(day=1)


def _stamp(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%d %b %Y %H:%M UTC")


def _bare(text: str) -> str:
    return text.removesuffix(" %")
