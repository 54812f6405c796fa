"""Counts of requests whose engines were lost, for metrics. Of one web process and pool."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum


class Cause(StrEnum):
    """Why a request had to go elsewhere."""

    DIED = "died"
    """Its engine died, hung, or went with its node."""
    LEFT = "left"
    """Its engine was stopped for good, or sent it elsewhere."""
    FORGOTTEN = "forgotten"
    """Its engine lives and does not know it."""


@dataclass(slots=True)
class Tally:
    """Since the process's start."""

    replayed: Counter[Cause] = field(default_factory=Counter)
    """Requests that another engine has taken."""
    ended: Counter[str] = field(default_factory=Counter)
    """By code: those that ended instead."""
