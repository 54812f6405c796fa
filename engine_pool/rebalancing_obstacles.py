"""Why the requests of a draining instance do not move, in words for whoever waits for the drain."""

from collections import OrderedDict
from collections.abc import Iterable, MutableMapping
from typing import Any, Final

from engine_pool.policy.rebalancing import NO_PLACE, Round
from engine_pool.rebalancing_transit import Transit
from engine_pool.types import InstanceLoad, InstanceName

KEPT: Final = 1000
"""Refusals that are remembered: more requests than drain at the same time."""


class Obstacles:
    """One a rebalancer; writes into what the keepers read."""

    def __init__(self, told: MutableMapping[InstanceName, str]) -> None:
        self._told = told
        self._refused: OrderedDict[str, str] = OrderedDict()

    def note_refused(self, request_id: str, why: str) -> None:
        """Remembers why a request did not move."""
        self._refused[request_id] = why
        self._refused.move_to_end(request_id)
        while len(self._refused) > KEPT:
            self._refused.popitem(last=False)

    def all_stay(self, draining: Iterable[InstanceName], why: str) -> None:
        """Nothing may move at all."""
        self._tell(dict.fromkeys(draining, why))

    def note_round(
        self, draining: Iterable[InstanceName], transit: Transit, plan: Round[Any]
    ) -> None:
        """Learns from a round what keeps each."""
        loads = {load.instance: load for load in transit.view.loads}
        leave = {m.source for m in plan.moves}
        found = {}
        for instance in draining:
            is_moving = instance in leave or transit.going_on.get(instance, 0) > 0
            load = loads.get(instance)
            found[instance] = "" if is_moving else self._why(instance, load, plan)
        self._tell(found)

    def _why(self, instance: InstanceName, load: InstanceLoad | None, plan: Round[Any]) -> str:
        if load is None:
            return "no report from it"
        idle = [i.why for i in plan.idle if i.source == instance]
        if NO_PLACE in idle:
            # It is so now; refusals are of earlier.
            return NO_PLACE
        requests = [*load.running, *load.waiting]
        refused = [self._refused[r.request_id] for r in requests if r.request_id in self._refused]
        if refused:
            return f"{len(refused)} of {len(requests)} requests could not move: {refused[-1]}"
        return next(iter(idle), "")

    def _tell(self, found: dict[InstanceName, str]) -> None:
        self._told.clear()
        self._told.update(found)
