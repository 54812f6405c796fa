"""The instances as dispatch sees them, kept up to date one at a time: a listener of the live view.

A report, a status or an entry of the ledger changes the place of one instance in the ranking; a
report that becomes too old takes its instance out in time. So a choice looks at no more instances
than the ranking does, however many there are.
"""

import heapq
from collections.abc import Callable, Collection
from typing import Final

from engine_pool import view
from engine_pool.live_view import LiveView
from engine_pool.policy.dispatch import Choice, Refusal, RequestDemand
from engine_pool.policy.ranking import Ranking
from engine_pool.policy.reports import REPORT_MAX_AGE_S
from engine_pool.policy.settings import DispatchRule
from engine_pool.policy.standing import Standing, add_queued, standing_of
from engine_pool.types import InFlight, InstanceLoad, InstanceName, InstanceStatus

BLOCK_SIZE_TOKENS: Final = 16
"""Taken for an engine's until one has reported: vLLM's usual one."""


class Placement:
    """Of one web process, in its event loop."""

    def __init__(
        self, live: LiveView, rule: DispatchRule, report_max_age_s: float = REPORT_MAX_AGE_S
    ) -> None:
        self._live = live
        self._max_age_s = report_max_age_s
        self._ranking = Ranking(rule)
        self._standings: dict[InstanceName, Standing] = {}
        self._fresh_until: list[tuple[float, InstanceName]] = []
        """A heap with one valid entry an instance; it is looked at when its time has come, and
        goes back in when there was a newer report meanwhile."""
        self._looked_at_unix_s: dict[InstanceName, float] = {}
        """Of the valid entries: their times."""
        self._dirty: set[InstanceName] = set()
        """Instances that are summed up anew before the next choice: a report takes many entries
        out of the ledger at once."""
        self.block_size_tokens = BLOCK_SIZE_TOKENS
        """Of the last report."""
        self.on_room: Callable[[], None] = lambda: None
        """Called when an instance may have got freer, or come, or gone."""
        live.add_listener(self._on_change)
        live.ledger.add_listener(self._on_sent, self._on_left)

    def use(self, rule: DispatchRule) -> None:
        """Ranks the instances by this rule from now on."""
        self._ranking = Ranking(rule)
        for standing in self._standings.values():
            self._ranking.put(standing)

    def choose(
        self,
        request: RequestDemand,
        now_unix_s: float,
        excluded: Collection[InstanceName] = (),
    ) -> Choice | Refusal:
        """Returns where a request goes, as of now, and not to `excluded`."""
        self._bring_up_to_date(now_unix_s)
        left_out = [self._standings[i] for i in excluded if i in self._standings]
        for standing in left_out:
            self._ranking.remove(standing.instance)
        found = self._ranking.choose(request)
        for standing in left_out:
            self._ranking.put(standing)
        return found

    def standings(self, now_unix_s: float) -> Collection[Standing]:
        """Returns all instances with a fresh report; valid until the next change."""
        self._bring_up_to_date(now_unix_s)
        return self._standings.values()

    def _on_change(self, change: view.Change) -> None:
        if isinstance(change, InstanceLoad | InstanceStatus):
            self._refresh(change.instance)
        elif isinstance(change, str):
            self._refresh(InstanceName(change))
        else:
            return
        self.on_room()

    def _on_sent(self, entry: InFlight) -> None:
        standing = self._standings.get(entry.instance)
        if standing is not None:
            add_queued(standing, entry.priority_class.rank, entry.demand_tokens)
            self._ranking.put(standing)

    def _on_left(self, entry: InFlight) -> None:
        self._dirty.add(entry.instance)
        self.on_room()

    def _refresh(self, instance: InstanceName) -> None:
        """Sums an instance up anew, or takes it out."""
        self._dirty.discard(instance)
        load, status = self._live.loads.get(instance), self._live.statuses.get(instance)
        # A report of another incarnation than the status names is a dead predecessor's.
        if load is None or status is None or load.incarnation != status.incarnation:
            self._take_out(instance)
            return
        self.block_size_tokens = load.block_size_tokens
        standing = standing_of(load, status.state, self._live.ledger.sent_to(instance))
        if standing != self._standings.get(instance):
            self._standings[instance] = standing
            self._ranking.put(standing)
        self._look_again(instance, load.at_unix_s + self._max_age_s)

    def _take_out(self, instance: InstanceName) -> None:
        self._standings.pop(instance, None)
        self._ranking.remove(instance)

    def _look_again(self, instance: InstanceName, at_unix_s: float) -> None:
        """Sees to it that the report's age is looked at then; sooner is early enough, too."""
        known_unix_s = self._looked_at_unix_s.get(instance)
        if known_unix_s is None or at_unix_s < known_unix_s:
            self._looked_at_unix_s[instance] = at_unix_s
            heapq.heappush(self._fresh_until, (at_unix_s, instance))

    def _bring_up_to_date(self, now_unix_s: float) -> None:
        self._live.ledger.expire(now_unix_s)
        for instance in tuple(self._dirty):
            self._refresh(instance)
        while self._fresh_until and self._fresh_until[0][0] < now_unix_s:
            at_unix_s, instance = heapq.heappop(self._fresh_until)
            if self._looked_at_unix_s.get(instance) != at_unix_s:
                continue
            del self._looked_at_unix_s[instance]
            load = self._live.loads.get(instance)
            if load is None or instance not in self._standings:
                continue
            until_unix_s = load.at_unix_s + self._max_age_s
            if until_unix_s < now_unix_s:
                self._take_out(instance)
            else:
                self._look_again(instance, until_unix_s)
