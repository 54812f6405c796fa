"""Decides how a transfer is cut into chunks and how long a sender rests between them.

Pure. Both ends of a channel cut a transfer by the same numbers, so nothing about it has to be sent.
"""

from collections.abc import Sequence
from dataclasses import dataclass

LONGEST_REST_S = 0.1
"""A chunk that took long because its receiver came late must not make the sender sleep as long."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some neighbouring rows of a transfer: blocks, or single bytes of a measurement."""

    first_row: int
    rows: int


def rows_in_chunk(row_bytes: int, chunk_bytes: int) -> int:
    """Returns how many whole rows a chunk has at most: at least one, however long a row is."""
    return max(1, chunk_bytes // row_bytes)


def cut(rows: int, most_rows: int) -> Sequence[Chunk]:
    """Cuts a transfer into chunks of at most `most_rows` rows, in their order."""
    return [Chunk(first, min(most_rows, rows - first)) for first in range(0, rows, most_rows)]


def rest_s(busy_s: float, copy_share: float) -> float:
    """Returns the seconds to rest after `busy_s` of copying, so that copying takes at most the
    share `copy_share` (0-1) of the time. 1: no rest."""
    return min(LONGEST_REST_S, busy_s * (1.0 - copy_share) / copy_share)
