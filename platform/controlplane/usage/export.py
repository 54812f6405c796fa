"""Sums of usage as CSV, a line at a time."""

import csv
import io
from collections.abc import Iterable, Iterator
from typing import Final

from controlplane.audit.export import FORMULA_STARTS
from controlplane.usage.sums import UsageSum

COLUMNS: Final = (
    "group",
    "requests",
    "failed",
    "partial",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "cost",
)


def usage_csv(rows: Iterable[UsageSum]) -> Iterator[str]:
    """Yields a header, then a line a group. Costs are exact, without an exponent."""
    yield _line(COLUMNS)
    for row in rows:
        name = f"'{row.group}" if row.group.startswith(FORMULA_STARTS) else row.group
        numbers = [str(getattr(row, column)) for column in COLUMNS[1:-1]]
        yield _line([name, *numbers, format(row.cost, "f")])


def _line(cells: Iterable[str]) -> str:
    out = io.StringIO()
    csv.writer(out).writerow(cells)
    return out.getvalue()
