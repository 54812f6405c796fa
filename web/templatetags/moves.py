"""Units of the moves in templates."""

from typing import Any

from django import template

from controlplane.fleet.live_moves import MoveRow
from controlplane.fleet.tiles import number
from web.move_units import megabytes, short_ms

register = template.Library()


@register.filter
def ms(value: Any) -> str:
    return short_ms(None if value == "" else value)


@register.filter
def mb(value: Any) -> str:
    return megabytes(None if value == "" else value)


@register.filter
def spaced(slug: str) -> str:
    """Returns a slug as words."""
    return slug.replace("_", " ")


@register.filter
def kilobytes(size_bytes: int) -> str:
    return number(size_bytes / 1000)


@register.filter
def pips(steps: str) -> list[str]:
    """Returns the classes of a move's steps: the copies are wider."""
    copies = len(steps) - 3
    return [f"{step} wide" if 0 < i <= copies else step for i, step in enumerate(steps)]


@register.simple_tag
def move_elapsed(move: MoveRow, now_unix_s: float) -> str:
    """Returns how long a move has lasted, as the live rows write it."""
    took_s = move.took_s
    if took_s is None:
        took_s = max(0.0, now_unix_s - move.started_unix_s)
    return f"{took_s:.{1 if took_s < 10 else 0}f} s"
