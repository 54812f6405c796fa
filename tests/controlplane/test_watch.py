"""What a web process finds out about the parts, and how sure it has to be."""

from typing import Any

import pytest

from controlplane.fleet import watch as watches
from controlplane.fleet.observer import Observer
from controlplane.fleet.watch import MISSES_MAX, Watch, database_is_away, degraded
from engine_pool.client import PoolClient
from engine_pool.config import PoolConfig
from tests.controlplane.fakes import FakeGate

pytestmark = pytest.mark.asyncio


class Database:
    """Stands for the question to the database."""

    def __init__(self) -> None:
        self.answers = True

    async def answered(self) -> bool:
        return self.answers


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Database:
    made = Database()
    monkeypatch.setattr(watches, "database_question", made)
    return made


@pytest.fixture
async def watch(store_url: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    client = PoolClient(PoolConfig(redis_url=store_url), FakeGate())  # type: ignore[arg-type]
    made = Watch(client, Observer(client.view, desired=0))
    monkeypatch.setattr(watches, "_watches", {"default": made})
    yield made
    await client.store.aclose()


async def test_a_database_is_away_after_two_questions_and_back_with_one_answer(
    watch: Watch, database: Database
) -> None:
    await watch.probe()
    assert not database_is_away()
    database.answers = False
    for _ in range(MISSES_MAX - 1):
        await watch.probe()
        assert not database_is_away(), "a busy machine answers late, too"
    await watch.probe()
    assert database_is_away()
    since = watch.observer.probes.database_since_unix_s
    await watch.probe()
    assert watch.observer.probes.database_since_unix_s == since, "since when it is away"
    database.answers = True
    await watch.probe()
    assert not database_is_away()


async def test_one_that_reads_and_takes_no_rows_is_degraded_and_pages_go_on(
    watch: Watch, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "records_wait", lambda: True)
    await watch.probe()
    assert watch.observer.probes.database_answers is False
    assert not database_is_away()
    assert degraded([watch.client])["database"]


async def test_signs_of_life_come_from_the_store(
    watch: Watch, database: Database, store: Any
) -> None:
    store.set(watches.WORKER_ALIVE_KEY, "12.5")
    store.set(watches.WORKER_HEARTBEAT_KEY, "no time")
    await watch.probe()
    probes = watch.observer.probes
    assert probes.worker_alive_unix_s == 12.5
    assert probes.worker_heartbeat_unix_s is None
    assert probes.pool_sample_unix_s is None
    assert probes.ray_answers is None, "the gate is no Ray"


async def test_pools_that_nobody_watches_are_not_told_of(watch: Watch) -> None:
    assert degraded([]) == {}
    assert degraded([watch.client])["store"], "its live view has not begun"
