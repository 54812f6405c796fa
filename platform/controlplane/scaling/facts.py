"""What a check sees of a pool: the engines' reports in the store, and what the rows want."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

import msgspec
import redis
from django.conf import settings
from django.db.models import Count, Q

from controlplane.fleet.models import Pool, WantedInstance, WantedNode
from controlplane.fleet.publishing import class_rules, keys_of, spec_of
from controlplane.gateway.models import RequestRecord
from controlplane.scaling.schedule import Bounds
from controlplane.usage.slo import REQUESTS_MIN
from engine_pool.policy.scaling_facts import Attainment
from engine_pool.policy.scaling_view import Intent
from engine_pool.policy.settings import HeadroomRule, ScalingRule
from engine_pool.policy.wishes import WantedState
from engine_pool.pool_keys import demand_key
from engine_pool.pool_spec import Wanted, pool_config
from engine_pool.types import InstanceLoad, InstanceName, InstanceStatus
from engine_pool.view import decode_load, decode_status

BY: Final = "scaling"
"""Who wants something, in the loop's own rows."""
ATTAINMENT_S: Final = 180.0
"""Requests that arrived so long ago at most say how first tokens are now: enough of them for a
share, few enough that a shortage that is over is forgotten within a cool-down."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reports:
    """What the store says of a pool."""

    statuses: tuple[InstanceStatus, ...]
    loads: tuple[InstanceLoad, ...]
    is_demanded: bool
    """Requests wait at a gateway for a first instance."""


def read_reports(store: "redis.Redis[bytes]", pool: str) -> Reports:
    """Reads a pool's view; a value that cannot be read is left out, and so its instance is silent.

    Raises: redis.RedisError.
    """
    keys = keys_of(pool)
    pipe = store.pipeline(transaction=False)
    pipe.hvals(keys.statuses)
    pipe.hvals(keys.loads)
    pipe.exists(demand_key(pool))
    statuses, loads, demand = pipe.execute()
    return Reports(
        tuple(_decoded(statuses, decode_status)), tuple(_decoded(loads, decode_load)), bool(demand)
    )


def _decoded(blobs: "list[bytes]", decode: Callable[[bytes], T]) -> list[T]:
    found = []
    for blob in blobs:
        try:
            found.append(decode(blob))
        except msgspec.MsgspecError:
            continue
    return found


def rule_of(pool: Pool, bounds: Bounds) -> ScalingRule:
    """Returns a pool's row as the policy reads it."""
    return ScalingRule(
        is_on=True,
        low_steps=pool.band_low_steps,
        high_steps=pool.band_high_steps,
        min_instances=bounds.min_instances,
        max_instances=bounds.max_instances,
        window=bounds.window,
        check_interval_s=settings.SCALING_CHECK_S,
        grow_after_s=pool.grow_after_s,
        shrink_after_s=pool.shrink_after_s,
        grow_cooldown_s=pool.grow_cooldown_s,
        shrink_cooldown_s=pool.shrink_cooldown_s,
        ttft_attainment_floor=pool.ttft_attainment_floor,
        zero_after_s=pool.zero_after_s,
    )


def headroom_of(pool: Pool) -> HeadroomRule:
    """Returns how much room classes keep in the pool. Raises: ConfigError."""
    return pool_config(settings.POOL, spec_of(pool), Wanted(classes=class_rules())).headroom


def intent_of(pool: Pool, rows: Mapping[InstanceName, WantedInstance]) -> Intent:
    """Returns what is wanted of the pool's instances. One query."""
    own, kept = set(), set()
    for name, row in rows.items():
        if row.wanted != WantedState.SERVING:
            (own if is_own(row) else kept).add(name)
    nodes = WantedNode.objects.exclude(wanted=WantedState.SERVING.value)
    return Intent(
        slots=slots_of(pool),
        own=own,
        kept=kept,
        kept_nodes=set(nodes.values_list("node", flat=True)),
    )


def slots_of(pool: Pool) -> list[InstanceName]:
    """Returns the names of the pool's instances, first to last, as the pool process makes them."""
    prefix = keys_of(pool.name).instance_prefix
    return [InstanceName(f"{prefix}-{number:02d}") for number in range(1, pool.instances + 1)]


def is_own(row: WantedInstance) -> bool:
    """Says whether the loop has stopped this instance, and may start it again."""
    return row.by == BY and row.wanted == WantedState.STOPPED


def attainment_of(pool: Pool, now_unix_s: float, since_s: float | None) -> Attainment | None:
    """Returns how many first tokens came in time, of requests of the last minutes.

    `since_s`: when the pool grew last; what was before is no reason to grow again. None with too
    few requests to say, or when the pool does not ask for it. One query.
    """
    if pool.ttft_attainment_floor is None:
        return None
    start_s = max(now_unix_s - ATTAINMENT_S, since_s or 0.0)
    start = datetime.fromtimestamp(start_s, UTC)
    # Those that arrived late in the future are a clock's mistake.
    end = datetime.fromtimestamp(now_unix_s, UTC) + timedelta(seconds=ATTAINMENT_S)
    found = RequestRecord.objects.filter(
        pool=pool.name, arrived_at__gte=start, arrived_at__lt=end, is_ttft_met__isnull=False
    ).aggregate(all=Count("pk"), met=Count("pk", filter=Q(is_ttft_met=True)))
    if found["all"] < REQUESTS_MIN:
        return None
    return Attainment(found["met"] / found["all"], found["all"])
