"""A pool whose engines report what a test wants, and a clock that it moves by hand."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import redis
from django.utils import timezone

from controlplane.fleet.models import Pool, ScalingMode, WantedInstance
from controlplane.gateway.models import RequestRecord
from controlplane.scaling.models import ScalingDecision, ScalingState
from controlplane.scaling.services import checks_make, demanded_wake
from controlplane.tenants.models import Tenant
from engine_pool.pool_keys import demand_key
from engine_pool.types import InstanceLoad, InstanceState, InstanceStatus
from engine_pool.view import Bulletin
from tests.engine_pool.make import load, running
from tests.engine_pool.make import status as make_status

NOW_UNIX_S = 1_800_000_000.0
CAPACITY_TOKENS = 16_000
INTERVAL_S = 5.0


@dataclass
class ScalingWorld:
    """Of the environment's pool. Every check is `INTERVAL_S` after the one before."""

    store: "redis.Redis[bytes]"
    pool: Pool
    now_s: float = NOW_UNIX_S
    reported: dict[str, Callable[[], InstanceLoad]] = field(default_factory=dict)

    def clock(self) -> float:
        return self.now_s

    def serve(self, name: str, free_steps: float = 500, requests: int = 10) -> None:
        """Lets an instance serve so many requests, and report again before each check."""
        used = round(CAPACITY_TOKENS - free_steps * requests) if requests else 0
        batch = tuple(running(0, name=f"{name}-{n}") for n in range(requests))
        self.say(name)
        self.reported[name] = lambda: load(
            name, capacity=CAPACITY_TOKENS, batch=batch, used=used, at_unix_s=self.now_s
        )

    def say(
        self, name: str, state: InstanceState = InstanceState.SERVING, **more: Any
    ) -> InstanceStatus:
        """Lets the pool process say how an instance is."""
        said = replace(make_status(name, state), **more)
        Bulletin(self.store).report_status(said)
        return said

    def silence(self, name: str) -> None:
        """Lets an instance report no more; its last report stays."""
        self.reported.pop(name)

    def check(self, after_s: float = INTERVAL_S) -> ScalingDecision | None:
        """Makes one check; returns its row."""
        self.now_s += after_s
        for report in self.reported.values():
            Bulletin(self.store).report_load(report())
        rows = checks_make(store=self.store, clock=self.clock)
        return rows[0] if rows else None

    def wake(self, after_s: float = 1.0) -> ScalingDecision | None:
        self.now_s += after_s
        rows = demanded_wake(store=self.store, clock=self.clock)
        return rows[0] if rows else None

    def demand(self) -> None:
        self.store.set(demand_key(self.pool.name), "1")

    def change(self, **changes: Any) -> None:
        Pool.objects.filter(pk=self.pool.pk).update(**changes)
        self.pool.refresh_from_db()

    def instances(self) -> int:
        self.pool.refresh_from_db()
        return self.pool.instances

    def stopped(self) -> set[str]:
        rows = WantedInstance.objects.filter(wanted="stopped", by="scaling")
        return set(rows.values_list("instance", flat=True))

    def state(self) -> ScalingState:
        return ScalingState.objects.get(pool=self.pool)

    def rows(self) -> list[tuple[str, bool]]:
        """Returns kind and whether it was applied of each decision, oldest first."""
        return list(ScalingDecision.objects.order_by("pk").values_list("kind", "is_applied"))


def make_world(store: "redis.Redis[bytes]", **pool: Any) -> ScalingWorld:
    values = {
        "name": "default",
        "served_model_name": "the-model",
        "instances": 2,
        "min_instances": 1,
        "max_instances": 4,
        "scaling_mode": ScalingMode.ACT,
        "grow_after_s": 10.0,
        "shrink_after_s": 30.0,
        "shrink_cooldown_s": 0.0,
    }
    return ScalingWorld(store, Pool.objects.create(**(values | pool)))


def stop(world: ScalingWorld, name: str, **more: Any) -> None:
    """Lets an instance be one that the loop has stopped."""
    WantedInstance.objects.create(
        pool=world.pool,
        instance=name,
        wanted="stopped",
        by="scaling",
        since=timezone.now(),
        **more,
    )


def records(world: ScalingWorld, *, met: int, missed: int, name: str = "a") -> None:
    """Lets requests have arrived now, of which so many had their first token in time."""
    tenant, _ = Tenant.objects.get_or_create(slug="alpha", defaults={"name": "Alpha"})
    RequestRecord.objects.bulk_create(
        RequestRecord(
            request_id=f"{name}-{n}",
            tenant=tenant,
            pool=world.pool.name,
            endpoint="chat",
            priority_class="normal",
            status="completed",
            prompt_tokens=10,
            output_tokens=10,
            arrived_at=datetime.fromtimestamp(world.now_s, UTC),
            duration_ms=1000,
            is_ttft_met=n < met,
        )
        for n in range(met + missed)
    )
