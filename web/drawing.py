"""Geometry of the KV bar, the freeness gauge and the sparkline, as SVG attributes. Pure.

`static/live/drawing.js` draws the same live; a test compares both. Percentages of the drawing's own
width, so that the browser needs no layout of ours.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from controlplane.fleet.picture import BAND_STEPS, SHORT_BELOW_STEPS, Band, Freeness
from controlplane.fleet.tiles import SPARK_POINTS

BAR_KINDS: Final = (
    "class-1", "class-2", "class-3", "head-1", "head-2", "head-3", "queued",
)  # fmt: skip
FULL: Final = 80.0
"""Where the capacity stands: the bar's domain is 0-125 % of it."""
GAUGE_FROM_STEPS: Final = -640
GAUGE_TO_STEPS: Final = 8000
"""Ends of the gauge: -40 and 500 blocks of 16 tokens."""
GAUGE_SCALE_STEPS: Final = 160
"""Up to here the axis is about linear, beyond logarithmic: the band's lower end."""
SPARK_WIDTH: Final = 100
SPARK_HEIGHT: Final = 20


FILLS: Final = {
    "head-1": "url(#pt-head-1)",
    "head-2": "url(#pt-head-2)",
    "head-3": "url(#pt-head-3)",
    "queued": "url(#pt-queued)",
    "drain": "url(#pt-drain)",
    "starting": "url(#pt-none)",
}
"""Patterns of the sprite; the other kinds have their colour from the style sheet."""


class Rect(NamedTuple):
    kind: str
    x: float
    width: float

    @property
    def fill(self) -> str:
        return FILLS.get(self.kind, "")


def bar_rects(bar: Sequence[int], state: str) -> list[Rect]:
    """Returns the segments from left to right; `bar` is per mille of the capacity."""
    if state == "starting":
        return [Rect("starting", 0.0, FULL)]
    rects: list[Rect] = []
    x = 0.0
    for kind, part in zip(BAR_KINDS, bar, strict=False):
        width = min(part * FULL / 1000, 100.0 - x)
        if width > 0:
            rects.append(Rect(kind, round(x, 2), round(width, 2)))
            x += width
    if bar and state == "draining":
        rects.append(Rect("drain", round(x, 2), round(100.0 - x, 2)))
    elif x > FULL:
        rects.append(Rect("over", FULL, round(x - FULL, 2)))
    return rects


def gauge_percent(freeness: Freeness) -> float | None:
    """Returns where the mark stands, 0-100; None without a value."""
    if freeness is None:
        return None
    if freeness == "idle":
        return 100.0
    if freeness == "draining":
        return 0.0
    low, high = _position(GAUGE_FROM_STEPS), _position(GAUGE_TO_STEPS)
    return round(min(100.0, max(0.0, 100 * (_position(freeness) - low) / (high - low))), 1)


def gauge_tone(freeness: Freeness, band: Band = BAND_STEPS) -> str:
    """Returns the mark's colour by the thresholds. `band`: of the pool's scaling."""
    if freeness is None:
        return "none"
    if freeness == "idle":
        return "spare"
    if freeness == "draining":
        return "drain"
    if freeness < min(SHORT_BELOW_STEPS, band[0]):
        return "short"
    if freeness < band[0]:
        return "low"
    return "band" if freeness <= band[1] else "spare"


def spark_path(values: Sequence[float | None]) -> str:
    """Returns an SVG path of the values, newest at the right; gaps where there is no value."""
    known = [v for v in values if v is not None]
    if len(known) < 2:
        return ""
    low, high = min(known), max(known)
    span = (high - low) or 1.0
    step = SPARK_WIDTH / (SPARK_POINTS - 1)
    first = SPARK_POINTS - len(values)
    parts, pen_down = [], False
    for i, value in enumerate(values):
        if value is None:
            pen_down = False
            continue
        y = SPARK_HEIGHT - 2 - (SPARK_HEIGHT - 4) * (value - low) / span
        parts.append(f"{'L' if pen_down else 'M'}{(first + i) * step:.1f} {y:.1f}")
        pen_down = True
    return "".join(parts)


def _position(steps: float) -> float:
    return math.asinh(steps / GAUGE_SCALE_STEPS)
