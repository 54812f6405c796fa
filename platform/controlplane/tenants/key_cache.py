"""Keys in memory: no query a request, and a dead database does not stop the keys in use.

A policy is used for FRESH_S, so a revoked key stops within that time. When the database does not
answer, a known policy is used for at most STALE_MAX_S; an unknown key is then a 503, not a 401.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from django.db import DatabaseError, close_old_connections

from controlplane.tenants.keys import PresentedKey, parse_key
from controlplane.tenants.selectors import KeyPolicy, key_policy
from controlplane.tenants.services import keys_note_used

logger = logging.getLogger(__name__)

FRESH_S: Final = 0.5
"""With the query's own time still below the second after which a change must hold everywhere."""
STALE_MAX_S: Final = 900.0
"""15 min: long enough to repair a database, short enough that a revoked key does not live on."""
QUERY_TIMEOUT_S: Final = 2.0
ENTRIES_MAX: Final = 10_000
"""Keys in memory, about 5 MB; also bounds what guessed public ids can fill."""
USED_EVERY_S: Final = 60.0
"""How exact `last_used_at` is."""


class DatabaseAway(Exception):
    """The database does not answer, and this key is not known here."""


@dataclass(slots=True)
class _Entry:
    policy: KeyPolicy | None
    read_s: float
    used_written_s: float = float("-inf")
    is_stale: bool = False
    """The last query for it failed."""


class KeyCache:
    """One a web process. Its queries have a thread of their own: a slow one holds up no page."""

    def __init__(
        self,
        query: Callable[..., KeyPolicy | None] = key_policy,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._query = query
        self._clock = clock
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._pending: dict[str, asyncio.Future[_Entry]] = {}
        self._used: dict[int, datetime] = {}
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="keys")
        self._notes = ThreadPoolExecutor(max_workers=1, thread_name_prefix="use of keys")
        self._noting: asyncio.Future[None] | None = None

    async def find(self, text: str) -> KeyPolicy | None:
        """Returns what a key allows, None when it is wrong, expired or revoked.

        Raises: DatabaseAway.
        """
        presented = parse_key(text)
        if presented is None:
            return None
        entry = await self._entry(presented.public_id)
        policy = entry.policy
        now = datetime.now(UTC)
        if policy is None or not _matches(presented, policy, now):
            return None
        if not policy.is_active or (policy.expires_at is not None and policy.expires_at <= now):
            return None
        if self._clock() - entry.used_written_s > USED_EVERY_S:
            entry.used_written_s = self._clock()
            self._used[policy.key_id] = now
        return policy

    async def policy_of(self, public_id: str) -> KeyPolicy | None:
        """Returns what a key allows now, without its secret. Raises: DatabaseAway."""
        return (await self._entry(public_id)).policy

    async def _entry(self, public_id: str) -> _Entry:
        entry = self._entries.get(public_id)
        now_s = self._clock()
        if entry is not None and now_s - entry.read_s < FRESH_S:
            return entry
        pending = self._pending.get(public_id) or self._read(public_id, entry)
        if entry is not None and entry.is_stale and now_s - entry.read_s <= STALE_MAX_S:
            # The last query failed: nobody waits for the next one.
            return entry
        try:
            async with asyncio.timeout(QUERY_TIMEOUT_S):
                return await asyncio.shield(pending)
        except (DatabaseError, TimeoutError) as error:
            if entry is None or now_s - entry.read_s > STALE_MAX_S:
                raise DatabaseAway from error
            if not entry.is_stale:
                logger.warning("the database does not answer; keys in use go on for a while")
            entry.is_stale = True
            return entry

    def _read(self, public_id: str, known: _Entry | None) -> "asyncio.Future[_Entry]":
        """Begins one query, for all requests that wait for the same key."""
        loop = asyncio.get_running_loop()
        self._note_used(loop)
        pending = loop.run_in_executor(self._thread, self._query_now, public_id, known)
        self._pending[public_id] = pending
        pending.add_done_callback(lambda done: self._note_read(public_id, done))
        return pending

    def _note_read(self, public_id: str, done: "asyncio.Future[_Entry]") -> None:
        del self._pending[public_id]
        if done.cancelled() or done.exception() is not None:
            return
        self._entries[public_id] = done.result()
        self._entries.move_to_end(public_id)
        while len(self._entries) > ENTRIES_MAX:
            self._entries.popitem(last=False)

    def _note_used(self, loop: asyncio.AbstractEventLoop) -> None:
        """Writes when keys were used, apart from reading them: a database that takes no rows, or
        is slow to, must not keep keys from being found."""
        if self._used and (self._noting is None or self._noting.done()):
            used, self._used = self._used, {}
            self._noting = loop.run_in_executor(self._notes, _write_used, used)

    def _query_now(self, public_id: str, known: _Entry | None) -> _Entry:
        close_old_connections()
        policy = self._query(public_id=public_id)
        entry = _Entry(policy, self._clock())
        if known is not None:
            entry.used_written_s = known.used_written_s
        return entry


def _write_used(used: dict[int, datetime]) -> None:
    close_old_connections()
    try:
        keys_note_used(used=used)
    except DatabaseError as error:
        # It is told again with the key's next use.
        logger.info("the use of %d keys was not noted: %s", len(used), type(error).__name__)


def _matches(presented: PresentedKey, policy: KeyPolicy, now: datetime) -> bool:
    if presented.matches(policy.secret_digest):
        return True
    is_rotating = policy.old_until is not None and now < policy.old_until
    return is_rotating and presented.matches(policy.old_secret_digest)
