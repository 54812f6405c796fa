"""Instances as the store or a web process would tell of them, for tests of drains."""

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from controlplane.fleet.fleet_now import FleetNow
from engine_pool.types import (
    DrainProgress,
    InstanceLoad,
    InstanceName,
    InstanceState,
    InstanceStatus,
)
from migration.report import MoveReport
from tests.web import fake_pool

SERVING = InstanceState.SERVING


def status(number: int = 1, **changes: Any) -> InstanceStatus:
    """Returns an instance of the first pool; it serves, unless `changes` say otherwise."""
    name = InstanceName(f"i-{number:02d}")
    plain = fake_pool.status_of(number - 1, name, 2, time.time())
    return replace(plain, node="gpu-a" if number < 3 else "gpu-b", **changes)


def load(
    number: int = 1, *, running: int = 2, waiting: int = 1, age_s: float = 0.1
) -> InstanceLoad:
    """Returns its report, with so many requests."""
    name = InstanceName(f"i-{number:02d}")
    # The second of each ten is crowded, and has a queue.
    made = fake_pool.load_of(1, name, 1, time.time() - age_s)
    return replace(
        made, running=made.running[:running], waiting=made.waiting[:waiting],
        used_tokens=0 if not running else made.used_tokens,
    )  # fmt: skip


def progress(left: int = 0, **changes: Any) -> DrainProgress:
    """Returns how far a drain is that began ten seconds ago."""
    plain = DrainProgress(
        begun_unix_s=time.time() - 10, requests_at_start=9, left=left, moving=0, moved=5, ended=1
    )
    return replace(plain, **changes)


def drained(number: int = 1, **changes: Any) -> InstanceStatus:
    """Returns an instance that is proven empty."""
    known = {"state": InstanceState.DRAINED, "wanted": "drained", "wanted_by": "olga"}
    verified = progress(0, verified_unix_s=time.time())
    return status(number, **{**known, "drain": verified, **changes})


def fleet(
    statuses: Iterable[InstanceStatus] = (),
    loads: Iterable[InstanceLoad] = (),
    moves: Iterable[MoveReport] = (),
    *,
    is_known: bool = True,
    pool_seen_ago_s: float | None = 0.5,
) -> FleetNow:
    """Returns what is known of these instances."""
    now_unix_s = time.time()
    seen = {} if pool_seen_ago_s is None else {"default": now_unix_s - pool_seen_ago_s}
    return FleetNow(
        at_unix_s=now_unix_s,
        is_known=is_known,
        statuses={str(s.instance): s for s in statuses},
        loads={str(one.instance): one for one in loads},
        moves=tuple(moves),
        pool_seen_unix_s=seen,
    )
