"""A pool's rolling update: policy/rollout.py's decision as wishes, and what is told of it."""

import time
from collections.abc import Callable, Iterable
from typing import Protocol

from engine_pool.config import PoolConfig
from engine_pool.instance_record import Notices
from engine_pool.policy.rollout import Member, Rollout, next_rollout
from engine_pool.policy.wishes import NOTHING, InstanceWish, WantedState
from engine_pool.types import InstanceName, InstanceStatus

BY = "rolling update"


class Kept(Protocol):
    """An instance (instance_keeper.InstanceKeeper)."""

    @property
    def status(self) -> InstanceStatus: ...


class Rollouts:
    """One a pool. Holds who is being replaced; a pool process that starts anew chooses anew."""

    def __init__(
        self, notices: Notices, pool: str, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._notices = notices
        self._pool = pool
        self._wall_clock = wall_clock
        self._replacing: tuple[InstanceName, InstanceWish] | None = None
        self._is_going_on = self._is_paused = False

    def wish(self, instance: InstanceName) -> InstanceWish:
        """Returns what the update wants of an instance."""
        if self._replacing is not None and self._replacing[0] == instance:
            return self._replacing[1]
        return NOTHING

    def look(self, config: PoolConfig, kept: Iterable[Kept]) -> Rollout:
        """Takes the next step where its time has come. Call it a few times a second."""
        statuses = [k.status for k in kept]
        found = Rollout()
        if config.is_rolling:
            found = next_rollout([self._member(s, config) for s in statuses])
        if found.replace is None:
            self._replacing = None
        elif self._replacing is None or self._replacing[0] != found.replace:
            now_unix_s = self._wall_clock()
            wish = InstanceWish(
                WantedState.SERVING,
                by=BY,
                reason="its engine settings have changed",
                since_unix_s=now_unix_s,
                renew_before_unix_s=now_unix_s,
            )
            self._replacing = (found.replace, wish)
        outdated = sum(s.is_outdated for s in statuses)
        self._tell(found, outdated)
        return found

    def _member(self, status: InstanceStatus, config: PoolConfig) -> Member:
        number = int(status.instance.rpartition("-")[2])
        return Member(
            instance=status.instance,
            state=status.state,
            is_outdated=status.is_outdated,
            is_free=status.wanted == WantedState.SERVING,
            is_extra=number > config.instances,
            is_being_replaced=self.wish(status.instance) != NOTHING,
            failures=status.failures,
        )

    def _tell(self, found: Rollout, outdated: int) -> None:
        is_going_on = found.replace is not None or bool(found.why)
        pool = self._pool
        if is_going_on and not self._is_going_on:
            extra = "; an extra instance comes first, since there is only one"
            detail = f"{outdated} instances are replaced one by one"
            detail += extra if found.needs_extra else ""
            self._put("rollout_started", f"Pool {pool} gets new engine settings", detail)
        if found.is_paused and not self._is_paused:
            self._put("rollout_paused", f"The update of pool {pool} stands still", found.why, "bad")
        if self._is_going_on and not is_going_on and not outdated:
            self._put("rollout_done", f"Pool {pool} has its new engine settings", "all instances")
        self._is_going_on, self._is_paused = is_going_on, found.is_paused

    def _put(self, kind: str, headline: str, detail: str, severity: str = "info") -> None:
        self._notices.put_event(kind, headline, detail, "", severity)
