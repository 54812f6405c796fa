"""What stands in a list's address: filters, times, and links that change one of them. Pure.

A value that cannot be understood is an error that names its field, never a filter that is left out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple
from urllib.parse import urlencode

from django.core.exceptions import ValidationError

VALUE_MAX_CHARS: Final = 200


class Choice(NamedTuple):
    """One entry of a filter's list."""

    key: str
    word: str


@dataclass(frozen=True, slots=True)
class Query:
    """The filters that a page knows, as given; what is unknown is not carried on."""

    given: Mapping[str, str]
    names: tuple[str, ...]

    @classmethod
    def of(cls, sent: Mapping[str, str], names: Iterable[str]) -> "Query":
        known = tuple(names)
        values = {name: str(sent.get(name, "")).strip()[:VALUE_MAX_CHARS] for name in known}
        return cls({name: value for name, value in values.items() if value}, known)

    def __getitem__(self, name: str) -> str:
        """Raises: KeyError for what is no filter; templates then look for an attribute."""
        if name not in self.names:
            raise KeyError(name)
        return self.given.get(name, "")

    @property
    def is_filtered(self) -> bool:
        return bool(self.given)

    def link(self, **changed: str) -> str:
        """Returns the query string with some values changed; an empty one takes it away."""
        values = {name: v for name, v in {**self.given, **changed}.items() if v}
        return f"?{urlencode(values)}" if values else "?"

    def choice(self, name: str, choices: Iterable[str]) -> str:
        """Returns one of the choices, or nothing. Raises: ValidationError."""
        value = self[name]
        if value and value not in choices:
            raise ValidationError({name: f"there is no {value!r}; choose from the list"})
        return value

    def moment(self, name: str) -> datetime | None:
        """Returns a time; without a zone it is UTC. Raises: ValidationError."""
        text = self[name]
        if not text:
            return None
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            raise ValidationError(
                {name: "expected a date (2026-05-31) or a time in UTC (2026-05-31T14:30)"}
            ) from None
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at


def words_of(problem: ValidationError) -> str:
    """Returns what is wrong, with the fields' names, in one line."""
    if not hasattr(problem, "error_dict"):
        return "; ".join(problem.messages)
    told = problem.message_dict.items()
    return "; ".join(f"{name}: {' '.join(words)}" for name, words in told)


def minus(now: datetime, word: str, spans: Mapping[str, timedelta | None]) -> datetime | None:
    """Returns the beginning of a span that ends now; None for one without a beginning."""
    span = spans[word]
    return None if span is None else now - span
