"""Shares, durations and moments of what-if runs in templates."""

from datetime import datetime
from typing import Any

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from controlplane.fleet.tiles import DASH
from web import whatif_words

register = template.Library()
register.filter("duration", whatif_words.duration)


@register.filter
def share(value: float) -> str:
    """Returns a progress as whole percent."""
    return f"{value * 100:.0f} %"


@register.simple_tag
def took(started: datetime | None, ended: datetime | None) -> str:
    if started is None or ended is None:
        return DASH
    return whatif_words.duration((ended - started).total_seconds() * 1000)


@register.simple_tag
def moment(at: Any) -> SafeString | str:
    """Returns date and time in UTC; runs are kept for weeks, so the time alone would not do."""
    if not isinstance(at, datetime):
        return DASH
    return format_html(
        '<span class="moment" title="{} UTC">{}</span>',
        at.strftime("%Y-%m-%d %H:%M:%S"),
        at.strftime("%d %b %H:%M UTC"),
    )
