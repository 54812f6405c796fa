"""Paging by where the last page ended: the thousandth page of ten million rows is as quick as the
first, and nothing is shown twice when rows come in meanwhile."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Generic, TypeVar

from django.core.exceptions import ValidationError
from django.db.models import Model, QuerySet

M = TypeVar("M", bound=Model)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
COUNTED_MAX: Final = 1000
"""Rows that are counted for "50 of 312"; beyond it stands "more than 1,000": to count ten million
rows takes seconds."""


@dataclass(frozen=True, slots=True)
class KeysetPage(Generic[M]):
    """Some rows, newest first, and where the next ones begin."""

    rows: list[M]
    older: str
    """The next page's cursor; empty: there is none."""


def page_of(rows: "QuerySet[M]", time_field: str, cursor: str, size: int) -> KeysetPage[M]:
    """Returns the newest `size` rows before the cursor, by time and then by row id.

    Raises: ValidationError for a cursor that is none of ours.
    """
    if cursor:
        at, pk = _read(cursor)
        # Not `at < x or (at = x and id < y)`: that keeps databases from using the index.
        rows = rows.filter(**{f"{time_field}__lte": at})
        rows = rows.exclude(**{time_field: at, "pk__gte": pk})
    found = list(rows.order_by(f"-{time_field}", "-pk")[: size + 1])
    shown = found[:size]
    last = shown[-1] if len(found) > size else None
    return KeysetPage(shown, "" if last is None else _written(getattr(last, time_field), last.pk))


def count_words(rows: "QuerySet[M]", shown: int) -> str:
    """Returns "all 12", "first 50 of 312" or "first 50 of more than 1,000"."""
    count = rows.order_by()[: COUNTED_MAX + 1].count()
    if count > COUNTED_MAX:
        return f"first {shown:,} of more than {COUNTED_MAX:,}"
    return f"all {count:,}" if count <= shown else f"first {shown:,} of {count:,}"


def _written(at: datetime, pk: int) -> str:
    return f"{(at - _EPOCH) // _MICROSECOND}-{pk}"


def _read(cursor: str) -> tuple[datetime, int]:
    at, _, pk = cursor.partition("-")
    if all(part.isascii() and part.isdigit() and len(part) <= 18 for part in (at, pk)):
        try:
            return _EPOCH + int(at) * _MICROSECOND, int(pk)
        except OverflowError:
            pass
    raise ValidationError({"older": "is no place in this list"})
