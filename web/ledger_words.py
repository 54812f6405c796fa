"""Durations, shares and money as the pages of the ledger write them. Pure."""

from decimal import Decimal

from controlplane.fleet.tiles import DASH
from web.move_units import MINUS


def lasts(value_ms: float | None) -> str:
    """Returns "9 ms", "640 ms", "6.1 s", "2 min 5 s"; a dash for None."""
    if value_ms is None:
        return DASH
    if value_ms < 999.5:
        text = f"{value_ms:.0f}" if value_ms >= 10 or value_ms == 0 else f"{value_ms:.1f}"
        return f"{text.removesuffix('.0')} ms"
    seconds = value_ms / 1000
    if seconds < 119.5:
        return f"{seconds:.{1 if seconds < 99.5 else 0}f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes:,} min {rest} s" if rest else f"{minutes:,} min"


def percent(share: float | None) -> str:
    """Returns a share as percent, with as many digits as tell it from 100 %."""
    if share is None:
        return DASH
    value = share * 100
    digits = 2 if 99 < value < 99.995 else 1 if abs(value) < 99.95 and round(value, 1) % 1 else 0
    return f"{value:,.{digits}f} %".replace("-", MINUS)


def money(cost: Decimal | None) -> str:
    """Returns a cost with at least two digits after the point, and four significant ones."""
    if cost is None:
        return DASH
    if not cost:
        return "0"
    digits = 2 if abs(cost) >= 1 else min(8, 3 - cost.adjusted())
    return f"{cost:,.{digits}f}".replace("-", MINUS)
