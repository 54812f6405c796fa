"""Whether the rebalancer may move anything now: settings, the self-test's verdict, a pause."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import redis
import redis.asyncio

from engine_pool.config import PoolConfig
from engine_pool.live_view import LiveView
from engine_pool.move_facts import read_move_facts
from engine_pool.rebalancing_facts import RebalancerState, read_pause
from engine_pool.rebalancing_words import pause_in_words

log = logging.getLogger(__name__)

STORE_TIMEOUT_S: Final = 2.0
"""Of the two questions before a round."""


@dataclass(frozen=True, slots=True)
class Verdict:
    state: RebalancerState
    why: str = ""
    """Why it is not on."""


class Permit:
    """One a rebalancer."""

    def __init__(
        self,
        config: PoolConfig,
        live: LiveView,
        store: "redis.asyncio.Redis[bytes]",
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._live = live
        self._store = store
        self._wall_clock = wall_clock
        # At the start nothing is connected yet; that is not worth a word.
        self._was_away = True

    async def look(self) -> Verdict | None:
        """Says what is allowed now. None: the store is away, so nobody can know."""
        try:
            if not self._live.store_connected:
                raise redis.ConnectionError("the view is not connected")
            async with asyncio.timeout(STORE_TIMEOUT_S):
                found = self._by_settings() or await self._by_store()
        except (redis.RedisError, OSError, TimeoutError) as error:
            if not self._was_away:
                log.warning("no rebalancing while the store is away: %s", error)
            self._was_away = True
            return None
        except ValueError as error:
            why = f"what the store says cannot be read: {error}"
            return Verdict(RebalancerState.FORBIDDEN, why)
        self._was_away = False
        return found

    def _by_settings(self) -> Verdict | None:
        if not self._config.migration:
            return Verdict(RebalancerState.FORBIDDEN, "moves are switched off (FERRY_MIGRATION)")
        if not self._config.policy.rebalance.is_on:
            return Verdict(RebalancerState.OFF, "switched off (FERRY_REBALANCE)")
        return None

    async def _by_store(self) -> Verdict:
        facts = await read_move_facts(self._store, self._config.keys)
        if facts.allowed is False:
            return Verdict(RebalancerState.FORBIDDEN, facts.why)
        if facts.allowed is None and facts.self_test is None:
            return Verdict(RebalancerState.FORBIDDEN, "the self-test of moves has not run yet")
        pause = await read_pause(self._store, self._config.keys)
        if pause is not None and pause.holds(self._wall_clock()):
            return Verdict(RebalancerState.PAUSED, pause_in_words(pause))
        return Verdict(RebalancerState.ON)
