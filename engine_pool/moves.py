"""Moves as a web process or the pool asks for them: finds both sides, tells the source's engine.

The engines do the rest by themselves and report (view.py); whoever asked watches `LiveView.moves`.
"""

import time
import uuid
from dataclasses import asdict, dataclass
from typing import Final, Protocol

from engine_pool.errors import MoveRefused, RequestNotRunning
from engine_pool.live_view import LiveView
from engine_pool.policy.destinations import Destination, destinations
from engine_pool.policy.freeness import breakdown
from engine_pool.policy.settings import HeadroomRule
from engine_pool.types import (
    InstanceLoad,
    InstanceName,
    InstanceStatus,
    PoolView,
    RequestLoad,
)
from migration.report import MoveReport, MoveState
from migration.stages import Way
from migration.wish import MoveWish

MEASURE_BYTES: Final = 16 * 1024 * 1024
"""Of the bandwidth probe: long enough to reach a steady rate, 10-20 ms on one machine."""


class MoveGate(Protocol):
    """The way to engine actors, for moves. Every method raises InstanceLost when the actor does not
    answer in time."""

    async def migrate(self, actor: str, wish: dict[str, object]) -> tuple[str, str] | None:
        """Begins a move (fields of MoveWish). Returns (code, why) when the source refuses it."""

    async def cancel_move(self, actor: str, migration_id: str) -> bool:
        """Says whether the actor knew the move as one that goes on. It ends as soon as it can."""

    async def measure(
        self, actor: str, destination_actor: str, size_bytes: int
    ) -> dict[str, float]:
        """Returns bytes_per_s and round_trip_ms. Raises: MoveRefused when the two cannot."""


@dataclass(frozen=True, slots=True)
class MovePlan:
    """What a move of a request would be, as of the last reports."""

    request: RequestLoad
    source: InstanceStatus
    is_queued: bool
    destinations: tuple[Destination, ...]
    """All other instances, the best first; those that do not fit say why."""
    source_freeness_steps: float
    report_age_s: float

    @property
    def freest(self) -> Destination | None:
        """The best that fits."""
        return next((d for d in self.destinations if not d.why_not), None)


class Moves:
    """One a process that follows the pool."""

    def __init__(
        self, live: LiveView, gate: MoveGate, headroom: HeadroomRule | None = None
    ) -> None:
        """`headroom`: the pool's; the default one for None."""
        self._live = live
        self._gate = gate
        self._headroom = headroom or HeadroomRule()

    def use(self, headroom: HeadroomRule) -> None:
        """Judges instances with this headroom from now on."""
        self._headroom = headroom

    def plan(self, request_id: str, only: str | None = None) -> MovePlan:
        """Looks at all destinations, or at one of them (`only`).

        Raises: RequestNotRunning when no living instance reports the request.
        """
        source = self._live.holder(request_id)
        load = self._live.loads.get(source.instance) if source else None
        if source is None or load is None:
            raise RequestNotRunning(f"No instance runs or queues a request {request_id}.")
        found, is_queued = _find(load, request_id)
        now_unix_s = time.time()
        view = self._live.pool_view(now_unix_s)
        if only is not None:
            ends = (source.instance, only)
            view = PoolView(
                tuple(s for s in view.statuses if s.instance in ends),
                tuple(one for one in view.loads if one.instance in ends),
            )
        return MovePlan(
            request=found,
            source=source,
            is_queued=is_queued,
            destinations=destinations(view, found, source.instance, now_unix_s, self._headroom),
            source_freeness_steps=breakdown(load, source.state, self._headroom).freeness_steps,
            report_age_s=now_unix_s - load.at_unix_s,
        )

    async def migrate(
        self,
        request_id: str,
        *,
        destination: str | None,
        asked_by: str,
        reason: str,
        migration_id: str | None = None,
    ) -> MoveReport:
        """Begins a move to an instance, or to the freest one (None). Returns its first report.

        Raises: RequestNotRunning; MoveRefused with the reason, nothing has begun then;
        InstanceLost.
        """
        # Others than the wished one would be summed up for nothing: it matters in a large pool.
        plan = self.plan(request_id, destination)
        place = _chosen(plan, destination)
        target = self._live.statuses[place.instance]
        wish = MoveWish(
            migration_id=migration_id or uuid.uuid4().hex[:12],
            request_id=request_id,
            destination=target.instance,
            destination_incarnation=target.incarnation,
            destination_actor=target.actor,
            asked_by=asked_by,
            reason=reason,
            source_freeness=_finite(plan.source_freeness_steps),
            destination_freeness=_finite(place.freeness_now_steps),
        )
        refused = await self._gate.migrate(plan.source.actor, asdict(wish))
        if refused is not None:
            raise MoveRefused(refused[1], refused[0])
        return _first_report(plan, wish)

    async def cancel(self, migration_id: str) -> None:
        """Ends a move that goes on; the request stays where it is. Raises: MoveRefused when it has
        ended or cannot be found; InstanceLost."""
        move = self._live.moves.get(migration_id)
        source = self._live.statuses.get(InstanceName(move.source)) if move else None
        if move is None or source is None or move.state.is_end:
            raise MoveRefused(f"No move {migration_id} goes on.", "not_going_on")
        if not await self._gate.cancel_move(source.actor, migration_id):
            raise MoveRefused(f"The move {migration_id} has ended.", "not_going_on")

    async def measure(self, source: str, destination: str) -> Way:
        """Measures the way between two serving instances. Raises: MoveRefused, InstanceLost."""
        ends = [self._live.statuses.get(InstanceName(name)) for name in (source, destination)]
        first, second = ends
        if first is None or second is None or not (first.actor and second.actor):
            raise MoveRefused(f"{source} or {destination} does not serve.", "refused")
        return Way(**await self._gate.measure(first.actor, second.actor, MEASURE_BYTES))


def _find(load: InstanceLoad, request_id: str) -> tuple[RequestLoad, bool]:
    for r in load.running:
        if r.request_id == request_id:
            return r, False
    return next(r for r in load.waiting if r.request_id == request_id), True


def _chosen(plan: MovePlan, destination: str | None) -> Destination:
    if destination is None:
        if plan.freest is None:
            reasons = ", ".join(f"{d.instance}: {d.why_not}" for d in plan.destinations)
            raise MoveRefused(f"No other instance can take it ({reasons or 'there is none'}).")
        return plan.freest
    if destination == plan.source.instance:
        raise MoveRefused(f"The request is at {destination} already.")
    place = next((d for d in plan.destinations if d.instance == destination), None)
    if place is None:
        raise MoveRefused(f"There is no instance {destination}.", "no_such_instance")
    if place.why_not:
        raise MoveRefused(f"{destination} cannot take it: {place.why_not}.")
    return place


def _finite(steps: float | None) -> float | None:
    return None if steps is None or steps in (float("inf"), float("-inf")) else steps


def _first_report(plan: MovePlan, wish: MoveWish) -> MoveReport:
    now_unix_s = time.time()
    return MoveReport(
        migration_id=wish.migration_id,
        request_id=wish.request_id,
        seq=0,
        state=MoveState.ASKED,
        source=plan.source.instance,
        source_incarnation=plan.source.incarnation,
        destination=wish.destination,
        destination_incarnation=wish.destination_incarnation,
        started_unix_s=now_unix_s,
        at_unix_s=now_unix_s,
        asked_by=wish.asked_by,
        reason=wish.reason,
        priority_class=plan.request.priority_class.value,
        is_queued=plan.is_queued,
        prompt_tokens=plan.request.prompt_tokens,
        source_freeness=wish.source_freeness,
        destination_freeness=wish.destination_freeness,
    )
