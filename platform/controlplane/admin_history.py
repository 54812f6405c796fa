"""What a row of the audit changed, for people. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from controlplane.audit.services import masked


@dataclass(frozen=True, slots=True)
class Change:
    """Of one field; None: it was not there."""

    field: str
    before: str | None
    after: str | None


class Entry(Protocol):
    """What is read of an AuditEntry."""

    object: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None


def changes_of(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> list[Change]:
    """Returns the fields that differ, secrets masked once more."""
    old, new = masked(before) or {}, masked(after) or {}
    names = dict.fromkeys([*old, *new])
    changes = [Change(name, _text(old, name), _text(new, name)) for name in names]
    return [change for change in changes if change.before != change.after]


def about_key(entries: Iterable[Entry], name: str, last4: str) -> list[Entry]:
    """Picks a key's rows out of those of its tenant's keys, newest first.

    A key is called by its name and the end of its secret; both change, so each row says how it was
    called before. Every key's last row is the one that made it.
    """
    found = []
    for entry in entries:
        if entry.object != f"{name} (sk-...{last4})":
            continue
        found.append(entry)
        before = entry.before or {}
        name, last4 = before.get("name", name), before.get("last4", last4)
        if entry.before is None and "public_id" in (entry.after or {}):
            break
    return found


def _text(values: Mapping[str, Any], name: str) -> str | None:
    if name not in values:
        return None
    value = values[name]
    if value is None or value in ("", []):
        return "none"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)
