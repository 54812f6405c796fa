"""Reads the sections of a scenario: every key has a check, and a complaint says which value of
which key is not as expected. Knows nothing of simulations."""

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import StrEnum
from typing import ClassVar, Protocol, TypeVar

Check = Callable[[object], object]


class ScenarioError(ValueError):
    """A scenario that cannot be run. `where` is `section.field`."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}")
        self.where = where
        self.problem = problem


@dataclass(frozen=True, slots=True)
class _Bad(Exception):
    """A check's complaint: what would have been right."""

    expected: str


def number(least: float, most: float | None = None, *, is_exclusive: bool = False) -> Check:
    """Checks for a number of a range; exclusive: `least` itself is not in it."""
    low = f"above {least:g}" if is_exclusive else f"at least {least:g}"
    expected = f"a number, {low}" + (f" and at most {most:g}" if most is not None else "")

    def check(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _Bad(expected)
        is_low = value <= least if is_exclusive else value < least
        if is_low or not math.isfinite(value) or (most is not None and value > most):
            raise _Bad(expected)
        return float(value)

    return check


def whole(least: int, most: int | None = None) -> Check:
    expected = f"a whole number, at least {least}"
    if most is not None:
        expected += f" and at most {most}"

    def check(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise _Bad(expected)
        if most is not None and value > most:
            raise _Bad(expected)
        return value

    return check


def flag() -> Check:
    def check(value: object) -> bool:
        if not isinstance(value, bool):
            raise _Bad("true or false")
        return value

    return check


def text() -> Check:
    def check(value: object) -> str:
        if not isinstance(value, str):
            raise _Bad("a text")
        return value

    return check


def one_of(choices: type[StrEnum] | tuple[str, ...]) -> Check:
    """Checks for one of some words; of an enum its member is what is kept."""
    names = choices if isinstance(choices, tuple) else tuple(c.value for c in choices)

    def check(value: object) -> str:
        if value not in names:
            raise _Bad(" or ".join(f'"{name}"' for name in names))
        return str(value) if isinstance(choices, tuple) else choices(value)

    return check


def optional(check_value: Check) -> Check:
    def check(value: object) -> object:
        return None if value is None else check_value(value)

    return check


T = TypeVar("T")


def setting(default: T, check: Check) -> T:
    """Declares a key of a section. Typed as its value, as `dataclasses.field` is."""
    declared: T = field(default=default, metadata={"check": check})
    return declared


class Section(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Field[object]]]


S = TypeVar("S", bound=Section)


def read_section(kind: type[S], name: str, values: object) -> S:
    """Makes a section of what a file says. Raises: ScenarioError."""
    if not isinstance(values, Mapping):
        raise ScenarioError(name, f"expected a section [{name}], got {values!r}")
    known = {f.name: f for f in fields(kind)}
    read: dict[str, object] = {}
    for key, value in values.items():
        if key not in known:
            names = ", ".join(known)
            raise ScenarioError(f"{name}.{key}", f"no such field; [{name}] has {names}")
        try:
            read[key] = known[key].metadata["check"](value)
        except _Bad as bad:
            problem = f"expected {bad.expected}, got {value!r}"
            raise ScenarioError(f"{name}.{key}", problem) from None
    assert all(f.default is not MISSING for f in known.values()), "every field has a default"
    return kind(**read)
