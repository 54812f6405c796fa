"""Rounds of rebalancing in a simulated pool. What moves is the policy's decision
(policy/rebalancing.py); here is what it sees: each instance's last report, and the moves that this
report does not show yet, as the pool knows of them because it asked for them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Protocol

from engine_pool.config import PoolConfig
from engine_pool.policy.rebalancing import Restraints, plan_round
from engine_pool.policy.settings import PolicySettings
from engine_pool.policy.shifted import sums_with, sums_without
from engine_pool.policy.standing import Standing
from engine_pool.simulator.books_model import Candidate
from engine_pool.simulator.instance_model import Instance
from engine_pool.simulator.move_record import Move
from engine_pool.types import InstanceName

_DEFAULT = PoolConfig()
"""A simulated engine takes as many moves at once as a live one by default."""


class MovingPool(Protocol):
    """What a round needs of the world."""

    def pool_now(self) -> list[Instance]:
        """Returns the instances that serve or drain, brought up to now."""

    def start_move(
        self, candidate: Candidate, source: Instance, destination: Instance, reason: str
    ) -> Move: ...


class Rebalancer:
    """Remembers the pairs of the last round, and the moves that a report may not show yet."""

    def __init__(self, settings: PolicySettings) -> None:
        self._rule = settings.rebalance
        self._headroom = settings.dispatch.headroom
        self._watermark = settings.dispatch.watermark
        self._before: dict[InstanceName, InstanceName] = {}
        self._known: list[tuple[Move, Candidate]] = []

    def round(self, pool: MovingPool) -> None:
        """Starts the moves of one round."""
        instances = {i.engine.name: i for i in pool.pool_now()}
        planned = plan_round(
            self._standings(instances),
            lambda name: instances[name].engine.candidates(),
            self._rule,
            self._headroom,
            self._before,
            Restraints(
                {name: i.moves for name, i in instances.items()},
                (),
                self._watermark,
                drain_moves=_DEFAULT.migrations_at_once,
            ),
        )
        self._before = planned.paired
        for one in planned.moves:
            source, destination = instances[one.source], instances[one.destination]
            move = pool.start_move(one.request, source, destination, one.reason)
            self._known.append((move, one.request))

    def _standings(self, instances: dict[InstanceName, Instance]) -> list[Standing]:
        self._known = list(_not_shown_yet(self._known, instances))
        standings = {name: i.seen for name, i in instances.items()}
        for move, candidate in self._known:
            source, destination = move.source.name, move.destination.name
            if source in standings and _is_shown_at_source(move, instances[source]):
                s = standings[source]
                standings[source] = sums_without(s, candidate, _next_head(s, candidate))
            if destination in standings and not _is_shown_as_running(move, instances[destination]):
                s = standings[destination]
                standings[destination] = _with(s, candidate, move, instances[destination])
        return list(standings.values())


def _not_shown_yet(
    known: Iterable[tuple[Move, Candidate]], instances: dict[InstanceName, Instance]
) -> Iterator[tuple[Move, Candidate]]:
    """Leaves out the moves that came to nothing, and those that both ends have reported."""
    for move, candidate in known:
        if move.abort_code:
            continue
        source = instances.get(move.source.name)
        destination = instances.get(move.destination.name)
        left = source is None or not _is_shown_at_source(move, source)
        came = destination is None or _is_shown_as_running(move, destination)
        if not (left and came):
            yield move, candidate


def _is_shown_at_source(move: Move, source: Instance) -> bool:
    return move.left_s is None or source.reported_s < move.left_s


def _is_shown_as_running(move: Move, destination: Instance) -> bool:
    return move.adopted_s is not None and move.adopted_s <= destination.reported_s


def _with(s: Standing, candidate: Candidate, move: Move, destination: Instance) -> Standing:
    """What is held for a request is in its destination's report as used already."""
    after = sums_with(s, candidate)
    if move.request.index in destination.seen_held:
        return replace(after, used_tokens=s.used_tokens)
    return after


def _next_head(s: Standing, candidate: Candidate) -> int:
    """What the head of the line needs once the request has left: unknown behind a head that
    moves, so the mean of the others."""
    if candidate.kv_tokens:
        return s.head_tokens
    others = s.waiting - 1
    demand = candidate.need_tokens - s.block_size_tokens
    return (sum(s.queued_tokens) - demand) // others if others > 0 else 0
