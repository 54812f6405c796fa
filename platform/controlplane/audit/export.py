"""The audit as CSV, a line at a time, so that a long one takes no memory."""

import csv
import io
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from django.db.models import QuerySet

from controlplane.audit.models import AuditEntry
from controlplane.audit.services import masked

ROWS_MAX: Final = 100_000
"""Rows of one file, a tenth of what a spreadsheet holds; a file that was cut says so at its end."""
CHUNK_ROWS: Final = 1000
COLUMNS: Final = (
    "at",
    "who",
    "role",
    "action",
    "object",
    "tenant",
    "reason",
    "result",
    "detail",
    "request_id",
    "http_request_id",
    "migration_id",
    "before",
    "after",
)
FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r")
"""What spreadsheets would execute; such a cell gets a quote in front."""


def audit_csv(rows: "QuerySet[AuditEntry]", rows_max: int = ROWS_MAX) -> Iterator[str]:
    """Yields a header and `rows_max` rows at most; where there are more, a line that says so.

    `rows`: newest first, as `audit_list` gives them.
    """
    yield _line(COLUMNS)
    found = rows[: rows_max + 1].iterator(chunk_size=CHUNK_ROWS)
    for count, entry in enumerate(found):
        if count == rows_max:
            yield _line([f"cut after {rows_max:,} rows: ask for a shorter time"])
            return
        yield _line([_cell(entry, name) for name in COLUMNS])


def _cell(entry: AuditEntry, name: str) -> str:
    value = getattr(entry, name)
    if name == "at":
        return str(value.isoformat(timespec="milliseconds"))
    return _json(value) if name in ("before", "after") else _harmless(str(value))


def _json(values: Mapping[str, Any] | None) -> str:
    """Returns the values, secrets masked once more: rows of an earlier version count too."""
    told = masked(values)
    return "" if told is None else json.dumps(told, ensure_ascii=False, sort_keys=True)


def _harmless(text: str) -> str:
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text


def _line(cells: list[str] | tuple[str, ...]) -> str:
    out = io.StringIO()
    csv.writer(out).writerow(cells)
    return out.getvalue()
