"""A simulated pool next to the live code: at each decision of the simulator the live code is asked,
too, with the same facts, and must decide the same."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import pytest

from engine_pool import rebalancer as live_rebalancer
from engine_pool.policy.dispatch import Choice, RequestDemand
from engine_pool.policy.rebalancing import R, RequestsOf, Restraints, Round, plan_round
from engine_pool.policy.settings import DispatchRule, HeadroomRule, RebalanceRule
from engine_pool.policy.standing import Standing, standing_of
from engine_pool.rebalancing_requests import MovableRequest, movable_requests
from engine_pool.simulator import rebalancing as simulated_rebalancing
from engine_pool.simulator import world as simulated_world
from engine_pool.simulator.books_model import Candidate
from engine_pool.simulator.gateway_queue import GatewayQueue
from engine_pool.simulator.instance_model import Instance
from engine_pool.simulator.move_record import Move
from engine_pool.simulator.scenario import Scenario
from engine_pool.simulator.sim_request import Arrival, SimRequest
from engine_pool.simulator.world import World
from engine_pool.types import InstanceLoad, InstanceName, InstanceState
from tests.parity.live_side import Asked, LiveSide, entry_of
from tests.parity.reports import (
    StartedMove,
    as_when_it_was_decided,
    move_report_of,
    report_of,
    status_of,
)


class ReportingInstance(Instance):
    """Tells of each report in the moment that it is of."""

    on_report: Callable[[Instance], None] | None = None

    def _report(self, now_s: float) -> None:
        super()._report(now_s)
        if self.on_report is not None:
            self.on_report(self)


@dataclass(frozen=True, slots=True)
class Seen:
    """What one round of rebalancing was decided on."""

    standings: dict[InstanceName, Standing]
    going_on: Counter[InstanceName]


@dataclass(slots=True)
class Counts:
    """How much a run has compared."""

    choices: int = 0
    looks: int = 0
    """At the gateway's queue."""
    longest_queue: int = 0
    rounds: int = 0
    moves: int = 0
    reports: int = 0
    in_transit: int = 0
    """Moves that went on, or were in one report only, when a round was decided on."""


def compare_standings(live: LiveSide, simulated: Iterable[Standing], now_s: float) -> None:
    """Asserts that dispatch sees the open instances as the simulator does."""
    found = {s.instance: s for s in live.placement.standings(now_s) if s.is_open}
    assert found == {s.instance: s for s in simulated}, f"dispatch at {now_s} saw something else"


class ComparedQueue(GatewayQueue):
    """The simulator's queue, next to the gateway's."""

    def __init__(self, rule: DispatchRule, live: LiveSide, counts: Counts) -> None:
        super().__init__(rule)
        self._live = live
        self._counts = counts

    def add(self, r: SimRequest, demand: RequestDemand) -> None:
        super().add(r, demand)
        self._live.wait(demand)

    def release(
        self, standings: Sequence[Standing], now_s: float
    ) -> list[tuple[SimRequest, RequestDemand, Choice]]:
        compare_standings(self._live, standings, now_s)
        waiting = len(self)
        simulated = super().release(standings, now_s)
        released = self._live.look()
        assert released == [(d.request_id, c) for _, d, c in simulated], f"the look at {now_s}"
        self._counts.looks += 1
        self._counts.choices += len(released)
        self._counts.longest_queue = max(self._counts.longest_queue, waiting)
        return simulated


class ParityWorld(World):
    """A world that compares."""

    def __init__(
        self, scenario: Scenario, arrivals: Sequence[Arrival], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        super().__init__(scenario, arrivals)
        self.live = LiveSide(self._policy, lambda: self.now_s, monkeypatch)
        self.counts = Counts()
        self._gateway = ComparedQueue(self._policy.dispatch, self.live, self.counts)
        self._reports: dict[InstanceName, InstanceLoad] = {}
        self._started: list[tuple[Move, Candidate]] = []
        self._going_on: list[StartedMove] = []
        """Moves whose end the live side has not heard of."""
        self._ended: list[StartedMove] = []
        self._seen: list[Seen] = []
        monkeypatch.setattr(simulated_world, "Instance", ReportingInstance)
        for module in (simulated_rebalancing, live_rebalancer):
            monkeypatch.setattr(module, "plan_round", self._plan_round)
        monkeypatch.setattr(live_rebalancer, "movable_requests", self._movable_requests)

    # What the live side hears

    def _add_instance(self, state: InstanceState) -> Instance:
        instance = super()._add_instance(state)
        assert isinstance(instance, ReportingInstance)
        # Before its first report the simulator sees an empty instance; live, none is seen.
        self._hear_report(instance)
        instance.on_report = self._hear_report
        return instance

    def set_state(self, instance: InstanceName, state: InstanceState) -> None:
        super().set_state(instance, state)
        # It may have stopped at once.
        self.live.hear(status_of(instance, self._by_name[instance].state))

    def _hear_report(self, instance: Instance) -> None:
        engine = instance.engine
        load = report_of(engine, instance.reported_s, seq=0)
        shown = {r.request_id for r in (*load.running, *load.waiting)}
        # The simulator's ledger is empty after each report. So what was sent here and is here no
        # more has ended, or has moved on before a report showed it. The latter cannot happen live,
        # where requests are chosen from reports.
        sent = {entry.request_id for entry in self.live.web.ledger.sent_to(engine.name)}
        load = replace(load, ended=tuple(sorted(sent - shown)))
        self._reports[engine.name] = load
        self.live.hear(load)
        assert standing_of(load, instance.state) == instance.seen, "a report says what is seen"
        self.counts.reports += 1

    def _send(self, r: SimRequest, demand: RequestDemand, choice: Choice) -> None:
        super()._send(r, demand, choice)
        self.live.sent(entry_of(demand, choice, self.now_s))

    # Dispatch

    def _choose(self, demand: RequestDemand) -> Choice:
        simulated = super()._choose(demand)
        chosen = self.live.placement.choose(demand, self.now_s)
        compare_standings(self.live, [i.seen for i in self._open], self.now_s)
        assert chosen == simulated, f"{demand.request_id} at {self.now_s}"
        self.counts.choices += 1
        return simulated

    # Rebalancing

    def _round(self) -> None:
        # Live, rounds go on while the pool is empty, and forget their pairs; the simulator's rest.
        self.pool_now()
        self._tell_of_moves()
        self._seen, self._started = [], []
        asked = self.live.round()
        super()._round()
        live, simulated = self._seen
        assert live == simulated, f"the round at {self.now_s} saw something else"
        assert [(a.request_id, a.destination, a.reason) for a in asked] == [
            (c.name, m.destination.name, m.reason) for m, c in self._started
        ], f"the round at {self.now_s} moves something else"
        self._note_started(asked)

    def _note_started(self, asked: Iterable[Asked]) -> None:
        for one, (move, candidate) in zip(asked, self._started, strict=True):
            self._going_on.append(StartedMove(move, candidate, one.migration_id))
        self.counts.rounds += 1
        self.counts.moves += len(self._started)

    def start_move(
        self, candidate: Candidate, source: Instance, destination: Instance, reason: str
    ) -> Move:
        move = super().start_move(candidate, source, destination, reason)
        self._started.append((move, candidate))
        return move

    def _tell_of_moves(self) -> None:
        """Tells how far moves have come, before each round: dispatch has no use for it."""
        for one in self._going_on:
            destination = self._by_name[one.move.destination.name]
            # The sequence number is given when it is heard.
            self.live.hear(move_report_of(one, destination, self.now_s, seq=0))
        self._ended += [one for one in self._going_on if one.move.is_over]
        self.counts.in_transit += len(self._going_on)
        self._going_on = [one for one in self._going_on if not one.move.is_over]
        for name, load in self._reports.items():
            leaving = [
                one
                for one in (*self._ended, *self._going_on)
                if one.move.source.name == name
                and not one.move.abort_code
                and (one.move.left_s is None or load.at_unix_s < one.move.left_s)
            ]
            if leaving:
                self.live.hear_in_pool(as_when_it_was_decided(load, leaving))

    def _movable_requests(
        self, load: InstanceLoad, is_held: Callable[[str], bool]
    ) -> list[MovableRequest]:
        """Lists an instance's requests as they are now.

        The simulator's rounds see the sums of the last report, but the requests of this moment;
        live, both are the report's.
        """
        engine = self._by_name[load.instance].engine
        return movable_requests(report_of(engine, self.now_s, seq=0), is_held)

    def _plan_round(
        self,
        standings: Sequence[Standing],
        requests_of: RequestsOf[R],
        rule: RebalanceRule,
        headroom: HeadroomRule,
        before: dict[InstanceName, InstanceName],
        restraints: Restraints,
    ) -> Round[R]:
        """Plans as the policy does, and notes on what. `running_tokens` is left out: no rule
        reads it, and the simulator's is not exact while a request is on its way."""
        self._seen.append(
            Seen(
                {s.instance: replace(s, running_tokens=[]) for s in standings},
                +Counter(restraints.going_on),
            )
        )
        return plan_round(standings, requests_of, rule, headroom, before, restraints)
