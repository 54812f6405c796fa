"""What is said of one instance: its status on the board, its events. Decides nothing."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from engine_pool.policy import lifecycle
from engine_pool.policy.lifecycle import Trigger
from engine_pool.types import InstanceStatus

log = logging.getLogger(__name__)


class Notices(Protocol):
    """Where it is said (board.Board)."""

    def put_status(self, status: InstanceStatus) -> None: ...

    def put_event(
        self, kind: str, headline: str, detail: str, instance: str = "", severity: str = "info"
    ) -> None: ...


class InstanceRecord:
    """One an instance."""

    def __init__(
        self,
        status: InstanceStatus,
        notices: Notices,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.status = status
        self._notices = notices
        self._wall_clock = wall_clock

    def move(self, trigger: Trigger, cause: str, **changes: Any) -> None:
        """Changes the state. Raises: IllegalTransition."""
        state = lifecycle.next_state(self.status.state, trigger)
        log.info("%s is %s: %s", self.status.instance, state.value, cause)
        self.put(state=state, cause=cause, since_unix_s=self._wall_clock(), **changes)

    def put(self, **changes: Any) -> None:
        """Changes fields; nothing is said where they are so already."""
        status = replace(self.status, **changes)
        if status != self.status:
            self.status = status
            self._notices.put_status(status)

    def event(self, kind: str, verb: str, detail: str, severity: str = "info") -> None:
        instance = self.status.instance
        self._notices.put_event(kind, f"{instance} {verb}", detail, instance, severity)
