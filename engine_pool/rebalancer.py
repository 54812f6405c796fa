"""Moves running requests between instances by itself: a loop around policy/rebalancing.py.

Reads the live view, plans a round, starts its moves; the engines carry them out. Holds no state
that matters: what goes on stands in the view, and pairs and back-offs that a restart loses are
found again. Nothing that fails here ends the pool process: a store that is away, an engine that
died or does not answer, moves that are forbidden only mean that nothing is moved now.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Collection, MutableMapping
from typing import Final, Protocol

import redis
import redis.asyncio

from engine_pool.config import PoolConfig
from engine_pool.errors import InstanceLost, MoveRefused, RequestNotRunning
from engine_pool.live_view import LiveView
from engine_pool.policy.rebalancing import PlannedMove, Restraints, plan_round
from engine_pool.policy.reports import pool_standings
from engine_pool.policy.standing import Standing
from engine_pool.rebalancing_account import Account
from engine_pool.rebalancing_facts import RebalancerState, write_report
from engine_pool.rebalancing_memory import BUSY, OVER, Memory
from engine_pool.rebalancing_obstacles import Obstacles
from engine_pool.rebalancing_permit import STORE_TIMEOUT_S, Permit
from engine_pool.rebalancing_requests import MovableRequest, movable_requests
from engine_pool.rebalancing_transit import Transit, with_moves
from engine_pool.rebalancing_words import why_nothing
from engine_pool.types import InstanceName, InstanceState
from engine_pool.view import Change
from migration.report import MoveReport, MoveState

log = logging.getLogger(__name__)

ASKED_BY: Final = "rebalancer"
TELL_EVERY_S: Final = 1.0
"""Pages show what was done last with this delay at most; a change of state is told at once."""
WORKING: Final = (InstanceState.SERVING, InstanceState.CORDONED, InstanceState.DRAINING)
"""States in which an instance has requests and answers."""
DRAINS: Final = (InstanceState.DRAINING, InstanceState.DRAINED)

Say = Callable[[str, str, str], None]
"""Tells an event: kind, headline, detail."""


class Mover(Protocol):
    """What starts a move (moves.Moves)."""

    async def migrate(
        self,
        request_id: str,
        *,
        destination: str | None,
        asked_by: str,
        reason: str,
        migration_id: str | None = None,
    ) -> MoveReport: ...


class Rebalancer:
    """One a pool process; `run` is the owner's task."""

    def __init__(
        self,
        config: PoolConfig,
        live: LiveView,
        mover: Mover,
        store: "redis.asyncio.Redis[bytes]",
        say: Say,
        told_obstacles: MutableMapping[InstanceName, str] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._rule = config.policy.rebalance
        self._headroom = config.headroom
        self._live = live
        self._mover = mover
        self._store = store
        self._say = say
        self._clock = clock
        self._wall_clock = wall_clock
        self._obstacles = Obstacles({} if told_obstacles is None else told_obstacles)
        self._permit = Permit(config, live, store, wall_clock)
        self._memory = Memory(clock)
        self._account = Account(self._rule, clock)
        self._before: dict[InstanceName, InstanceName] = {}
        self._state: RebalancerState | None = None
        self._told_s = -TELL_EVERY_S
        self._told_as: RebalancerState | None = None
        live.add_listener(self._hear)

    async def run(self) -> None:
        """Rebalances until it is cancelled."""
        async with asyncio.TaskGroup() as starts:
            while True:
                began_s = self._clock()
                try:
                    await self.turn(starts)
                except Exception:
                    log.exception("a round of rebalancing failed; the next one is tried")
                took_s = self._clock() - began_s
                await asyncio.sleep(max(0.0, self._rule.interval_ms / 1000 - took_s))

    async def turn(self, starts: asyncio.TaskGroup) -> None:
        """Takes one look: plans a round and starts its moves, if it may."""
        verdict = await self._permit.look()
        if verdict is None:
            return
        state, why = verdict.state, verdict.why
        draining = self._draining()
        if state is RebalancerState.ON:
            why = self._round(starts, draining)
        elif state is RebalancerState.FORBIDDEN:
            self._obstacles.all_stay(draining, why)
        elif draining:
            # Somebody waits for the drain, whoever paused what moves by itself.
            self._round(starts, draining, only_drains=True)
        self._note_state(state, why)
        await self._tell(state, why)

    def _draining(self) -> list[InstanceName]:
        return [s.instance for s in self._live.statuses.values() if s.state in DRAINS]

    def _round(
        self,
        starts: asyncio.TaskGroup,
        draining: Collection[InstanceName],
        *,
        only_drains: bool = False,
    ) -> str:
        """Plans a round and starts its moves. Returns why there is none."""
        now_unix_s, began_s = self._wall_clock(), self._clock()
        asked = self._memory.asked(self._live.moves)
        transit = with_moves(self._live.pool_view(now_unix_s), (*self._live.moves.values(), *asked))
        standings = self._standings(transit, now_unix_s)
        loads = {load.instance: load for load in transit.view.loads}
        plan = plan_round(
            standings,
            lambda instance: movable_requests(
                loads[instance], lambda request: self._is_held(request, transit.leaving)
            ),
            self._rule,
            self._headroom,
            self._before,
            Restraints(
                transit.going_on,
                self._memory.pairs.held(began_s),
                self._config.policy.dispatch.watermark,
                only_drains=only_drains,
                drain_moves=self._config.migrations_at_once,
            ),
        )
        self._before = plan.paired
        self._obstacles.note_round(draining, transit, plan)
        for move in plan.moves:
            report = self._as_asked(move, now_unix_s)
            self._memory.note_asked(report)
            starts.create_task(self._start(report), name=f"move {report.migration_id}")
        self._account.note_round(plan, now_unix_s, self._clock() - began_s)
        return "" if plan.pairs or plan.moves else self._why_nothing(standings)

    def _why_nothing(self, standings: list[Standing]) -> str:
        return why_nothing(standings, self._rule, self._headroom)

    def _standings(self, transit: Transit, now_unix_s: float) -> list[Standing]:
        resting = self._memory.sources.held(self._clock())
        works = {s.instance for s in self._live.statuses.values() if s.state in WORKING}
        found = pool_standings(transit.view, now_unix_s, self._rule.report_max_age_s)
        return [s for s in found if s.instance in works and s.instance not in resting]

    def _is_held(self, request_id: str, leaving: Collection[str]) -> bool:
        return request_id in leaving or self._memory.requests.is_held(request_id, self._clock())

    def _as_asked(self, move: PlannedMove[MovableRequest], now_unix_s: float) -> MoveReport:
        """Returns the report of a move that nobody has heard of yet."""
        source, destination = (self._live.statuses[end] for end in (move.source, move.destination))
        return MoveReport(
            migration_id=uuid.uuid4().hex[:12],
            request_id=move.request.name,
            seq=0,
            state=MoveState.ASKED,
            source=move.source,
            source_incarnation=source.incarnation,
            destination=move.destination,
            destination_incarnation=destination.incarnation,
            started_unix_s=now_unix_s,
            at_unix_s=now_unix_s,
            asked_by=ASKED_BY,
            reason=move.reason,
            priority_class=move.request.load.priority_class.value,
            is_queued=move.request.kv_tokens == 0,
            prompt_tokens=move.request.load.prompt_tokens,
        )

    async def _start(self, report: MoveReport) -> None:
        """Asks the source for a move. What does not work is noted and left alone for a while."""
        code, why = "", ""
        try:
            async with asyncio.timeout(self._config.submit_timeout_s):
                await self._mover.migrate(
                    report.request_id,
                    destination=report.destination,
                    asked_by=ASKED_BY,
                    reason=report.reason,
                    migration_id=report.migration_id,
                )
        except MoveRefused as error:
            code, why = error.reason, str(error)
        except RequestNotRunning as error:
            code, why = "request_finished", str(error)
        except (InstanceLost, TimeoutError) as error:
            code, why = "peer_lost", str(error) or f"{report.source} did not answer"
            self._memory.note_no_answer(report)
        except Exception as error:
            log.exception("the move %s was not started", report.migration_id)
            code, why = "failed", type(error).__name__
        if code:
            log.info("%s stays at %s: %s", report.request_id, report.source, why)
            self._memory.note_refused(report, code)
            if code not in OVER and code not in BUSY:
                self._obstacles.note_refused(report.request_id, why)
            self._account.note_refused(code)
        else:
            self._memory.note_begun(report)
            self._account.note_started()

    def _hear(self, change: Change) -> None:
        """Learns how moves end, those of others included. A listener of the live view."""
        if not isinstance(change, MoveReport) or not self._memory.note_end(change):
            return
        if change.state is MoveState.ABORTED and change.abort_code not in OVER:
            self._obstacles.note_refused(change.request_id, change.abort_reason)
        if change.asked_by == ASKED_BY and change.state is MoveState.ABORTED:
            self._account.note_refused(change.abort_code)

    def _note_state(self, state: RebalancerState, why: str) -> None:
        before, self._state = self._state, state
        if before is not None and before is not state:
            if state is RebalancerState.PAUSED:
                self._say("rebalancing_paused", "Rebalancing is paused", _as_sentence(why))
            elif before is RebalancerState.PAUSED:
                detail = why if state is not RebalancerState.ON else "automatic moves go on"
                self._say("rebalancing_resumed", "Rebalancing goes on", _as_sentence(detail))

    async def _tell(self, state: RebalancerState, why: str) -> None:
        """Writes for the pages what was done last."""
        now_s = self._clock()
        if state is self._told_as and now_s - self._told_s < TELL_EVERY_S:
            return
        report = self._account.report(self._wall_clock(), state, why)
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                await write_report(self._store, report, self._config.keys)
        except (redis.RedisError, OSError, TimeoutError):
            return  # the next turn finds out that the store is away
        self._told_s, self._told_as = now_s, state


def _as_sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:].rstrip('.')}."
