"""What Prometheus gets of scaling: from the loop by way of the store."""

from typing import Any

import pytest
import redis
import redis.asyncio
from asgiref.sync import async_to_sync
from prometheus_client.core import Metric

from controlplane.fleet import publishing
from controlplane.scaling import services, tally
from controlplane.scaling.metrics import collector, families_of
from controlplane.scaling.tally import Tally
from engine_pool.store import connect_async
from tests.controlplane.scaling_world import INTERVAL_S, ScalingWorld, make_world


@pytest.fixture
def world(
    store: "redis.Redis[bytes]", monkeypatch: pytest.MonkeyPatch, settings: Any
) -> ScalingWorld:
    settings.SCALING_CHECK_S = INTERVAL_S
    monkeypatch.setattr(publishing, "_store", lambda: store)
    world = make_world(store, grow_after_s=0.0)
    world.serve("i-01", 100)
    world.serve("i-02", 100)
    return world


def samples(families: list[Metric]) -> dict[tuple[str, ...], float]:
    return {(s.name, *s.labels.values()): s.value for f in families for s in f.samples}


def read(url: str) -> Tally:
    async def ask() -> Tally:
        client = connect_async(url)
        try:
            await collector.read(client)
            return await tally.read(client)
        finally:
            await client.aclose()

    return async_to_sync(ask)()


@pytest.mark.django_db
def test_checks_are_told_with_what_they_decided(world: ScalingWorld, store_url: str) -> None:
    world.check()
    world.say("i-03", failures=0)
    world.check()
    found = samples(families_of(read(store_url), world.now_s + 2))
    pool = "default"
    assert found["ferry:scaling_decisions_total", pool, "grow", "freeness"] == 1
    assert found["ferry:scaling_decisions_total", pool, "hold", "freeness"] == 1
    assert found["ferry:instances_wanted", pool] == 3
    assert found["ferry:instances_wanted_min", pool] == 1
    assert found["ferry:instances_wanted_max", pool] == 4
    assert found["ferry:scaling_silent_instances", pool] == 1
    assert found["ferry:scaling_mode", pool, "act"] == 1
    assert found["ferry:scaling_mode", pool, "advise"] == 0
    assert found["ferry:scaling_check_age_seconds", pool] == 2
    told = {s.name for f in collector.collect() for s in f.samples}
    assert "ferry:scaling_decisions_total" in told


@pytest.mark.django_db
def test_a_pool_that_is_not_checked_any_more_tells_nothing(
    world: ScalingWorld, store_url: str
) -> None:
    world.check()
    world.change(scaling_mode="off")
    services.reports_tidy(store=world.store)
    assert read(store_url).reports == {}


def test_labels_are_bounded_whatever_another_version_counts(
    store: "redis.Redis[bytes]", store_url: str
) -> None:
    store.hset(tally.COUNTS, mapping={"p|sideways|mood": 2, "p|sideways|moon": 3, "p|grow|ttft": 1})
    found = samples(families_of(read(store_url), 0.0))
    assert found == {
        ("ferry:scaling_decisions_total", "p", "other", "other"): 5,
        ("ferry:scaling_decisions_total", "p", "grow", "ttft"): 1,
    }


def test_without_the_store_the_last_numbers_stay(
    store: "redis.Redis[bytes]", store_url: str
) -> None:
    store.hset(tally.COUNTS, mapping={"p|grow|ttft": 4})
    read(store_url)
    before = samples(list(collector.collect()))

    async def ask() -> None:
        client = connect_async("redis://127.0.0.1:1/0")
        await collector.read(client)
        await client.aclose()

    async_to_sync(ask)()
    assert samples(list(collector.collect())) == before
    assert before["ferry:scaling_decisions_total", "p", "grow", "ttft"] == 4
