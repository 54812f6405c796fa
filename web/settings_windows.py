"""A window of a pool's schedule as a form: read from text, and shown. Pure."""

import re
from collections.abc import Iterable, Mapping
from datetime import time
from typing import Any, Final

from django.core.exceptions import ValidationError

from controlplane.scaling.models import ScalingWindow
from web.scaling_words import DAYS
from web.settings_fields import Field, read, written

FIELDS: Final = (
    Field("name", "Name", "What decisions call it: mornings, weekend.", "text"),
    Field("min_instances", "At least", "Instances while it is in force.", "whole"),
    Field("max_instances", "At most", "Empty: the pool's own most.", "whole", is_optional=True,
          empty_words="the pool's"),
    Field("timezone", "Time zone", "Whose clock it follows: Europe/Berlin, UTC.", "text"),
    Field("is_enabled", "Enabled", "Off: it is kept, and never in force.", "switch"),
)  # fmt: skip
HOURS: Final = ("begins", "ends")
_TIME: Final = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::[0-5]\d)?")
EMPTY: Final = {"timezone": "UTC", "begins": "08:00", "ends": "18:00", "is_enabled": "on"}
"""What a new one's form begins with, Monday to Friday."""
EMPTY_DAYS: Final = range(5)


def read_window(
    sent: Mapping[str, str], days: Iterable[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns values and errors by field. `days`: numbers of the ticked ones, 0 is Monday."""
    values, errors = read(FIELDS, sent)
    for name in HOURS:
        found = _TIME.fullmatch(sent.get(name, "").strip())
        if found is None:
            errors[name] = "is no time of day (08:30)"
        else:
            values[name] = time(int(found[1]), int(found[2]))
    try:
        values["weekdays"] = sum(1 << int(day) for day in {*days} & {*map(str, range(7))})
    except ValueError:
        errors["weekdays"] = "are no days"
    return values, errors


def texts_of(window: ScalingWindow | None) -> dict[str, str]:
    """Returns what stands in a window's form; None: in a new one's."""
    if window is None:
        return dict(EMPTY)
    plain = {field.name: written(field, getattr(window, field.name)) for field in FIELDS}
    hours = {name: f"{getattr(window, name):%H:%M}" for name in HOURS}
    return {**plain, **hours}


def days_of(weekdays: int) -> list[tuple[int, str, bool]]:
    """Returns number, name and whether it is ticked of each day."""
    return [(number, name, bool(weekdays >> number & 1)) for number, name in enumerate(DAYS)]


def told(problem: ValidationError) -> tuple[dict[str, str], str]:
    """Returns a service's errors by field, and in words those of no field here."""
    known = {*(field.name for field in FIELDS), *HOURS, "weekdays"}
    if not hasattr(problem, "error_dict"):
        return {}, "; ".join(problem.messages)
    found = {name: " ".join(words) for name, words in problem.message_dict.items()}
    others = [
        words if name == "__all__" else f"{name}: {words}"
        for name, words in found.items()
        if name not in known
    ]
    return {name: words for name, words in found.items() if name in known}, "; ".join(others)
