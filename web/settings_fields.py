"""Settings as a form: read from text, shown with unit and default, compared with what was. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Final, Literal, NamedTuple

from django.core.exceptions import ValidationError

from controlplane.fleet.tiles import DASH

Kind = Literal["whole", "number", "decimal", "text", "switch", "choice"]
NOW: Final = "now"
AT_START: Final = "start"
TEXT_MAX_CHARS: Final = 500
DIGITS_MAX: Final = 24
"""Characters of a number; longer ones are no setting."""


@dataclass(frozen=True, slots=True)
class Field:
    """One setting."""

    name: str
    label: str
    help: str
    """One line: what it does."""
    kind: Kind
    unit: str = ""
    default: str = ""
    """As it is written; empty: there is none."""
    takes_effect: str = NOW
    """NOW, or AT_START of the instances."""
    is_optional: bool = False
    """Empty means none: no limit, or the pool's own value."""
    empty_words: str = "none"
    """What an empty one means."""
    choices: tuple[tuple[str, str], ...] = ()
    """Of a choice: what is stored, and its words."""


class Shown(NamedTuple):
    """A field with what stands in it."""

    field: Field
    value: str
    error: str = ""
    prefix: str = "f"

    @property
    def id(self) -> str:
        return f"{self.prefix}-{self.field.name}"


class Change(NamedTuple):
    """What saving would change."""

    label: str
    before: str
    after: str
    unit: str
    takes_effect: str


def read(fields: Iterable[Field], sent: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns values and errors by field name. What was not sent is not read, but for switches."""
    values: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for field in fields:
        if field.kind != "switch" and field.name not in sent:
            continue
        try:
            values[field.name] = _value(field, str(sent.get(field.name, "")).strip())
        except ValueError as problem:
            errors[field.name] = str(problem)
    return values, errors


def shown(
    fields: Iterable[Field],
    values: Mapping[str, Any],
    errors: Mapping[str, str] | None = None,
    texts: Mapping[str, str] | None = None,
    prefix: str = "f",
) -> list[Shown]:
    """Returns the fields filled: with what was typed, where that is given, else with values."""
    told = errors or {}
    made = []
    for field in fields:
        value = written(field, values.get(field.name))
        if texts is not None:
            typed = str(texts.get(field.name, ""))[:TEXT_MAX_CHARS]
            value = typed if field.kind != "switch" else "on" if typed else ""
        made.append(Shown(field, value, told.get(field.name, ""), prefix))
    return made


def written(field: Field, value: Any) -> str:
    """Returns a value as it stands in the form; none is empty."""
    if value is None:
        return ""
    if field.kind == "switch":
        return "on" if value else ""
    if isinstance(value, Decimal):
        return format(value.normalize(), "f")
    if isinstance(value, float):
        return format(value, ".10g") if abs(value) < 1e10 else format(value, ".0f")
    return str(value)


def changes(
    fields: Sequence[Field], before: Mapping[str, Any], after: Mapping[str, Any]
) -> list[Change]:
    """Returns what differs, in the fields' order."""
    return [
        Change(
            field.label,
            _words(field, before.get(field.name)),
            _words(field, after[field.name]),
            field.unit,
            field.takes_effect,
        )
        for field in fields
        if field.name in after and after[field.name] != before.get(field.name)
    ]


def field_errors(problem: ValidationError, fields: Iterable[Field]) -> tuple[dict[str, str], str]:
    """Returns a service's errors by field, and in words those of no field here."""
    if not hasattr(problem, "error_dict"):
        return {}, "; ".join(problem.messages)
    known = {field.name for field in fields}
    told = {name: " ".join(words) for name, words in problem.message_dict.items()}
    others = [f"{name}: {words}" for name, words in told.items() if name not in known]
    return {name: words for name, words in told.items() if name in known}, "; ".join(others)


def _words(field: Field, value: Any) -> str:
    if field.kind == "switch":
        return "on" if value else "off"
    if field.kind == "choice":
        return dict(field.choices).get(value, str(value))
    return written(field, value) or (field.empty_words if field.is_optional else DASH)


def _value(field: Field, text: str) -> Any:
    """Raises: ValueError with words for the form."""
    if field.kind == "switch":
        return bool(text)
    if not text:
        if field.is_optional:
            return None if field.kind != "text" else ""
        raise ValueError("must not be empty")
    if field.kind == "choice":
        if text not in dict(field.choices):
            raise ValueError(f"is none of {', '.join(dict(field.choices))}")
        return text
    if field.kind == "text":
        if len(text) > TEXT_MAX_CHARS:
            raise ValueError(f"is longer than {TEXT_MAX_CHARS} characters")
        return text
    return _number(field.kind, text)


def _number(kind: Kind, text: str) -> int | float | Decimal:
    plain = text.replace(",", "").replace("_", "")
    if len(plain) > DIGITS_MAX:
        raise ValueError("is too long for a number")
    try:
        if kind == "whole":
            return int(plain)
        number = Decimal(plain)
    except (ValueError, InvalidOperation):
        wanted = "a whole number" if kind == "whole" else "a number"
        raise ValueError(f"is not {wanted}") from None
    if not number.is_finite():
        raise ValueError("is not a number")
    return number if kind == "decimal" else float(number)
