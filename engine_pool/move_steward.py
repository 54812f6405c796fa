"""Looks after the pool's moves: tests that they are right, and ends what nobody can end any more.

Once two instances serve, a self-test moves a request of the pool's own. If the answer differs,
moves are forbidden on every engine, loudly, until a later test passes. A move whose source died is
ended in the view: its destination may have died with it.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import redis
import redis.asyncio

from engine_pool import view
from engine_pool.board import Board
from engine_pool.config import PoolConfig
from engine_pool.errors import EngineFailed
from engine_pool.launcher import RayEngine
from engine_pool.move_facts import SelfTest, write_allowed, write_self_test
from engine_pool.self_test import run_self_test
from engine_pool.store import connect, connect_async
from engine_pool.token_log import LogTimes, TokenLogReader
from engine_pool.types import InstanceName, InstanceState, InstanceStatus
from migration.report import MoveEnd, MoveReport, MoveState

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 1.0
ORPHAN_AFTER_S: Final = 5.0
"""A move of a dead source is left to its destination for so long: it knows how it ended."""
SILENT_AFTER_S: Final = 180.0
"""Above all timeouts of a move together: nobody works on it any more."""
TEST_AGAIN_S: Final = 60.0
"""Before a failed self-test is repeated: what broke it may have passed."""
_DEAD: Final = (InstanceState.LOST, InstanceState.STOPPED)


@dataclass(frozen=True, slots=True)
class ServingEngine:
    """An instance that serves, and the way to its engine."""

    instance: InstanceName
    incarnation: str
    engine: RayEngine


class MoveSteward:
    """One a pool process; `run` is the owner's task."""

    def __init__(
        self,
        config: PoolConfig,
        board: Board,
        serving: Callable[[], Sequence[ServingEngine]],
    ) -> None:
        self._config = config
        self._board = board
        self._serving = serving
        self._blocking = connect(config.redis_url)
        self._store = connect_async(config.redis_url)
        times = LogTimes(config.log_live_s, config.log_ended_s)
        self._log = TokenLogReader(self._store, times)
        self._why_forbidden = ""
        self._told: set[str] = set()
        """Actors that were told that moves are forbidden."""
        self._has_passed = self._has_complained = False
        self._test_due_s = 0.0

    async def run(self) -> None:
        """Looks after moves until it is cancelled."""
        if not self._config.migration:
            await self._write_allowed("switched off (FERRY_MIGRATION)")
        while True:
            try:
                await self._end_orphans()
                await self._test_if_due()
                await self._tell_new_engines()
            except redis.RedisError:
                log.debug("the store is away; the board says so")
            await asyncio.sleep(LOOK_EVERY_S)

    async def _end_orphans(self) -> None:
        moves = await view.read_moves(self._store, self._config.keys)
        now_unix_s = time.time()
        bulletin = view.Bulletin(self._blocking, self._config.keys)
        for end in orphans(moves, self._board.statuses, now_unix_s):
            await asyncio.to_thread(bulletin.report_move_end, end)

    async def _test_if_due(self) -> None:
        if self._has_passed or not self._config.migration or time.monotonic() < self._test_due_s:
            return
        ends = self._serving()
        if len(ends) < 2:
            return
        test = await run_self_test(self._store, self._log, ends[0], ends[1], keys=self._config.keys)
        if {end.incarnation for end in ends[:2]} - {e.incarnation for e in self._serving()}:
            return  # one of the two died meanwhile: that says nothing about moves
        await asyncio.to_thread(write_self_test, self._blocking, test, self._config.keys)
        self._test_due_s = time.monotonic() + TEST_AGAIN_S
        if test.ok:
            await self._allow(test)
        elif test.is_conclusive:
            await self._forbid(test)
        elif not self._has_complained:
            # Under load it may take several tries; what was moved meanwhile was not wrong for it.
            self._has_complained = True
            self._board.put_event(
                "migration_untested",
                "The self-test of migration could not be carried out",
                f"{test.detail}; it is repeated each minute",
                "",
                "warn",
            )

    async def _allow(self, test: SelfTest) -> None:
        was_forbidden, self._why_forbidden = self._why_forbidden, ""
        self._has_passed = True
        await self._write_allowed("")
        headline = f"The self-test moved a request from {test.source} to {test.destination}"
        self._board.put_event("migration_tested", headline, test.detail)
        if was_forbidden:
            self._told.clear()
            for end in self._serving():
                await self._tell(end.engine)

    async def _forbid(self, test: SelfTest) -> None:
        self._why_forbidden = f"the self-test failed: {test.detail}"
        log.error("moves are forbidden: %s", self._why_forbidden)
        await self._write_allowed(self._why_forbidden)
        self._board.put_event(
            "migration_disabled", "Migration is disabled", self._why_forbidden, "", "bad"
        )

    async def _write_allowed(self, why_not: str) -> None:
        await asyncio.to_thread(
            write_allowed, self._blocking, not why_not, why_not, self._config.keys
        )

    async def _tell_new_engines(self) -> None:
        """Forbids moves on engines that do not know it yet, those that started later included."""
        if not self._why_forbidden:
            return
        for end in self._serving():
            if end.engine.actor not in self._told:
                await self._tell(end.engine)
                self._told.add(end.engine.actor)

    async def _tell(self, engine: RayEngine) -> None:
        try:
            await engine.forbid_moves(self._why_forbidden)
        except EngineFailed as error:
            log.warning("%s was not told whether it may move requests: %s", engine.actor, error)


def orphans(
    moves: Sequence[MoveReport], statuses: Sequence[InstanceStatus], now_unix_s: float
) -> list[MoveEnd]:
    """Returns how to end the moves that no engine reports on any more."""
    living = {s.incarnation for s in statuses if s.state not in _DEAD and s.incarnation}
    ends = []
    for move in moves:
        silent_s = now_unix_s - move.at_unix_s
        if move.source_incarnation not in living and silent_s >= ORPHAN_AFTER_S:
            why = f"{move.source} was lost while {move.state.value}"
            ends.append(MoveEnd(move.migration_id, MoveState.ABORTED, "peer_lost", why))
        elif silent_s >= SILENT_AFTER_S:
            why = f"no news from {move.source} for {silent_s:.0f} s"
            ends.append(MoveEnd(move.migration_id, MoveState.ABORTED, "timed_out", why))
    return ends
