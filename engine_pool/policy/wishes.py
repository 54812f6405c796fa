"""What operators and the scaling loop want of an instance, and what the pool says of a drain.

A wish is a level, not an order: it stands in the database, is published with the pool, and whoever
reads it brings the instance to it, after any restart of anything. Two wishes for one instance (its
own and its node's) join to the stricter one. Time is wall-clock seconds, since wishes outlive
processes; passed in, never read here.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from engine_pool.types import InstanceState


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


SETTLE_S: Final = 2.0
"""How long an instance must have been seen empty behind a closed door: what was sent before
everybody knew, and a move that was just ending, show within this time."""
LEFTOVER_AGAIN_S: Final = 5.0
"""Before the leftover is done once more to what is there still: a request in the pause of a move
is not ended at once."""


class Step(StrEnum):
    """What follows for an instance now."""

    NONE = "none"
    START = "start"
    CORDON = "cordon"
    """Become CORDONED."""
    DRAIN = "drain"
    """Become DRAINING."""
    OPEN = "open"
    """Open the door and serve again."""
    SHUT = "shut"
    """Close the door as the state says; it should be closed and is not."""
    VERIFY = "verify"
    """Become DRAINED: it is proven empty."""
    LEFTOVER = "leftover"
    """Do to what is left what the wish says of its deadline."""
    STOP = "stop"
    """End the engine, or do not start it again."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of an instance at one moment. Times are wall-clock seconds."""

    state: InstanceState
    now_unix_s: float
    engine_started_unix_s: float | None = None
    """None: it has no engine."""
    door: str = ""
    """Why its engine takes nothing new, as the engine says ("cordoned", "draining"); empty: it
    does."""
    empty_since_unix_s: float | None = None
    """Since when every look has found no request, no used block, no move and a closed door."""
    leftover_done_unix_s: float | None = None
    """When the leftover was done last in this drain."""
    is_retry_due: bool = False
    """The wait after a failure is over."""
    failed_unix_s: float | None = None
    """When its last engine failed."""


def is_renewal_due(wish: InstanceWish, started_unix_s: float | None) -> bool:
    """Says whether an engine is older than the wish allows."""
    renew = wish.renew_before_unix_s
    return renew is not None and started_unix_s is not None and started_unix_s < renew


def next_step(wish: InstanceWish, facts: Facts) -> Step:
    """Says what follows from a wish and what is known. The same for every way to get here: a wish
    may change, and the pool process may start anew, at any point."""
    wanted = wish.wanted
    if is_renewal_due(wish, facts.engine_started_unix_s):
        wanted = WantedState.STOPPED
    match facts.state:
        case InstanceState.STOPPED | InstanceState.LOST:
            return _without_engine(wish, facts)
        case InstanceState.STARTING:
            # There is nothing to drain yet; to be drained it may finish, and is empty then.
            return Step.STOP if wanted is WantedState.STOPPED else Step.NONE
        case InstanceState.STOPPING:
            return Step.NONE
    if wanted is WantedState.SERVING:
        is_open = facts.state is InstanceState.SERVING and not facts.door
        return Step.NONE if is_open else Step.OPEN
    if wanted is WantedState.CORDONED:
        if facts.state is not InstanceState.CORDONED:
            return Step.CORDON
        return Step.NONE if facts.door == WantedState.CORDONED else Step.SHUT
    return _drained(wish, wanted, facts)


def _without_engine(wish: InstanceWish, facts: Facts) -> Step:
    """An instance that is to be drained is not started: it is as empty as can be."""
    if wish.wanted.rank >= WantedState.DRAINED.rank:
        return Step.NONE if facts.state is InstanceState.STOPPED else Step.STOP
    if facts.state is InstanceState.STOPPED or facts.is_retry_due:
        return Step.START
    # "Restart" by somebody means now, not after the back-off.
    return Step.START if is_renewal_due(wish, facts.failed_unix_s) else Step.NONE


def _drained(wish: InstanceWish, wanted: WantedState, facts: Facts) -> Step:
    if facts.state in (InstanceState.SERVING, InstanceState.CORDONED):
        return Step.DRAIN
    if facts.door != InstanceState.DRAINING:
        return Step.SHUT
    is_empty = facts.empty_since_unix_s is not None
    if facts.state is InstanceState.DRAINED:
        if not is_empty:
            return Step.DRAIN
        return Step.STOP if wanted is WantedState.STOPPED else Step.NONE
    if is_empty:
        assert facts.empty_since_unix_s is not None
        is_settled = facts.now_unix_s - facts.empty_since_unix_s >= SETTLE_S
        return Step.VERIFY if is_settled else Step.NONE
    return Step.LEFTOVER if _is_leftover_due(wish, facts) else Step.NONE


def _is_leftover_due(wish: InstanceWish, facts: Facts) -> bool:
    deadline, done = wish.deadline_unix_s, facts.leftover_done_unix_s
    if deadline is None or facts.now_unix_s < deadline or wish.leftover is Leftover.WAIT:
        return False
    return done is None or facts.now_unix_s - done >= LEFTOVER_AGAIN_S


def in_words(wish: InstanceWish) -> str:
    """Says what is wanted, by whom and why, as the cause of a state."""
    by = f" by {wish.by}" if wish.by else ""
    reason = f": {wish.reason}" if wish.reason else ""
    return f"to be {wish.wanted.value}{by}{reason}"
