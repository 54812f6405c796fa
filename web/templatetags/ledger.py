"""Moments, durations, shares and money in the templates of requests, SLOs, audit and settings."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from controlplane.fleet.tiles import DASH
from web import ledger_words

register = template.Library()


@register.filter
def stamp(at: Any) -> SafeString | str:
    """Returns an absolute time in UTC, to the second: what happened when, first of all."""
    if not isinstance(at, datetime):
        return DASH
    at = at.astimezone(UTC)
    return format_html(
        '<span class="stamp" title="{}">{} <b>{}</b></span>',
        at.isoformat(timespec="milliseconds"),
        at.strftime("%Y-%m-%d"),
        at.strftime("%H:%M:%S"),
    )


@register.filter
def lasts(value_ms: Any) -> str:
    return ledger_words.lasts(value_ms if isinstance(value_ms, int | float) else None)


@register.filter
def percent(share: Any) -> str:
    return ledger_words.percent(share if isinstance(share, int | float) else None)


@register.filter
def money(cost: Any) -> str:
    return ledger_words.money(cost if isinstance(cost, Decimal) else None)
