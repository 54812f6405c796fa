"""Which bounds of a pool are in force at a time: its own, or those of a window. Pure.

A window begins on the weekdays that it names, at a time of day of its own time zone, and ends at
another, on the next day when that is not later. Where clocks are changed: a time of day that does
not exist counts as if they had not been changed yet (02:30 is then 03:30); of one that exists twice
the first begins a window, and the second ends it.
"""

import zoneinfo
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

DAYS_AHEAD: Final = 9
"""A window's next begin is at most a week away, and its end a day later."""


@dataclass(frozen=True, slots=True)
class Window:
    name: str
    weekdays: int
    """Bits, Monday 1 to Sunday 64: the days on which it begins."""
    begins: time
    ends: time
    timezone: str
    """An IANA name."""
    min_instances: int
    max_instances: int | None = None
    """None: the pool's own."""


@dataclass(frozen=True, slots=True)
class Bounds:
    min_instances: int
    max_instances: int
    window: str = ""
    """Its name; empty: the pool's own bounds."""


def bounds_now(
    min_instances: int, max_instances: int, windows: Iterable[Window], at: datetime
) -> Bounds:
    """Returns the bounds in force. `at` knows its time zone.

    Of several windows the one with the most `min_instances` holds, then by name. The pool's own
    most is never exceeded: it is what the machines have room for.
    """
    found = [window for window in windows if _holds(window, at)]
    if not found:
        return Bounds(min_instances, max_instances)
    window = min(found, key=lambda w: (-w.min_instances, w.name))
    most = max_instances if window.max_instances is None else window.max_instances
    most = min(most, max_instances)
    return Bounds(min(window.min_instances, most), most, window.name)


def next_change(windows: Iterable[Window], at: datetime) -> datetime | None:
    """Returns when a window begins or ends next; None: never."""
    edges = (edge for w in windows for spell in _spells(w, at) for edge in spell if edge > at)
    return min(edges, default=None)


def zone_of(name: str) -> zoneinfo.ZoneInfo:
    """Raises: ValueError for a name that is no time zone."""
    try:
        return zoneinfo.ZoneInfo(name)
    # Also what a name does that is a folder, or leads out of the time zones' own.
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"{name!r} is no time zone (Europe/Berlin)") from None


def _holds(window: Window, at: datetime) -> bool:
    return any(begin <= at < end for begin, end in _spells(window, at))


def _spells(window: Window, at: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Returns begin and end of each of its days around a time, in UTC."""
    try:
        zone = zone_of(window.timezone)
    except ValueError:
        # The machine's time zones may have lost one: then the window is not in force, and the
        # pool's own bounds are.
        return
    today = at.astimezone(zone).date()
    for days in range(-2, DAYS_AHEAD):
        day = today + timedelta(days=days)
        if not window.weekdays >> day.weekday() & 1:
            continue
        last = day if window.ends > window.begins else day + timedelta(days=1)
        begin = _instant(day, window.begins, zone, is_end=False)
        end = _instant(last, window.ends, zone, is_end=True)
        yield begin, end


def _instant(day: date, at: time, zone: zoneinfo.ZoneInfo, *, is_end: bool) -> datetime:
    first = datetime.combine(day, at.replace(tzinfo=None, fold=0), zone)
    second = first.replace(fold=1)
    before, after = first.utcoffset(), second.utcoffset()
    is_twice = before is not None and after is not None and before > after
    return (second if is_end and is_twice else first).astimezone(UTC)
