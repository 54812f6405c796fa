"""Which request of a source moves: of the lowest class first, then the shortest.

The shortest costs the least to move, and lower classes mind a pause the least (Llumnix, OSDI 2024,
section 4.4.3). Two things the paper leaves open. A request does not leave an instance that only
looks full because of its own class's headroom: both sides are judged as its class sees them, with
the headroom of higher classes alone. And a move must leave its destination freer than its source
is now, or it would come back.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from engine_pool.policy.freeness import freeness_of, freeness_steps
from engine_pool.policy.settings import HeadroomRule, RebalanceRule
from engine_pool.policy.standing import CLASSES, Standing
from engine_pool.policy.virtual_usage import virtual_tokens


class Movable(Protocol):
    """A request as far as this decision is concerned."""

    @property
    def rank(self) -> int:
        """Of its class; 0 is the highest."""

    @property
    def kv_tokens(self) -> int:
        """KV tokens it holds; 0 while it waits."""

    @property
    def need_tokens(self) -> int:
        """Room that it needs at the destination."""

    @property
    def can_move(self) -> bool:
        """Not: it is part of a move already, or its kind cannot be moved."""

    @property
    def name(self) -> str:
        """Breaks ties, the same everywhere."""


R = TypeVar("R", bound=Movable)


@dataclass(frozen=True, slots=True)
class Selection(Generic[R]):
    request: R
    reason: str


@dataclass(frozen=True, slots=True)
class NoSelection:
    why: str


def select(
    requests: Iterable[R],
    source: Standing,
    destination: Standing,
    rule: RebalanceRule,
    headroom: HeadroomRule,
) -> Selection[R] | NoSelection:
    """Chooses the request that goes from source to destination, if one should."""
    is_low = freeness_of(source, headroom) < rule.below_steps
    # Low only because of headroom that these classes do not see.
    content = [
        is_low and freeness_of(source, headroom, rank) >= rule.below_steps
        for rank in range(len(CLASSES))
    ]
    room_tokens = destination.free_tokens
    best: tuple[tuple[int, int, str], R] | None = None
    looked = immovable = large = held_back = 0
    for r in requests:
        looked += 1
        if not r.can_move:
            immovable += 1
        elif r.need_tokens > room_tokens or not _improves(r, source, destination, headroom):
            large += 1
        elif content[r.rank]:
            held_back += 1
        else:
            key = (-r.rank, r.need_tokens, r.name)
            if best is None or key < best[0]:
                best = key, r
    if best is not None:
        r = best[1]
        return Selection(r, f"{CLASSES[r.rank].value} class, {r.need_tokens} KV tokens to place")
    return NoSelection(
        f"none of {looked} requests of {source.instance} can go to {destination.instance}: "
        f"{immovable} cannot move now, {large} would leave it less free than it is here, "
        f"{held_back} of a class whose headroom is not the reason to go"
    )


def _improves(r: Movable, source: Standing, destination: Standing, headroom: HeadroomRule) -> bool:
    """Says whether the destination with the request is freer than the source is with it now."""
    if source.is_draining:
        return True
    there_steps = freeness_steps(
        capacity_tokens=destination.capacity_tokens,
        virtual_tokens=virtual_tokens(destination, headroom, r.rank) + r.need_tokens,
        running=sum(destination.running) + 1,
    )
    here_steps = freeness_of(source, headroom, r.rank)
    return there_steps > here_steps and not math.isinf(here_steps)
