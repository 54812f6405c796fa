"""Numbers, times and drawings in templates. `static/live/format.js` writes the same live."""

import json
from datetime import UTC, datetime
from typing import Any

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from controlplane.fleet.picture import BAND_STEPS, Freeness, InstanceRow
from controlplane.fleet.tiles import DASH, number
from web import drawing

register = template.Library()

NODE_MAX_CHARS = 9
"""What stands before the cells of a node in the grid."""

NAME_MAX_CHARS = 18
"""What the name column holds; the middle of a longer name is left out, its ends tell more."""

register.filter("spark_path", drawing.spark_path)


def _or_none(value: Any) -> Any:
    """In the template of a row that is still empty, Django gives "" for what does not exist."""
    return None if value == "" else value


@register.filter("number")
def shown_number(value: Any) -> str:
    return number(_or_none(value))


@register.filter
def gauge_percent(value: Any) -> float | None:
    return drawing.gauge_percent(_or_none(value))


@register.filter
def gauge_tone(value: Any, band: Any = None) -> str:
    """`band`: of the pool's scaling, where the page has it."""
    return drawing.gauge_tone(_or_none(value), _or_none(band) or BAND_STEPS)


@register.simple_tag
def bar_rects(row: InstanceRow | None) -> list[drawing.Rect]:
    return [] if row is None else drawing.bar_rects(row.bar, row.state)


@register.simple_tag
def gauge_band(band: Any = None) -> dict[str, float]:
    """Returns where the band's box stands on the gauge, in percent."""
    wanted = _or_none(band) or BAND_STEPS
    low, high = (drawing.gauge_percent(float(steps)) or 0.0 for steps in wanted)
    return {"x": low, "width": round(high - low, 1)}


@register.filter
def freeness(value: Freeness) -> str:
    """Returns one decimal under 100, none above."""
    if _or_none(value) is None:
        return DASH
    if value == "draining":
        return "−∞"  # noqa: RUF001
    if value == "idle":
        return "idle"
    return f"{value:,.{1 if abs(value) < 100 else 0}f}".replace("-", "−")  # noqa: RUF001


@register.filter
def state_word(state: str) -> str:
    return state.replace("_", " ").capitalize()


@register.filter
def short_name(name: str, max_chars: int = NAME_MAX_CHARS) -> str:
    """Leaves out the middle of a long name."""
    if len(name) <= max_chars:
        return name
    head = max_chars // 2
    return f"{name[:head]}…{name[-(max_chars - head - 1) :]}"


@register.filter
def short_node(name: str) -> str:
    return short_name(name, NODE_MAX_CHARS)


@register.simple_tag
def age(at_unix_s: Any, now_unix_s: float) -> str:
    """Returns an age as the live pages write it."""
    if _or_none(at_unix_s) is None:
        return DASH
    age_s = max(0.0, now_unix_s - at_unix_s)
    if age_s < 10:
        return f"{age_s:.1f} s"
    if age_s < 120:
        return f"{age_s:.0f} s"
    return f"{age_s / 60:.0f} min" if age_s < 7200 else f"{age_s / 3600:.0f} h"


@register.simple_tag
def clock(unix_s: float | None) -> SafeString | str:
    """Returns a time element; a script writes it in the reader's own zone."""
    if unix_s is None:
        return DASH
    at = datetime.fromtimestamp(unix_s, UTC)
    return format_html(
        '<time datetime="{}" title="{} UTC">{}</time>',
        at.isoformat(timespec="milliseconds"),
        at.strftime("%Y-%m-%d %H:%M:%S"),
        at.strftime("%H:%M:%S"),
    )


@register.simple_tag
def bar_label(name: str, row: InstanceRow | None) -> str:
    """Says the bar in words."""
    return f"{name}: {row.caption}" if row else ""


@register.filter
def data_block(value: Any, element_id: str) -> SafeString:
    """Returns a JSON data block in compact form, safe inside HTML; dates do not occur."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for char, escape in (("<", "\\u003C"), (">", "\\u003E"), ("&", "\\u0026")):
        text = text.replace(char, escape)
    return format_html(
        '<script type="application/json" id="{}">{}</script>',
        element_id,
        mark_safe(text),
    )
