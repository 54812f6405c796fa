"""A pool in virtual time: engines, the requests that come, and the decisions about them.

A heap of events in order of (time, kind, number). Of events at the same time an engine's step ends
first, then messages of moves arrive, instances become ready, requests arrive, and then the pool
decides and is looked at: `Kind` is that order. The number is the order in which they were made. So
a run depends on its scenario and seed alone.

Decisions are the policy's (engine_pool/policy), on what it would see live: each instance as of its
last report, with what was sent there since (the in-flight ledger).
"""

from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import partial
from heapq import heappop, heappush

from engine_pool.policy.dispatch import Choice, RequestDemand, choose, next_in_turn
from engine_pool.policy.settings import DispatchKind
from engine_pool.policy.standing import CLASSES
from engine_pool.simulator.books_model import Candidate
from engine_pool.simulator.engine_model import Engine
from engine_pool.simulator.gateway_queue import GatewayQueue
from engine_pool.simulator.instance_model import Instance
from engine_pool.simulator.metrics import SAMPLES, Sample, Series, look
from engine_pool.simulator.migration_model import FINISHED, PREEMPTED, Mover
from engine_pool.simulator.move_record import Move
from engine_pool.simulator.rebalancing import Rebalancer
from engine_pool.simulator.scaling_model import Scaler, ScalingLoop
from engine_pool.simulator.scenario import Scenario
from engine_pool.simulator.sim_request import Arrival, Place, SimRequest, request_of
from engine_pool.types import InstanceName, InstanceState

GATEWAY_LOOK_S = 0.1
"""Between two looks at the gateway's queue while somebody waits there; as reports come."""


class Kind(IntEnum):
    """Events of the same time, first to last."""

    STEP = 0
    MOVE = 1
    INSTANCE_READY = 2
    ARRIVAL = 3
    GATEWAY = 4
    REBALANCE = 5
    SCALING = 6
    SAMPLE = 7


class World:
    """One run; `run` may be called once."""

    def __init__(
        self,
        scenario: Scenario,
        arrivals: Sequence[Arrival],
        scaler: ScalingLoop | None = None,
    ) -> None:
        """`scaler`: another rule than the pool's own, for comparisons."""
        self._scenario = scenario
        self._policy = scenario.policy_settings()
        has_priorities = scenario.policy.priorities
        self.requests = [request_of(a, has_priorities=has_priorities) for a in arrivals]
        self.now_s = 0.0
        self.finished_count = 0
        self.last_arrival_s = arrivals[-1].arrival_s
        self.instances: list[Instance] = []
        self.moves: list[Move] = []
        self.samples: list[Sample] = []
        """Until the last arrival."""
        self.series = Series()
        self._by_name: dict[InstanceName, Instance] = {}
        self._pool: list[Instance] = []
        """That serve or drain."""
        self._open: list[Instance] = []
        self._heap: list[tuple[float, int, int, Callable[[], None]]] = []
        self._events = 0
        self._turn = 0
        self._preemptions = 0
        self._gateway = GatewayQueue(self._policy.dispatch)
        self._is_gateway_look_due = False
        self._is_round_due = False
        self._rounds = 0
        self._arrived_count = 0
        self._rebalancer = Rebalancer(self._policy)
        self._scaler = scaler or Scaler(self._policy)
        self._mover = Mover(
            self,
            scenario.copy_costs(),
            scenario.costs.message_ms * scenario.costs.time_scale / 1000,
            scenario.stage_limits(),
            scenario.pool.block_size_tokens,
        )
        self._on_finished: Callable[[int], None] = _ignore

    def run(self, on_finished: Callable[[int], None] | None = None) -> None:
        """Runs until every request has finished. `on_finished` gets the number of those that
        have; what it raises ends the run."""
        if on_finished is not None:
            self._on_finished = on_finished
        self.begin()
        while self.step():
            pass

    def step(self) -> bool:
        """Lets the next event happen; says whether there was one."""
        if not self._heap:
            return False
        self.now_s, _, _, act = heappop(self._heap)
        act()
        return True

    def begin(self) -> None:
        """Sets up the pool and the first events; `run` does it."""
        for _ in range(self._scenario.pool.instances):
            self._add_instance(InstanceState.SERVING)
        self._at(self.requests[0].arrival_s, Kind.ARRIVAL, partial(self._arrive, 0))
        rules = self._policy
        if rules.scaling.is_on:
            self._every(
                rules.scaling.check_interval_s, Kind.SCALING, lambda: self._scaler.check(self)
            )
        if self.last_arrival_s > 0:
            self._at(self.last_arrival_s / SAMPLES, Kind.SAMPLE, self._sample)

    def _at(self, at_s: float, kind: Kind, act: Callable[[], None]) -> None:
        self._events += 1
        heappush(self._heap, (at_s, kind, self._events, act))

    def _every(self, interval_s: float, kind: Kind, act: Callable[[], None]) -> None:
        def again() -> None:
            if self.finished_count < len(self.requests):
                act()
                self._at(self.now_s + interval_s, kind, again)

        self._at(self.now_s + interval_s, kind, again)

    # Requests

    def _arrive(self, index: int) -> None:
        r = self.requests[index]
        self._arrived_count = index + 1
        self._await_round()
        if index + 1 < len(self.requests):
            following = self.requests[index + 1]
            self._at(following.arrival_s, Kind.ARRIVAL, partial(self._arrive, index + 1))
        size = self._scenario.pool.block_size_tokens
        need = (r.tokens // size + 1) * size
        demand = RequestDemand(r.request_id, need, CLASSES[r.rank])
        if self._policy.dispatch.is_late_binding:
            self._gateway.add(r, demand)
            self._release_waiting()
        else:
            self._send(r, demand, self._choose(demand))

    def _choose(self, demand: RequestDemand) -> Choice:
        rule = self._policy.dispatch
        for instance in self._open:
            instance.touch(self.now_s)
        standings = [i.seen for i in self._open]
        if rule.kind is DispatchKind.ROUND_ROBIN:
            found = next_in_turn(standings, demand, self._turn, rule)
            self._turn += 1
        else:
            found = choose(standings, demand, rule)
        assert isinstance(found, Choice), f"an instance holds every request: {found}"
        return found

    def _send(self, r: SimRequest, demand: RequestDemand, choice: Choice) -> None:
        instance = self._by_name[choice.instance]
        instance.touch(self.now_s)
        if self._scenario.policy.ledger:
            instance.note_sent(r.rank, demand.demand_tokens)
        instance.engine.enqueue(r, self.now_s)

    def _release_waiting(self) -> None:
        for instance in self._open:
            instance.touch(self.now_s)
        released = self._gateway.release([i.seen for i in self._open], self.now_s)
        for r, demand, choice in released:
            self._send(r, demand, choice)
        if len(self._gateway) and not self._is_gateway_look_due:
            self._is_gateway_look_due = True
            self._at(self.now_s + GATEWAY_LOOK_S, Kind.GATEWAY, self._look_at_gateway)

    def _look_at_gateway(self) -> None:
        self._is_gateway_look_due = False
        self._release_waiting()

    # What engines say

    def wake_at(self, engine: Engine, at_s: float) -> None:
        self._at(at_s, Kind.STEP, partial(self._wake, engine, engine.version))

    def _wake(self, engine: Engine, version: int) -> None:
        if engine.version == version:
            self._by_name[engine.name].touch(self.now_s)
            engine.wake(self.now_s)

    def finished(self, r: SimRequest, now_s: float) -> None:
        self.finished_count += 1
        self._mover.request_gone(r, FINISHED)
        self._on_finished(self.finished_count)
        self._stop_empty()

    def preempted(self, r: SimRequest, now_s: float) -> None:
        self._preemptions += 1
        self._mover.request_gone(r, PREEMPTED)

    # Moves

    def _await_round(self) -> None:
        """Rounds come at multiples of their interval, and rest while the pool is empty."""
        if self._is_round_due or not self._policy.rebalance.is_on:
            return
        interval_s = self._policy.rebalance.interval_ms / 1000
        self._is_round_due = True
        # Counted, so that a quotient that was rounded down does not bring the same round again.
        self._rounds = max(self._rounds, int(self.now_s / interval_s)) + 1
        self._at(self._rounds * interval_s, Kind.REBALANCE, self._round)

    def _round(self) -> None:
        self._is_round_due = False
        self._rebalancer.round(self)
        if self.finished_count < self._arrived_count:
            self._await_round()

    def pool_now(self) -> list[Instance]:
        for instance in self._pool:
            instance.touch(self.now_s)
        return self._pool

    def start_move(
        self, candidate: Candidate, source: Instance, destination: Instance, reason: str
    ) -> Move:
        source.moves += 1
        destination.moves += 1
        move = self._mover.start(
            candidate.request, source.engine, destination.engine, reason, self.now_s
        )
        self.moves.append(move)
        return move

    def move_event(self, after_s: float, act: Callable[[], None]) -> None:
        self._at(self.now_s + after_s, Kind.MOVE, act)

    def touch_engine(self, engine: Engine) -> float:
        self._by_name[engine.name].touch(self.now_s)
        return self.now_s

    def move_ended(self, move: Move) -> None:
        for engine in (move.source, move.destination):
            self._by_name[engine.name].moves -= 1
        self._stop_empty()

    # Instances

    def _add_instance(self, state: InstanceState) -> Instance:
        number = len(self.instances)
        engine = Engine(
            f"i-{number:04d}", self._scenario.engine_limits(), self._scenario.step_costs(), self
        )
        instance = Instance(
            engine,
            number,
            started_s=self.now_s,
            report_interval_s=self._scenario.policy.report_interval_ms / 1000,
        )
        self.instances.append(instance)
        self._by_name[engine.name] = instance
        self.set_state(engine.name, state)
        return instance

    def start_instance(self) -> None:
        name = self._add_instance(InstanceState.STARTING).engine.name
        ready_s = self.now_s + self._scenario.scaling.start_delay_s
        self._at(ready_s, Kind.INSTANCE_READY, lambda: self._ready(name))

    def _ready(self, name: InstanceName) -> None:
        # It may have been drained before it served.
        if self._by_name[name].state is InstanceState.STARTING:
            self.set_state(name, InstanceState.SERVING)

    def set_state(self, instance: InstanceName, state: InstanceState) -> None:
        self._by_name[instance].set_state(state)
        self._pool = [i for i in self.instances if i.is_in_pool]
        self._open = [i for i in self._pool if i.state is InstanceState.SERVING]
        self._stop_empty()

    def _stop_empty(self) -> None:
        """Stops the draining instances that nothing is left on."""
        if len(self._pool) == len(self._open):
            return
        for i in self._pool:
            if i.state is InstanceState.DRAINING and i.engine.is_empty and not i.moves:
                i.stopped_s = self.now_s
                self.set_state(i.engine.name, InstanceState.STOPPED)
                return

    # Looking

    def _sample(self) -> None:
        if self.finished_count == len(self.requests):
            return
        # Evenly until the last arrival; what comes then may last a thousand times as long.
        interval_s = max(self.last_arrival_s, self.now_s) / SAMPLES
        self._at(self.now_s + interval_s, Kind.SAMPLE, self._sample)
        pool = self.pool_now()
        sample = look(
            self.now_s,
            pool,
            self._policy.dispatch.headroom,
            held=len(self._gateway),
            held_head_tokens=self._gateway.head_tokens,
            instances=sum(i.state is not InstanceState.STOPPED for i in self.instances),
            moves=len(self.moves),
            preemptions=self._preemptions,
        )
        self.series.add(sample)
        if self.now_s <= self.last_arrival_s:
            self.samples.append(sample)

    def check_integrity(self) -> None:
        """Asserts that every request finished once with its length, and that nothing is left
        anywhere."""
        for r in self.requests:
            assert r.place is Place.DONE, f"{r} has not finished"
            assert r.tokens == r.total_tokens, f"{r} has another length"
            assert not r.is_moving, f"{r} moves"
            assert r.preempted_s is None, f"{r} waits for its recomputation"
        assert self.finished_count == len(self.requests), "each finishes once"
        assert not len(self._gateway), "nobody waits at the gateway"
        assert not self._mover.active, "no request is in a move"
        assert all(m.is_over for m in self.moves), "every move has come to an end"
        for instance in self.instances:
            instance.engine.check_integrity()
            assert instance.engine.is_empty, f"{instance.engine.name} is not empty"
            assert instance.engine.standing.used_tokens == 0
            assert not instance.moves
            assert not instance.engine.is_copying


def _ignore(finished: int) -> None:
    """Nobody wants to know."""
