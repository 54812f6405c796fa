"""Reads request traces: the columns of the Azure LLM inference traces and of BurstGPT.

| trace | columns |
|---|---|
| Azure 2023 | TIMESTAMP (date and time), ContextTokens, GeneratedTokens |
| BurstGPT | Timestamp (seconds), Model, Request tokens, Response tokens, Total tokens, Log Type |

Rows without an answer (0 output tokens: BurstGPT's failed requests) are left out.
"""

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path


class TraceError(ValueError):
    """A trace that cannot be read; the message names file, line and column."""


@dataclass(frozen=True, slots=True)
class TraceRow:
    at_s: float
    """Seconds since a moment that is the same for the whole file."""
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class _Columns:
    time: str
    prompt: str
    output: str
    seconds: Callable[[str], float]
    time_is: str


def _date_seconds(text: str) -> float:
    # Python reads 6 digits of a second's fraction, Azure writes 7.
    whole, _, fraction = text.strip().removesuffix("+00:00").partition(".")
    moment = datetime.fromisoformat(whole).replace(tzinfo=UTC)
    return moment.timestamp() + (float(f"0.{fraction}") if fraction else 0.0)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not math.isfinite(seconds):
        raise ValueError("no moment")
    return seconds


_AZURE = _Columns("TIMESTAMP", "ContextTokens", "GeneratedTokens", _date_seconds, "a date and time")
_BURST_GPT = _Columns("Timestamp", "Request tokens", "Response tokens", _seconds, "seconds")


def read_trace(path: Path, first: int | None = None) -> list[TraceRow]:
    """Reads the first `first` rows that have an answer, or all. Raises: TraceError."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows: list[TraceRow] = []
            for row in _rows(path, file):
                if first is not None and len(rows) >= first:
                    break
                rows.append(row)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path}: not a CSV file in UTF-8: {error}") from error
    if not rows:
        raise TraceError(f"{path}: no request in it")
    return rows


def _rows(path: Path, lines: Iterator[str]) -> Iterator[TraceRow]:
    reader = csv.DictReader(lines)
    columns = _columns(path, reader.fieldnames or ())
    for row in reader:
        where = f"{path}: line {reader.line_num}"
        at_s = _time(where, row, columns)
        prompt = _count(where, row, columns.prompt, least=1)
        output = _count(where, row, columns.output, least=0)
        if output:
            yield TraceRow(at_s, prompt, output)


def _columns(path: Path, names: Sequence[str]) -> _Columns:
    for columns in (_AZURE, _BURST_GPT):
        if {columns.time, columns.prompt, columns.output} <= set(names):
            return columns
    expected = " or ".join(f"{c.time}, {c.prompt}, {c.output}" for c in (_AZURE, _BURST_GPT))
    found = ", ".join(names) or "nothing"
    raise TraceError(f"{path}: line 1: the columns {expected} are expected, found {found}")


def _time(where: str, row: dict[str, str], columns: _Columns) -> float:
    text = row[columns.time] or ""
    try:
        return columns.seconds(text)
    except ValueError:
        raise TraceError(
            f"{where}: {columns.time}: {columns.time_is} is expected, got {text!r}"
        ) from None


def _count(where: str, row: dict[str, str], column: str, least: int) -> int:
    text = (row[column] or "").strip()
    if not text.isdecimal() or int(text) < least:
        raise TraceError(
            f"{where}: {column}: a whole number, at least {least}, is expected, got {text!r}"
        )
    return int(text)
