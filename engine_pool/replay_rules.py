"""Whether a request whose engine was lost goes on elsewhere, and when. Pure.

A *life* of a request is its stay in one engine process. Deaths are the engine's: it died or hung.
A life that brought no token and ended in a death counts against the request, since it may be what
killed the engine; two such lives in a row end it, and after the first one it is *suspect*: it is
sent where no other suspect is just being tried, so that the second death tells who it was.

The order of those that wait is the classes', then the arrival's: whoever was first stays first.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from engine_pool.errors import InstanceLost, ReplayRefused, RequestFatal
from engine_pool.log_marks import Lost
from engine_pool.types import InstanceState, InstanceStatus, PriorityClass

REPLAYS_MAX: Final = 3
"""Of one request: who loses an engine four times has met more than bad luck, and each replay costs
others the computation of the whole prompt and answer."""
FATAL_LIVES: Final = 2
"""Lives in a row without a token, each ended by its engine's death, that end a request."""
TRIAL_MAX_S: Final = 20.0
"""How long the next suspect waits for the first token of the one before at the same instance: above
a prefill, below a client's patience."""
CODES: Final = (InstanceLost.code, ReplayRefused.code, RequestFatal.code)
"""Of the errors with which a lost request ends."""
RETRY_AFTER_S: Final = 0.25
"""Between two looks for an instance: reports come ten times a second."""


@dataclass(frozen=True, slots=True)
class Life:
    """A life that is over, as the log tells it."""

    instance: str
    incarnation: str
    tokens: int
    """Output tokens in the log when it was over."""
    is_death: bool
    has_run: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class Again:
    """It may be sent elsewhere."""

    is_suspect: bool = False


@dataclass(frozen=True, slots=True)
class Over:
    """It ends with this error."""

    code: str
    message: str


def verdict(lives: Sequence[Life], *, is_on: bool, why_not: str) -> Again | Over:
    """Decides about a request that has just lost the last of `lives`, oldest first; one element a
    life. `why_not`: why it cannot be sent again at all, "" if it can."""
    last = lives[-1]
    if not is_on:
        return _lost(f"{last.why} Send the request again.")
    barren = _barren_lives(lives)
    if barren >= FATAL_LIVES:
        where = " and ".join(life.instance for life in lives[-barren:])
        return Over(
            RequestFatal.code,
            f"Engines died with this request, one after another, before it got a token ({where})."
            " It is not tried again: it may be what ends them.",
        )
    if why_not:
        return Over(
            ReplayRefused.code, f"{last.why} The request cannot go on elsewhere: {why_not}."
        )
    if len(lives) > REPLAYS_MAX:
        return _lost(f"{last.why} The request had been sent elsewhere {REPLAYS_MAX} times already.")
    return Again(is_suspect=barren > 0)


def nobody(why: str, waited_s: float) -> Over:
    """Returns the end of a request that no instance took in time."""
    return _lost(f"{why} For {waited_s:g} s no other instance took the request.")


def is_pool_over(statuses: Collection[InstanceStatus]) -> bool:
    """Says whether no instance is left, nor will come: the whole pool is being stopped."""
    ended = (InstanceState.STOPPED, InstanceState.STOPPING)
    return all(s.state in ended for s in statuses)


def turn(priority_class: PriorityClass, arrival_unix_s: float) -> tuple[int, float]:
    """Returns a request's place among those that wait to be sent again; lower goes first."""
    return priority_class.rank, arrival_unix_s


def one_a_life(lives: Iterable[Life]) -> list[Life]:
    """Returns lives without those that are named twice in a row: whoever named one first went away
    before it sent the request elsewhere, or was its engine, which does not know its incarnation."""
    kept: list[Life] = []
    for life in lives:
        if not (kept and is_same_life(kept[-1], life) and kept[-1].tokens == life.tokens):
            kept.append(life)
    return kept


def is_same_life(one: Life | Lost, other: Life | Lost) -> bool:
    """Says whether both may be about the same engine process."""
    if one.instance != other.instance:
        return False
    return one.incarnation == other.incarnation or not (one.incarnation and other.incarnation)


def _barren_lives(lives: Sequence[Life]) -> int:
    """Returns how many of the last lives in a row brought no token and ended in a death."""
    count = 0
    for number in range(len(lives) - 1, -1, -1):
        before = lives[number - 1].tokens if number else 0
        life = lives[number]
        if not (life.is_death and life.has_run) or life.tokens > before:
            break
        count += 1
    return count


def _lost(message: str) -> Over:
    return Over(InstanceLost.code, message)
