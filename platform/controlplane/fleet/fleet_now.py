"""All pools' instances as they are now, for whoever drains them.

A web process has them in memory; anybody else (a command, the worker) asks the store.
"""

import functools
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import redis
from django.conf import settings

from controlplane.fleet.publishing import pool_keys
from controlplane.fleet.watch import fleet_watch
from engine_pool import view
from engine_pool.client import served_clients
from engine_pool.pool_keys import PoolKeys
from engine_pool.store import connect
from engine_pool.types import InstanceLoad, InstanceName, InstanceStatus
from migration.report import MoveReport

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FleetNow:
    """What is known of all instances at one moment."""

    at_unix_s: float
    is_known: bool = True
    """False: the store does not answer, so this is old or empty."""
    statuses: Mapping[str, InstanceStatus] = field(default_factory=dict)
    loads: Mapping[str, InstanceLoad] = field(default_factory=dict)
    """Last reports of the present incarnations."""
    moves: tuple[MoveReport, ...] = ()
    """Those that go on; a web process knows the last ended ones, too."""
    pool_seen_unix_s: Mapping[str, float] = field(default_factory=dict)
    """When the pool process gave its last sign of life, by pool; none: it was not seen."""

    @property
    def nodes(self) -> set[str]:
        return {status.node for status in self.statuses.values() if status.node}

    def of_node(self, node: str) -> list[InstanceStatus]:
        return [status for status in self.statuses.values() if status.node == node]

    def of_pool(self, pool: str) -> list[InstanceStatus]:
        return [status for status in self.statuses.values() if status.pool == pool]


def fleet_now() -> FleetNow:
    """Returns what is known now. Asks the store in a process that does not follow the pools."""
    clients = served_clients()
    if not clients:
        return fleet_in_store()
    seen = {}
    for client in clients:
        sample = fleet_watch(client.config.pool).observer.probes.pool_sample_unix_s
        if sample is not None:
            seen[client.config.pool] = sample
    return _now(
        (status for c in clients for status in list(c.view.statuses.values())),
        (load for c in clients for load in list(c.view.loads.values())),
        (move for c in clients for move in list(c.view.moves.values())),
        seen,
        is_known=all(c.view.store_connected for c in clients),
    )


def fleet_in_store() -> FleetNow:
    """Returns what the store says; nothing is known when it does not answer. One query."""
    pools = pool_keys()
    try:
        read = {pool: _read(keys) for pool, keys in pools.items()}
    except (redis.RedisError, OSError) as error:
        logger.warning("the store does not say what runs: %s", type(error).__name__)
        return FleetNow(time.time(), is_known=False)
    return _now(
        (status for statuses, *_ in read.values() for status in statuses),
        (load for _, loads, *_ in read.values() for load in loads),
        (move for *_, moves, _ in read.values() for move in moves),
        {pool: seen for pool, (*_, seen) in read.items() if seen is not None},
    )


def _now(
    statuses: Iterable[InstanceStatus],
    loads: Iterable[InstanceLoad],
    moves: Iterable[MoveReport],
    pool_seen_unix_s: Mapping[str, float],
    *,
    is_known: bool = True,
) -> FleetNow:
    known: dict[InstanceName, InstanceStatus] = {s.instance: s for s in statuses}
    return FleetNow(
        at_unix_s=time.time(),
        is_known=is_known,
        statuses={str(name): status for name, status in known.items()},
        loads={
            str(load.instance): load
            for load in loads
            if load.instance in known and known[load.instance].incarnation == load.incarnation
        },
        moves=tuple(moves),
        pool_seen_unix_s=pool_seen_unix_s,
    )


_Found = tuple[list[InstanceStatus], list[InstanceLoad], list[MoveReport], float | None]


def _read(keys: PoolKeys) -> _Found:
    pipe = _store().pipeline(transaction=False)
    pipe.hvals(keys.statuses)
    pipe.hvals(keys.loads)
    pipe.hvals(keys.moves)
    pipe.xrevrange(keys.samples, count=1)
    statuses, loads, moves, samples = pipe.execute()
    seen = view.decode_sample(samples[0][1][b"s"]).at_unix_s if samples else None
    return (
        [view.decode_status(blob) for blob in statuses],
        [view.decode_load(blob) for blob in loads],
        [view.decode_move(blob) for blob in moves],
        seen,
    )


@functools.cache
def _store() -> "redis.Redis[bytes]":
    return connect(settings.POOL.redis_url)
