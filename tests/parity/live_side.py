"""The live code that decides, in virtual time: a web process' dispatch and the pool process'
rebalancer, each on its own view of the pool, fed with reports by hand."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from itertools import count
from types import SimpleNamespace
from typing import Any, Final

import pytest

from engine_pool import gateway_queue
from engine_pool.config import PoolConfig
from engine_pool.gateway_queue import GatewayQueue
from engine_pool.live_view import LiveView
from engine_pool.move_facts import FACTS as MOVE_FACTS
from engine_pool.placement import Placement
from engine_pool.policy.dispatch import Choice, RequestDemand
from engine_pool.policy.settings import PolicySettings
from engine_pool.rebalancer import Rebalancer
from engine_pool.types import InFlight, InstanceLoad, InstanceStatus
from engine_pool.view import Change
from engine_pool.waiting_line import Wish
from migration.report import MoveReport, MoveState

HOUR_S: Final = 3600.0
"""Longer than anything is left alone for."""


def entry_of(demand: RequestDemand, choice: Choice, now_s: float) -> InFlight:
    """Makes the ledger's entry of a request that is sent now."""
    return InFlight(
        demand.request_id,
        choice.instance,
        demand.priority_class,
        demand.demand_tokens,
        now_s,
    )


@dataclass(frozen=True, slots=True)
class Asked:
    """A move that the live rebalancer has asked for."""

    request_id: str
    destination: str
    reason: str
    migration_id: str


class OpenStore:
    """Says that moves are allowed and nothing is paused; keeps what it is told."""

    def __init__(self) -> None:
        self.hashes: dict[str, dict[str, bytes]] = {MOVE_FACTS: {"allowed": b"1"}}

    async def hgetall(self, key: str) -> dict[bytes, bytes]:
        return {name.encode(): value for name, value in self.hashes.get(key, {}).items()}

    async def hget(self, key: str, name: str) -> bytes | None:
        return self.hashes.get(key, {}).get(name)

    async def hset(self, key: str, name: str, value: bytes) -> None:
        self.hashes.setdefault(key, {})[name] = value


@dataclass
class RecordingMover:
    """Begins every move at once."""

    asked: list[Asked] = field(default_factory=list)

    async def migrate(
        self,
        request_id: str,
        *,
        destination: str | None,
        asked_by: str,
        reason: str,
        migration_id: str | None = None,
    ) -> MoveReport:
        assert destination is not None
        assert migration_id is not None
        self.asked.append(Asked(request_id, destination, reason, migration_id))
        return MoveReport(
            migration_id=migration_id,
            request_id=request_id,
            seq=0,
            state=MoveState.RESERVING,
            source="",
            source_incarnation="",
            destination=destination,
            destination_incarnation="",
            started_unix_s=0.0,
            at_unix_s=0.0,
            asked_by=asked_by,
            reason=reason,
        )


class HandDrivenQueue(GatewayQueue):
    """Looks when the simulator does: live it looks at once when there may be room, the simulator
    at arrivals and ten times a second."""

    def _wake(self, after_s: float) -> None:
        pass

    def look(self) -> None:
        self._look()


class LiveSide:
    """One web process and one pool process. `clock`: virtual seconds, for the epoch's, too."""

    def __init__(
        self, policy: PolicySettings, clock: Callable[[], float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(gateway_queue, "time", SimpleNamespace(time=clock, monotonic=clock))
        self._clock = clock
        store: Any = OpenStore()
        self._seq = count(1)
        self._rounds = 0
        self._mover = RecordingMover()
        self.web, self.pool = LiveView(store), LiveView(store)
        self.pool.store_connected = True
        self.placement = Placement(self.web, policy.dispatch)
        # The simulator's queue knows neither ageing nor tenants.
        self._queue = HandDrivenQueue(self.placement, policy.dispatch, ageing_s=0.0)
        self._released: list[tuple[str, Choice]] = []
        self._rebalancer = Rebalancer(
            PoolConfig(policy=policy),
            self.pool,
            self._mover,
            store,
            lambda kind, headline, detail: None,
            # What did not work is left alone for a minute at most, which the simulator does not
            # know: between two rounds more time than that goes by on the clock of back-offs.
            clock=lambda: self._rounds * HOUR_S,
            wall_clock=clock,
        )
        self._runner = asyncio.Runner()
        self._placings: list[asyncio.Task[Choice]] = []

    def close(self) -> None:
        self._runner.close()

    def hear(self, change: InstanceLoad | InstanceStatus | MoveReport) -> None:
        """Brings something to both processes."""
        for view in (self.web, self.pool):
            self._apply(view, change)

    def hear_in_pool(self, load: InstanceLoad) -> None:
        """Brings a report to the pool process alone."""
        self._apply(self.pool, load)

    def sent(self, entry: InFlight) -> None:
        """Enters a request into the ledger, and tells the pool process."""
        self.web.note_sent((entry,))
        self.pool.apply((entry,))

    def wait(self, demand: RequestDemand) -> None:
        """Puts a request in the gateway's queue."""

        def take(choice: Choice) -> None:
            self._released.append((demand.request_id, choice))
            self.web.note_sent((entry_of(demand, choice, self._clock()),))

        wish = Wish(
            demand=demand,
            tenant="t",
            weight=1.0,
            cost_tokens=float(demand.demand_tokens),
            refresh=lambda known: known,
            take=take,
            give_back=lambda: None,
        )
        placing = self._queue.place(wish)
        self._runner.run(self._begin(placing))

    def look(self) -> list[tuple[str, Choice]]:
        """Lets the gateway's queue look at the pool; returns who may go where to, in order."""
        before = len(self._released)
        self._queue.look()
        return self._released[before:]

    def round(self) -> list[Asked]:
        """Lets the rebalancer take one turn; returns the moves that it asked for, in order."""
        self._rounds += 1
        before = len(self._mover.asked)
        self._runner.run(self._turn())
        return self._mover.asked[before:]

    async def _begin(self, placing: Coroutine[None, None, Choice]) -> None:
        self._placings.append(asyncio.create_task(placing))
        await asyncio.sleep(0)

    async def _turn(self) -> None:
        async with asyncio.timeout(60), asyncio.TaskGroup() as starts:
            await self._rebalancer.turn(starts)

    def _apply(self, view: LiveView, change: Change) -> None:
        if isinstance(change, InstanceLoad | MoveReport):
            change = replace(change, seq=next(self._seq))
        view.apply(change)
