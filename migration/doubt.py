"""How a source finds out whether its commit arrived: asks the destination, then the token log."""

from collections.abc import Callable
from functools import partial
from typing import Final

import redis

from migration.links import Invitation
from migration.office import Office, PeerLink
from migration.protocol import SourceEvent

RECLAIM_AGAIN_S: Final = 0.5
"""Between two questions to a store that does not answer."""


class Doubt:
    """One move's. What waits runs apart; the answers come in the agent's thread."""

    def __init__(self, office: Office, invitation: Invitation, request_id: str, epoch: int) -> None:
        """`epoch`: in which the source has produced."""
        self._office = office
        self._invitation = invitation
        self._request_id = request_id
        self._epoch = epoch

    def ask(self, connected: Callable[[PeerLink], None], failed: Callable[[], None]) -> None:
        """Connects anew, as the old connection may be what does not work."""

        def reconnect() -> None:
            try:
                link = self._office.connect(self._invitation)
            except OSError:
                self._office.post(failed)
                return
            self._office.post(partial(connected, link))

        self._office.apart(reconnect)

    def reclaim(self, answered: Callable[[SourceEvent, int | None], None]) -> None:
        """Asks the log whose the request is: MINE with the epoch to go on in, THEIRS or UNKNOWN."""

        def ask_log() -> None:
            try:
                epoch = self._office.log.reclaim(self._request_id, self._epoch)
            except (redis.RedisError, OSError):
                self._office.pause(RECLAIM_AGAIN_S)
                self._office.post(partial(answered, SourceEvent.UNKNOWN, None))
                return
            event = SourceEvent.THEIRS if epoch is None else SourceEvent.MINE
            self._office.post(partial(answered, event, epoch))

        self._office.apart(ask_log)
