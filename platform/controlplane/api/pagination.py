"""Pages of a list: `limit` rows after a `cursor`, which the page before has named.

A cursor holds the order's value of the last row and how many rows with just that value were shown,
never a row's number; rows that are added meanwhile shift nothing.
"""

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

from django.db.models import Model, QuerySet
from rest_framework import serializers

from controlplane.api.fields import EARLIEST, LATEST
from controlplane.api.problem import Problem

LIMIT_DEFAULT: Final = 50
LIMIT_MAX: Final = 200
CURSOR_MAX_CHARS: Final = 600
SKIP_MAX: Final = 100_000
"""Rows with one value: a list that has more of them has another problem."""

M = TypeVar("M", bound=Model)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some rows of a list."""

    rows: Sequence[T]
    next_cursor: str | None
    """None: these were the last ones."""


class PageQuery(serializers.Serializer[object]):
    """What every list takes."""

    limit = serializers.IntegerField(
        min_value=1, max_value=LIMIT_MAX, default=LIMIT_DEFAULT, help_text="Rows in an answer."
    )
    cursor = serializers.CharField(
        max_length=CURSOR_MAX_CHARS,
        required=False,
        help_text="`next_cursor` of the page before; left out: the first page.",
    )


def page_of(
    rows: "QuerySet[M]", *, order: str, limit: int, cursor: str | None, has_times: bool = False
) -> "Page[M]":
    """Returns a page of a query.

    `order`: a field, with - before it for the greatest first; `has_times`: it holds times.
    Raises: Problem 400 for a cursor that is none of ours.
    """
    name, sign = order.lstrip("-"), "-" if order.startswith("-") else ""
    ordered = rows.order_by(order, f"{sign}pk")
    value: Any = None
    skip = 0
    if cursor is not None:
        value, skip = _read(cursor, datetime.fromisoformat if has_times else str)
        ordered = ordered.filter(**{f"{name}__{'lte' if sign else 'gte'}": value})
    found = list(ordered[skip : skip + limit + 1])
    shown = found[:limit]
    if len(found) <= limit:
        return Page(shown, None)
    values = [_value(row, name) for row in shown]
    last = values[-1]
    seen = sum(v == last for v in values) + (skip if last == value else 0)
    return Page(shown, _write(last, seen))


def page_of_list(rows: Sequence[T], *, limit: int, cursor: str | None) -> Page[T]:
    """Returns a page of what is in memory already. Raises: Problem 400."""
    skip = 0 if cursor is None else _read(cursor, str)[1]
    end = skip + limit
    return Page(rows[skip:end], _write("", end) if end < len(rows) else None)


def _value(row: Model, name: str) -> Any:
    found: Any = row
    for part in name.split("__"):
        found = getattr(found, part)
    return found


def _write(value: Any, skip: int) -> str:
    text = json.dumps([value.isoformat() if isinstance(value, datetime) else value, skip])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _read(cursor: str, parse: Callable[[str], Any]) -> tuple[Any, int]:
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        value, skip = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        is_ours = isinstance(value, str) and type(skip) is int and 0 <= skip <= SKIP_MAX
        if not is_ours or "\x00" in value:
            raise ValueError(cursor)
        parsed = parse(value)
        if isinstance(parsed, datetime) and (
            parsed.tzinfo is None or not 2000 < parsed.year < 2200
        ):
            raise ValueError(cursor)
    except (ValueError, TypeError, RecursionError, binascii.Error):
        raise Problem(
            400, "cursor: take `next_cursor` of the page before.", param="cursor"
        ) from None
    return parsed, skip


def _is_plausible(at: datetime) -> bool:
    return at.tzinfo is not None and EARLIEST <= at <= LATEST
