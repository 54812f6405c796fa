"""Rounds of rebalancing in a simulated pool: who gives to whom, which request, and within which
limits. Pairs, requests and room are the policy's decisions."""

from collections.abc import Sequence
from typing import Protocol

from engine_pool.policy.defragment import make_room
from engine_pool.policy.pairing import pair
from engine_pool.policy.selection import NoSelection, select
from engine_pool.policy.settings import PolicySettings
from engine_pool.policy.standing import Standing
from engine_pool.simulator.books_model import Candidate
from engine_pool.simulator.instance_model import Instance
from engine_pool.types import InstanceName


class MovingPool(Protocol):
    """What a round needs of the world."""

    def pool_now(self) -> list[Instance]:
        """Returns the instances that serve or drain, brought up to now."""

    def start_move(
        self, candidate: Candidate, source: Instance, destination: Instance, reason: str
    ) -> None: ...


class Rebalancer:
    """Remembers the pairs of the last round."""

    def __init__(self, settings: PolicySettings) -> None:
        self._rule = settings.rebalance
        self._headroom = settings.dispatch.headroom
        self._watermark = settings.dispatch.watermark
        self._before: dict[InstanceName, InstanceName] = {}
        self._tokens_left = 0

    def round(self, pool: MovingPool) -> None:
        """Starts the moves of one round."""
        instances = {i.engine.name: i for i in pool.pool_now()}
        standings = [i.seen for i in instances.values()]
        pairs = pair(standings, self._rule, self._headroom, self._before)
        self._before = {p.source: p.destination for p in pairs}
        self._tokens_left = self._rule.tokens_per_round
        for p in pairs:
            source, destination = instances[p.source], instances[p.destination]
            if self._can_begin(source, destination):
                self._give(pool, source, destination, p.reason)
        if self._rule.defragments:
            self._defragment(pool, instances, standings)

    def _can_begin(self, source: Instance, destination: Instance) -> bool:
        most = self._rule.moves_per_instance
        return source.moves < most and destination.moves < most and self._tokens_left > 0

    def _give(self, pool: MovingPool, source: Instance, destination: Instance, why: str) -> None:
        # The source's llumlet chooses: it knows its own requests as they are now.
        candidates = source.engine.candidates()
        found = select(
            candidates, source.engine.standing, destination.seen, self._rule, self._headroom
        )
        if isinstance(found, NoSelection):
            return
        chosen = found.request
        if chosen.need_tokens <= self._tokens_left:
            self._tokens_left -= chosen.need_tokens
            pool.start_move(chosen, source, destination, f"{why}; {found.reason}")

    def _defragment(
        self,
        pool: MovingPool,
        instances: dict[InstanceName, Instance],
        standings: Sequence[Standing],
    ) -> None:
        for source in instances.values():
            seen = source.seen
            # A move that goes on there may be about to make the room.
            if not seen.head_tokens or source.moves:
                continue
            found = make_room(
                seen,
                seen.head_tokens,
                standings,
                lambda name: instances[name].engine.candidates(),
                self._watermark,
            )
            if found is None:
                continue
            destination = instances[found.destination]
            chosen = found.request
            if self._can_begin(source, destination) and chosen.need_tokens <= self._tokens_left:
                self._tokens_left -= chosen.need_tokens
                pool.start_move(chosen, source, destination, found.reason)
