"""How urgent a request is in its engine: its place in the queue, and who makes room for whom.

Decides the order of classes, what ageing does to it, and which running requests are preempted so
that waiting ones of a higher class get in. Fair shares inside a class are fair_share's. Ranks are
PriorityClass's: lower is more urgent. Tags are tokens divided by weight.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

RANK_SHIFT = 60
"""Bits of a tag in a priority: at 10,000 tokens a second and the smallest weight they last for
thousands of years."""
_TAG_MAX = (1 << RANK_SHIFT) - 1


@dataclass(frozen=True, slots=True, order=True)
class Turn:
    """Where a request stands in its engine's queue: the lower one goes first."""

    rank: int
    tag: float

    @property
    def priority(self) -> int:
        """The same order as one number, as vLLM wants it."""
        return self.rank << RANK_SHIFT | max(0, min(int(self.tag), _TAG_MAX))


@dataclass(frozen=True, slots=True)
class Waiting:
    """One queued request, for ageing."""

    request_id: str
    rank: int
    """Of its own class."""
    turn: Turn
    """Where it stands now; of a lower rank than its own once it was raised."""
    waited_s: float


def raised(
    waiting: Sequence[Waiting], ageing_s: float, of_rank: Mapping[int, float] | None = None
) -> dict[str, Turn]:
    """Returns the requests that count as a higher class from now on, with their new turns.

    Only the first of each class is raised, by one class for each `ageing_s` (0: never) that it has
    waited, behind those who wait in the class that it comes to. The others follow in their turn:
    if all old requests were raised, the longest queue, a heavy tenant's, would pass everybody.
    `of_rank`: the time of classes that have one of their own.
    """
    changed: dict[str, Turn] = {}
    own = of_rank or {}
    turns = {w.request_id: w.turn for w in waiting}
    for first in _firsts(waiting):
        each_s = own.get(first.rank, ageing_s)
        if not each_s:
            continue
        rank = max(0, first.rank - int(first.waited_s / each_s))
        if rank < first.turn.rank:
            there = [turn.tag for turn in turns.values() if turn.rank == rank]
            turn = Turn(rank, max(there, default=-1.0) + 1)
            changed[first.request_id] = turns[first.request_id] = turn
    return changed


def _firsts(waiting: Iterable[Waiting]) -> list[Waiting]:
    """Returns the first of each class, the most urgent class first."""
    firsts: dict[int, Waiting] = {}
    for w in sorted(waiting, key=lambda w: (w.turn, -w.waited_s)):
        firsts.setdefault(w.rank, w)
    return [firsts[rank] for rank in sorted(firsts)]


@dataclass(frozen=True, slots=True)
class Seeker:
    """One queued request that could run now if it had a place and blocks."""

    rank: int
    """Of its own class. Ageing lets nobody be preempted: in a queue that is simply long it would
    have all requests recompute all others."""
    is_raised: bool
    needed_blocks: int


@dataclass(frozen=True, slots=True)
class Occupant:
    """One running request that could make room."""

    request_id: str
    rank: int
    """What it counts as: a raised request keeps that while it runs."""
    came: float
    """Grows with the arrival: the last come goes first."""
    frees_blocks: int
    times: int = 0
    """How often it has made room already."""
    is_moving: bool = False
    """Part of a move, which would lose its copied blocks."""
    is_kept: bool = False
    """Of a class that makes no room."""


@dataclass(frozen=True, slots=True)
class Room:
    """What is free in an engine once its running requests have what they need next."""

    places: int
    blocks: int


def preempted(
    queue: Iterable[Seeker], batch: Sequence[Occupant], room: Room, times_max: int
) -> tuple[str, ...]:
    """Chooses the running requests that make room for waiting ones of a higher class.

    `queue`: in its order. Preempted are those of the lowest class, the last come first, nobody more
    than `times_max` times, nobody in a move, and nobody in vain: only if the request that waits
    then gets both its place and its blocks. Those before it in the queue get in with it.
    """
    places, blocks = room.places, room.blocks
    candidates = [o for o in batch if o.times < times_max and not (o.is_moving or o.is_kept)]
    candidates.sort(key=lambda o: (o.rank, o.came))
    lowest = candidates[-1].rank if candidates else -1
    chosen: list[str] = []
    for seeker in queue:
        if is_helpless(seeker.rank, seeker.is_raised, lowest):
            break
        places -= 1
        blocks -= seeker.needed_blocks
        gained = _gain(candidates, seeker.rank, places, blocks)
        if gained is None:
            if seeker.is_raised:
                continue
            break
        for occupant in gained:
            candidates.pop()
            chosen.append(occupant.request_id)
            places += 1
            blocks += occupant.frees_blocks
    return tuple(chosen)


def is_helpless(rank: int, is_raised: bool, lowest: int) -> bool:
    """Says whether nobody makes room for a request, nor for those behind it in the queue, where the
    running ones count as `lowest` at most (-1: there are none)."""
    # Behind a raised request may wait one of any class.
    return lowest <= (0 if is_raised else rank)


def _gain(
    candidates: Sequence[Occupant], rank: int, places: int, blocks: int
) -> list[Occupant] | None:
    """Returns whose going leaves neither places nor blocks below zero; None: that cannot be."""
    gained: list[Occupant] = []
    for occupant in reversed(candidates):
        if places >= 0 and blocks >= 0:
            break
        if occupant.rank <= rank:
            return None
        gained.append(occupant)
        places += 1
        blocks += occupant.frees_blocks
    return gained if places >= 0 and blocks >= 0 else None


def prompt_share_tokens(rank: int, prompts: Sequence[int], step_tokens: int) -> int:
    """Returns the most tokens that one prompt gets of a step, so that the first of the queue, of
    that rank, gets its share; 0: no limit, for no prompt of a lower class is being computed.

    `prompts`: ranks of the running requests whose prompts are being computed.
    """
    if all(other <= rank for other in prompts):
        return 0
    return max(1, step_tokens // (len(prompts) + 1))
