"""An audit row's before and after, side by side. Pure."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from controlplane.audit.services import masked
from controlplane.fleet.tiles import DASH


class Difference(NamedTuple):
    """One field, as words."""

    field: str
    before: str
    after: str

    @property
    def is_changed(self) -> bool:
        return self.before != self.after


def differences(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> list[Difference]:
    """Returns every field of either side, those that changed first.

    Secrets are masked here once more: a row may have been written by an earlier version.
    """
    old, new = masked(before) or {}, masked(after) or {}
    rows = [Difference(_name(key), _value(old, key), _value(new, key)) for key in {**old, **new}]
    return sorted(rows, key=lambda row: not row.is_changed)


def _name(key: str) -> str:
    return key.replace("_", " ")


def _value(side: Mapping[str, Any], key: str) -> str:
    if key not in side:
        return ""
    value = side[key]
    if value is None:
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and all(isinstance(v, str) for v in value):
        return ", ".join(value) or "none"
    if isinstance(value, str):
        return value or "empty"
    return json.dumps(value, ensure_ascii=False)
