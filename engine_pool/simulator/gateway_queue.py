"""The gateway's queue of a simulated run: requests that wait until an instance has room for them
(policy/late_binding.py, an option)."""

from bisect import insort
from collections.abc import Sequence

from engine_pool.policy.dispatch import Choice, RequestDemand
from engine_pool.policy.late_binding import LOOKED_AT, Held, release
from engine_pool.policy.settings import DispatchRule
from engine_pool.policy.standing import Standing
from engine_pool.simulator.sim_request import SimRequest


class GatewayQueue:
    """In order of class, then arrival."""

    def __init__(self, rule: DispatchRule) -> None:
        self._rule = rule
        self._queue: list[tuple[tuple[int, int], SimRequest, RequestDemand]] = []
        self._blocked_since_s: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def head_tokens(self) -> int:
        """Demand of the head; 0 when nobody waits."""
        return self._queue[0][2].demand_tokens if self._queue else 0

    def add(self, r: SimRequest, demand: RequestDemand) -> None:
        insort(self._queue, (r.key, r, demand))

    def release(
        self, standings: Sequence[Standing], now_s: float
    ) -> list[tuple[SimRequest, RequestDemand, Choice]]:
        """Takes out whoever may go, with where to."""
        held = [
            Held(demand, self._blocked_since_s.get(r.index))
            for _, r, demand in self._queue[:LOOKED_AT]
        ]
        outcome = release(held, standings, self._rule, now_s)
        if outcome.blocked is not None:
            self._blocked_since_s.setdefault(self._queue[outcome.blocked][1].index, now_s)
        released = []
        for one in reversed(outcome.releases):
            _, r, demand = self._queue.pop(one.position)
            self._blocked_since_s.pop(r.index, None)
            released.append((r, demand, one.choice))
        return released[::-1]
