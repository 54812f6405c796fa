"""Tells the pool process and all web processes which pools are wanted: rows -> store.

Done when a change is committed, when a web process starts, and every few seconds by the worker.
Nothing is published while there is no row at all: then the environment's pool is the one.
"""

import functools
import logging

import redis
from django.conf import settings
from django.db import DatabaseError

from controlplane.fleet.models import Pool, ScalingMode, WantedNode, Wish
from controlplane.tenants.models import ClassSettings
from engine_pool.class_rules import ClassRule
from engine_pool.policy.wishes import InstanceWish, Leftover, WantedState
from engine_pool.pool_keys import PoolKeys
from engine_pool.pool_spec import PoolSpec, Wanted, publish, store_time_us
from engine_pool.store import connect
from engine_pool.types import PriorityClass

logger = logging.getLogger(__name__)


def pools_publish(*, store: "redis.Redis[bytes]") -> bool:
    """Publishes what the database says now; says whether anything was new to tell.

    Raises: redis.RedisError, DatabaseError.
    """
    as_of_us = store_time_us(store)
    wanted = wanted_now()
    return wanted is not None and publish(store, wanted, as_of_us)


def pools_publish_soon() -> None:
    """The same for `transaction.on_commit`: what cannot be told now, the worker tells later."""
    try:
        pools_publish(store=_store())
    except (redis.RedisError, OSError, DatabaseError) as error:
        logger.warning("the wanted pools are told later: %s", type(error).__name__)


def wanted_now() -> Wanted | None:
    """Returns what the database wants; None: there is no pool in it. Five queries."""
    pools = list(Pool.objects.prefetch_related("aliases", "wanted_instances"))
    if not pools:
        return None
    nodes = {row.node: wish_of(row) for row in WantedNode.objects.all()}
    return Wanted(tuple(map(spec_of, pools)), class_rules(), nodes)


def wish_of(row: Wish) -> InstanceWish:
    """Returns a wish's row as it is published."""
    return InstanceWish(
        wanted=WantedState(row.wanted),
        by=row.by,
        reason=row.reason,
        since_unix_s=row.since.timestamp(),
        deadline_unix_s=row.deadline.timestamp() if row.deadline else None,
        leftover=Leftover(row.leftover),
        renew_before_unix_s=row.renew_before.timestamp() if row.renew_before else None,
    )


def spec_of(pool: Pool) -> PoolSpec:
    """Returns a pool's row as it is published."""
    aliases = tuple(sorted(row.alias for row in pool.aliases.all())) if pool.pk else ()
    wishes = {row.instance: wish_of(row) for row in pool.wanted_instances.all()} if pool.pk else {}
    return PoolSpec(
        pool=pool.name,
        model=pool.model,
        served_model_name=pool.served_model_name,
        aliases=aliases,
        is_enabled=pool.is_enabled,
        instances=pool.instances,
        engine_settings=dict(pool.engine_settings),
        below_steps=pool.rebalance_below_steps,
        above_steps=pool.rebalance_above_steps,
        band_low_steps=pool.band_low_steps,
        band_high_steps=pool.band_high_steps,
        min_instances=pool.min_instances,
        max_instances=pool.max_instances,
        requests_per_minute=pool.requests_per_minute,
        tokens_per_minute=pool.tokens_per_minute,
        concurrency=pool.concurrency,
        wishes=wishes,
        is_rolling=pool.is_rolling,
        # Without scaling nobody would wake the pool that a request waits for.
        hold_s=pool.hold_s if pool.scaling_mode == ScalingMode.ACT else 0.0,
        hold_max=pool.hold_max,
    )


def class_rules() -> dict[PriorityClass, ClassRule]:
    """Returns how the priority classes are to be treated. One query."""
    return {
        PriorityClass(row.name): ClassRule(
            headroom_tokens=row.headroom_tokens,
            headroom_share=row.headroom_share,
            ageing_s=row.ageing_s,
            is_preemptible=row.is_preemptible,
        )
        for row in ClassSettings.objects.all()
    }


def keys_of(pool: str) -> PoolKeys:
    """Returns where a pool's part of the store is."""
    return PoolKeys("" if pool == settings.POOL.pool else pool)


def pool_keys() -> dict[str, PoolKeys]:
    """Returns the parts of the store of all pools, the environment's among them. One query."""
    names = {settings.POOL.pool, *Pool.objects.values_list("name", flat=True)}
    return {name: keys_of(name) for name in sorted(names)}


def pool_keys_forget(pool: str) -> None:
    """Removes what the store has of a pool that is gone; what cannot be removed harms nobody."""
    try:
        _store().unlink(*keys_of(pool).all)
    except (redis.RedisError, OSError) as error:
        logger.warning("pool %s is left in the store: %s", pool, type(error).__name__)


@functools.cache
def _store() -> "redis.Redis[bytes]":
    return connect(settings.POOL.redis_url)
