"""What operators and the scaling loop want of an instance, and what the pool says of a drain.

A wish is a level, not an order: it stands in the database, is published with the pool, and whoever
reads it brings the instance to it, after any restart of anything. Two wishes for one instance (its
own and its node's) join to the stricter one. Time is wall-clock seconds, since wishes outlive
processes; passed in, never read here.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum


class WantedState(StrEnum):
    """What an instance shall do, least strict first."""

    SERVING = "serving"
    CORDONED = "cordoned"
    """It takes nothing new and goes on with what it has."""
    DRAINED = "drained"
    """Everything leaves it; its engine stays, proven empty."""
    STOPPED = "stopped"
    """Drained, and then its engine is ended."""

    @property
    def rank(self) -> int:
        return list(WantedState).index(self)


class Leftover(StrEnum):
    """What happens at the deadline of a drain to requests that are still there."""

    WAIT = "wait"
    """They go on; the drain takes as long as they do."""
    REPLAY = "replay"
    """They go on elsewhere from their logs, where that is right; else they wait."""
    END = "end"
    """They end with a typed error."""


@dataclass(frozen=True, slots=True)
class InstanceWish:
    """What somebody wants of an instance, or of all instances of a node."""

    wanted: WantedState = WantedState.SERVING
    by: str = ""
    """Who: a user's name, or "scaling"."""
    reason: str = ""
    since_unix_s: float = 0.0
    deadline_unix_s: float | None = None
    """When `leftover` is done to what a drain has not moved; None: never."""
    leftover: Leftover = Leftover.WAIT
    renew_before_unix_s: float | None = None
    """An engine that was started before this is drained, ended and started anew ("restart",
    "replace", a rolling update); a younger one has been renewed already."""


NOTHING = InstanceWish()


def joined(wishes: Iterable[InstanceWish]) -> InstanceWish:
    """Returns the strictest wish, with the latest renewal of all. Of equally strict ones the one
    that was there first."""
    found = sorted(wishes, key=lambda w: (-w.wanted.rank, w.since_unix_s))
    if not found:
        return NOTHING
    renewals = [w.renew_before_unix_s for w in found if w.renew_before_unix_s is not None]
    return replace(found[0], renew_before_unix_s=max(renewals, default=None))
