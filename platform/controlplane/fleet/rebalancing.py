"""Pausing the rebalancer, and what it does: for pages and API.

Permission is the door's. The pause stands in the store, where the pool process finds it before its
next round; every press leaves an audit row, also a refused one.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable
from dataclasses import asdict, replace
from typing import Final, TypeVar

import redis
from asgiref.sync import async_to_sync
from django.contrib.auth.models import AbstractBaseUser, AnonymousUser
from django.db import DatabaseError

from controlplane.audit.models import AuditEntry, AuditResult
from controlplane.fleet.choice import served_pool
from controlplane.fleet.watch import fleet_watch
from engine_pool.client import pool_client
from engine_pool.errors import MoveRefused, PoolError, StoreUnavailable
from engine_pool.rebalancing_facts import Pause, RebalancingFacts, read_facts, write_pause

logger = logging.getLogger(__name__)

PAUSE: Final = "pause_rebalancing"
RESUME: Final = "resume_rebalancing"
MINUTES_MAX: Final = 7 * 24 * 60
"""A longer pause is one until somebody resumes it."""
STORE_TIMEOUT_S: Final = 5.0

T = TypeVar("T")


def rebalancing_pause(
    *, user: AbstractBaseUser | AnonymousUser, minutes: int | None, reason: str
) -> Pause:
    """Lets no automatic move begin for some minutes, or until it is resumed (None).

    A pause that holds already is replaced. Raises: StoreUnavailable.
    """
    assert minutes is None or 1 <= minutes <= MINUTES_MAX, "the door has checked it"
    now_unix_s = time.time()
    until_unix_s = None if minutes is None else now_unix_s + 60 * minutes
    pause = Pause(user.get_username(), now_unix_s, until_unix_s, reason.strip())
    _change(user.get_username(), PAUSE, pause, reason)
    return pause


def rebalancing_resume(*, user: AbstractBaseUser | AnonymousUser, reason: str = "") -> None:
    """Lets automatic moves begin again. Raises: MoveRefused when it is not paused;
    StoreUnavailable."""
    _change(user.get_username(), RESUME, None, reason)


def rebalancing_get() -> RebalancingFacts:
    """Reads what the store says now. Raises: StoreUnavailable."""
    client = served_pool() or pool_client()
    found = async_to_sync(_asked)(read_facts(client.store, client.config.keys))
    fleet_watch().observer.rebalancing = found
    return found


def _change(who: str, action: str, pause: Pause | None, reason: str) -> None:
    audit = AuditEntry(
        who=who,
        action=action,
        object=fleet_watch().pool,
        reason=reason.strip(),
        result=AuditResult.DONE,
        after=None if pause is None else {"pause": asdict(pause)},
    )
    try:
        before = rebalancing_get()
        is_paused = before.pause is not None and before.pause.holds(time.time())
        audit.before = {"pause": asdict(before.pause)} if before.pause and is_paused else None
        if pause is None and not is_paused:
            raise MoveRefused("Rebalancing is not paused.", "not_paused")
        client = served_pool() or pool_client()
        async_to_sync(_asked)(write_pause(client.store, pause, client.config.keys))
    except PoolError as error:
        is_refused = isinstance(error, MoveRefused)
        audit.result = AuditResult.REFUSED if is_refused else AuditResult.FAILED
        audit.detail = str(error)
        _write(audit)
        raise
    # Without waiting for the next look at the store: whoever pressed sees it on the next page.
    fleet_watch().observer.rebalancing = replace(before, pause=pause)
    _write(audit)


async def _asked(answer: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(STORE_TIMEOUT_S):
            return await answer
    except (redis.RedisError, OSError, TimeoutError) as error:
        raise StoreUnavailable("The store does not answer.") from error


def _write(audit: AuditEntry) -> None:
    try:
        audit.save()
    except DatabaseError:
        # What it tells of has happened already; the log is the place that is left.
        logger.exception("this audit row could not be written: %s, %s", audit, audit.detail)
