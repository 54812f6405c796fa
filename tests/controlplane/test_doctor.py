"""The doctor looks at every pool, and at what Celery does."""

import time
from collections.abc import AsyncIterator
from dataclasses import replace

import msgspec
import pytest
import redis

from controlplane.fleet.doctor.pool_checks import PoolChecks
from controlplane.fleet.doctor.report import Problem
from controlplane.fleet.watch import WORKER_ALIVE_KEY, WORKER_HEARTBEAT_KEY
from engine_pool.config import PoolConfig
from engine_pool.pool_keys import FIRST, PoolKeys
from engine_pool.pool_spec import PoolSpec, Wanted, publish
from engine_pool.types import FleetSample, InstanceState
from tests.controlplane.fakes import load_of, status_of

SECOND = PoolKeys("small")
pytestmark = pytest.mark.asyncio
pack = msgspec.msgpack.encode


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.fleet.doctor.pool_checks.STARTING_PATIENCE_S", 0.0)
    monkeypatch.setattr("engine_pool.ray_probe.ping_engine", lambda actor: None)


@pytest.fixture
async def checks(store_url: str) -> AsyncIterator[PoolChecks]:
    made = PoolChecks(PoolConfig(redis_url=store_url, instances=1))
    yield made
    await made._store.aclose()


def report(store: "redis.Redis[bytes]", keys: PoolKeys, name: str, state: InstanceState) -> None:
    """Writes what a pool process and an engine write."""
    pool = keys.namespace or "default"
    store.hset(keys.statuses, name, pack(replace(status_of(name, state), pool=pool)))
    store.hset(keys.loads, name, pack(load_of(name)))
    store.xadd(keys.samples, {"s": pack(FleetSample(time.time(), {}, 0, 0, 0))})


def want(store: "redis.Redis[bytes]", *pools: PoolSpec) -> None:
    publish(store, Wanted(pools), 1)


async def test_every_pool_that_is_switched_on_is_looked_at(
    checks: PoolChecks, store: "redis.Redis[bytes]"
) -> None:
    want(store, PoolSpec("default", instances=1), PoolSpec("small", instances=1))
    report(store, FIRST, "i-01", InstanceState.SERVING)
    report(store, SECOND, "small-01", InstanceState.SERVING)
    found = await checks.engines()
    assert found.startswith("default: 1 of 1 serve")
    assert "small: 1 of 1 serve" in found
    assert "small: sample" in await checks.pool()


async def test_a_fault_of_the_second_pool_is_found(
    checks: PoolChecks, store: "redis.Redis[bytes]"
) -> None:
    want(store, PoolSpec("default", instances=1), PoolSpec("small", instances=1))
    report(store, FIRST, "i-01", InstanceState.SERVING)
    with pytest.raises(Problem, match="pool small is known"):
        await checks.engines()
    with pytest.raises(Problem, match="a sample of pool small"):
        await checks.pool()
    report(store, SECOND, "small-01", InstanceState.LOST)
    with pytest.raises(Problem, match="small-01 is lost"):
        await checks.engines()


async def test_a_pool_that_is_off_and_one_at_zero_are_no_faults(
    checks: PoolChecks, store: "redis.Redis[bytes]"
) -> None:
    off = PoolSpec("off", instances=1, is_enabled=False)
    want(store, PoolSpec("default", instances=0), off)
    assert await checks.engines() == "default: 0 of 0 serve, all report and answer"


async def test_before_anything_is_published_the_environment_s_pool_counts(
    checks: PoolChecks, store: "redis.Redis[bytes]"
) -> None:
    report(store, FIRST, "i-01", InstanceState.SERVING)
    assert (await checks.engines()).startswith("default: 1 of 1")


async def test_a_dead_beat_is_told_from_a_dead_worker(
    checks: PoolChecks, store: "redis.Redis[bytes]"
) -> None:
    with pytest.raises(Problem, match="was never seen"):
        await checks.worker()
    store.set(WORKER_ALIVE_KEY, str(time.time()))
    with pytest.raises(Problem, match="lives, but gets no tasks"):
        await checks.worker()
    store.set(WORKER_HEARTBEAT_KEY, str(time.time()))
    assert (await checks.worker()).startswith("heartbeat")
