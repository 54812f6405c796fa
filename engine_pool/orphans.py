"""Finds engines that belong to nobody, and ends them: of pools that are gone, or one too many.

Several installations may share a Ray cluster, so an engine is only ended where it says that it is
this one's, or where it is silent and has the name of a pool that runs here.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from engine_pool.errors import EngineFailed
from engine_pool.ports import Pong

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 10.0
"""Between two looks. An engine without an owner in two of them has none: a start is quicker."""
PING_TIMEOUT_S: Final = 10.0
STOP_TIMEOUT_S: Final = 1.5
"""For its streams to end with an error."""


class AnyEngine(Protocol):
    """An engine actor (launcher.RayEngine)."""

    async def ping(self, timeout_s: float) -> Pong: ...

    async def stop(self, timeout_s: float) -> None: ...


class Orphans:
    """One a pool process."""

    def __init__(
        self,
        installation: str,
        find: Callable[[], Mapping[str, AnyEngine]],
        owned: Callable[[], Collection[str]],
        running_pools: Callable[[], Collection[str]],
        resting_pools: Callable[[], Collection[str]],
        tell: Callable[[str, str], None],
    ) -> None:
        """`find`: all engines that there are, by name, waits; `owned`: names of those that somebody
        keeps; `resting_pools`: wanted, but they do not run now: theirs are left alone; `tell`:
        (actor, why) of one that was ended."""
        self._installation = installation
        self._find = find
        self._owned = owned
        self._running_pools = running_pools
        self._resting_pools = resting_pools
        self._tell = tell
        self._seen: set[str] = set()

    async def run(self) -> None:
        """Looks until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                await self.look()
            except Exception:
                # Ray may be away; the next look tries again.
                log.exception("orphans were not looked for")

    async def look(self) -> None:
        """Ends the engines that had no owner in the look before and have none now."""
        found = await asyncio.to_thread(self._find)
        lost = {name for name in found if name not in self._owned()}
        again, self._seen = lost & self._seen, lost
        for actor in sorted(again):
            why = await self._why_orphan(actor, found[actor])
            if why and actor not in self._owned():
                log.warning("%s is ended: %s", actor, why)
                await found[actor].stop(STOP_TIMEOUT_S)
                self._tell(actor, why)

    async def _why_orphan(self, actor: str, engine: AnyEngine) -> str:
        """Returns "" for one that is none, or may be somebody else's."""
        pool = actor.split(":")[1]
        if pool in self._resting_pools():
            return ""
        is_running = pool in self._running_pools()
        try:
            pong = await engine.ping(PING_TIMEOUT_S)
        except EngineFailed:
            return "it does not answer and nobody keeps it" if is_running else ""
        if pong.installation != self._installation:
            return ""
        return "nobody keeps it" if is_running else f"there is no pool {pool}"
