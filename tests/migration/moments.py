"""Moments of a move, and how a test brings one to it: by holding back what comes next."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from engine_pool.ports import EngineRequest
from migration.protocol import DestinationState as D
from migration.protocol import SourceState as S
from tests.engine_pool.make import request
from tests.migration.rig import Rig, until

MOVE = "m1"
MOVED = "moved"
TOKENS = 180
"""Of the moved answer: it does not end while a test brings it somewhere."""
QUICK = 0.02
"""Pace of a simulated engine once nothing must be caught in mid course."""


class Heir(Enum):
    """Who goes on with the request when one of the two is killed."""

    SURVIVOR = "the survivor"
    NOBODY = "nobody: it was the dead one's"


@dataclass(frozen=True)
class Moment:
    """A pair of states."""

    name: str
    bring: Callable[[Rig], None]
    source: S
    destination: D
    without_source: Heir
    without_destination: Heir


def long_answer(name: str, *, prompt_tokens: int = 300, tokens: int = TOKENS) -> EngineRequest:
    return request(name, prompt_tokens=prompt_tokens, max_tokens=tokens, min_tokens=tokens)


def begin(rig: Rig) -> None:
    assert rig.migrate(MOVED, rig.a, rig.b, MOVE) == ""


def stopped(rig: Rig, side: str, message: str, times: int = 1) -> None:
    process = rig.a if side == "a" else rig.b
    until(lambda: process.has_stopped(message, times), f"{side} holds {message} back")


def reached(rig: Rig, side: str, valve: str) -> None:
    process = rig.a if side == "a" else rig.b
    until(lambda: process.ask("is_reached", valve), f"{valve} of {side} stand still")


def reserving(rig: Rig) -> None:
    rig.b.ask("hold", "Ack")
    begin(rig)
    stopped(rig, "b", "Ack")


def copying(rig: Rig) -> None:
    rig.a.ask("shut", "copies")
    rig.b.ask("shut", "copies")
    begin(rig)


def paused(rig: Rig) -> None:
    rig.a.ask("hold", "Last")
    begin(rig)
    stopped(rig, "a", "Last")


def loading(rig: Rig) -> None:
    paused(rig)
    rig.b.ask("shut", "copies")
    rig.a.ask("let")


def logging(rig: Rig) -> None:
    rig.a.ask("hold", "Prepare")
    begin(rig)
    stopped(rig, "a", "Prepare")
    rig.a.ask("shut", "log")
    reached(rig, "a", "log")
    rig.a.ask("let")


def committing(rig: Rig) -> None:
    rig.a.ask("hold", "Commit")
    begin(rig)
    stopped(rig, "a", "Commit")


def adopting(rig: Rig) -> None:
    committing(rig)
    rig.b.ask("shut", "steps")
    reached(rig, "b", "steps")
    rig.a.ask("let")


def adopted(rig: Rig) -> None:
    rig.b.ask("hold", "Committed")
    begin(rig)
    stopped(rig, "b", "Committed")
    until(lambda: "i-02" in rig.instances(MOVED), "the destination's tokens are in the log")


def adopted_in_silence(rig: Rig) -> None:
    """The destination decodes, but none of its tokens gets into the log."""
    committing(rig)
    rig.b.ask("hold", "Committed")
    rig.b.ask("shut", "log")
    reached(rig, "b", "log")
    rig.a.ask("let")
    stopped(rig, "b", "Committed")


def asking(rig: Rig) -> None:
    adopted(rig)
    rig.b.ask("cut")
    stopped(rig, "b", "Committed", times=2)


def reclaiming(rig: Rig) -> None:
    rig.a.ask("shut", "reclaim")
    asking(rig)
    rig.b.ask("cut")
    reached(rig, "a", "reclaim")


def reclaiming_in_silence(rig: Rig) -> None:
    rig.a.ask("shut", "reclaim")
    adopted_in_silence(rig)
    rig.b.ask("cut")
    stopped(rig, "b", "Committed", times=2)
    rig.b.ask("cut")
    reached(rig, "a", "reclaim")


_LIVES, _LOST = Heir.SURVIVOR, Heir.NOBODY
MOMENTS = (
    Moment("reserving", reserving, S.RESERVING, D.HELD, _LOST, _LIVES),
    Moment("copying", copying, S.COPYING, D.HELD, _LOST, _LIVES),
    Moment("paused", paused, S.PAUSED_LOGGED, D.HELD, _LOST, _LIVES),
    Moment("loading", loading, S.PAUSED_LOGGED, D.LOADING, _LOST, _LIVES),
    Moment("logging", logging, S.PAUSED_RECEIVED, D.LOADED, _LOST, _LIVES),
    Moment("committing", committing, S.COMMITTING, D.LOADED, _LOST, _LIVES),
    Moment("adopting", adopting, S.COMMITTING, D.ADOPTING, _LIVES, _LIVES),
    Moment("adopted", adopted, S.COMMITTING, D.ADOPTED, _LIVES, _LOST),
    Moment("adopted-in-silence", adopted_in_silence, S.COMMITTING, D.ADOPTED, _LIVES, _LIVES),
    Moment("asking", asking, S.ASKING, D.ADOPTED, _LIVES, _LOST),
    Moment("reclaiming", reclaiming, S.RECLAIMING, D.ADOPTED, _LIVES, _LOST),
    Moment("reclaiming-in-silence", reclaiming_in_silence, S.RECLAIMING, D.ADOPTED, _LIVES, _LIVES),
)
