"""A web process follows the wanted pools: models and aliases come, change and go."""

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from prometheus_client import REGISTRY

from controlplane.errors import NotVisible
from controlplane.fleet.choice import pool_chosen, served_pool
from controlplane.gateway import pools as pools_module
from controlplane.gateway.errors import ApiError
from controlplane.gateway.pools import Pools
from controlplane.gateway.runtime import Runtime
from controlplane.tenants.selectors import KeyPolicy
from engine_pool.class_rules import ClassRule
from engine_pool.client import PoolClient, served_clients
from engine_pool.config import PoolConfig
from engine_pool.errors import PoolError, PoolRemoved
from engine_pool.pool_keys import PoolKeys
from engine_pool.pool_spec import PoolSpec, Wanted, publish, store_time_us
from engine_pool.stream import Stream
from engine_pool.types import PriorityClass
from engine_pool.view import Bulletin
from ops.checks import free_port
from tests.controlplane.fakes import FakeGate, FakeSink, status_of, until

FIRST = PoolSpec("default", served_model_name="first", instances=2)
SMALL = PoolSpec("small", served_model_name="small-model", aliases=("tiny",))
ANY = KeyPolicy(key_id=1, secret_digest="", tenant_id=1, tenant="alice")


class Front(FakeSink):
    """Stands for vLLM's front end."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.models = SimpleNamespace(base_model_paths=[SimpleNamespace(name=name)])
        self.llm = self
        self.is_shut_down = False

    def shutdown(self) -> None:
        self.is_shut_down = True


def runtime_of(config: PoolConfig) -> Runtime:
    def load(client: PoolClient) -> Any:
        return Front(client.config.served_model_name)

    return Runtime(PoolClient(config, FakeGate()), load)


@pytest.fixture
async def pools(store_url: str) -> AsyncIterator[Pools]:
    first = PoolConfig(redis_url=store_url, served_model_name="first")
    made = Pools(runtime_of(first), runtime_of)
    await made.start()
    await until(lambda: set(made.models()) == {"first"})
    yield made
    await made.stop()


@pytest.fixture
def tell(store: "redis.Redis[bytes]") -> Callable[..., None]:
    def say(*specs: PoolSpec, **classes: ClassRule) -> None:
        rules = {PriorityClass(name): rule for name, rule in classes.items()}
        assert publish(store, Wanted(specs, rules), store_time_us(store))

    return say


async def test_a_pool_and_its_alias_are_served_once_they_are_published(
    pools: Pools, tell: Callable[..., None]
) -> None:
    tell(FIRST, SMALL)
    await until(lambda: set(pools.models()) == {"first", "small-model", "tiny"})
    assert pools.for_model("tiny", ANY) is pools.for_model("small-model", ANY) is pools.get("small")
    assert pools.for_model(None, ANY) is pools.get("default")
    assert [c.config.pool for c in served_clients()] == ["default", "small"]
    tell(FIRST, PoolSpec("small", served_model_name="small-model", aliases=("best",)))
    await until(lambda: set(pools.models()) == {"first", "small-model", "best"})


async def test_a_model_is_offered_once_the_store_answers_and_not_before() -> None:
    loaded: list[Front] = []

    def load(client: PoolClient) -> Any:
        loaded.append(Front("first"))
        return loaded[0]

    nobody = PoolConfig(redis_url=f"redis://127.0.0.1:{free_port()}/0", served_model_name="first")
    pools = Pools(Runtime(PoolClient(nobody, FakeGate()), load), runtime_of)
    await pools.start()
    await until(lambda: pools.not_ready() == "the store does not answer")
    assert pools.models() == {}
    with pytest.raises(ApiError, match="the store does not answer") as refused:
        pools.for_model("first", ANY)
    assert refused.value.status == 503
    await pools.stop()
    assert loaded[0].is_shut_down


async def test_a_key_finds_only_the_models_that_it_may_use(
    pools: Pools, tell: Callable[..., None]
) -> None:
    tell(FIRST, SMALL)
    await until(lambda: "tiny" in pools.models())
    narrow = KeyPolicy(
        key_id=1, secret_digest="", tenant_id=1, tenant="a", allowed_models=("small-model",)
    )
    assert pools.for_model("small-model", narrow) is pools.get("small")
    for name in ("first", "tiny", "nothing"):
        with pytest.raises(ApiError, match="does not exist") as refused:
            pools.for_model(name, narrow)
        assert refused.value.status == 404


async def test_each_pool_sees_its_own_instances_alone(
    pools: Pools, tell: Callable[..., None], store: "redis.Redis[bytes]"
) -> None:
    tell(FIRST, SMALL)
    await until(lambda: pools.get("small") is not None)
    mine, other = pools.get("default"), pools.get("small")
    assert mine is not None
    assert other is not None
    await until(lambda: mine.client.view.store_connected and other.client.view.store_connected)
    Bulletin(store).report_status(status_of("i-01"))
    Bulletin(store, PoolKeys("small")).report_status(status_of("small-01"))
    await until(lambda: bool(mine.client.view.statuses and other.client.view.statuses))
    assert list(mine.client.view.statuses) == ["i-01"]
    assert list(other.client.view.statuses) == ["small-01"]


async def test_a_pool_that_goes_ends_its_streams_with_an_error_that_says_so(
    pools: Pools, tell: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools_module, "FAREWELL_S", 0.01)
    tell(FIRST, SMALL)
    await until(lambda: "tiny" in pools.models())
    small = pools.get("small")
    assert small is not None
    await until(lambda: small.client.reader.is_connected)
    small.client.reader.open(Stream("r1", lambda: 0))
    front: Any = small.front
    tell(FIRST)
    await until(lambda: set(pools.models()) == {"first"})
    await until(lambda: "r1" in front.errors)
    error: PoolError = front.errors["r1"]
    assert isinstance(error, PoolRemoved)
    assert error.code == "pool_removed"
    assert [c.config.pool for c in served_clients()] == ["default"]


async def test_classes_and_instances_change_without_a_new_front_end(
    pools: Pools, tell: Callable[..., None]
) -> None:
    tell(FIRST, SMALL)
    await until(lambda: "tiny" in pools.models())
    before = pools.get("small")
    assert before is not None
    tell(FIRST, PoolSpec("small", served_model_name="small-model", instances=5),
         high=ClassRule(headroom_tokens=70))  # fmt: skip
    await until(lambda: before.client.config.instances == 5)
    assert pools.get("small") is before
    assert before.client.config.headroom.headroom_tokens(PriorityClass.HIGH, 1000) == 70


async def test_another_model_name_is_another_front_end_and_open_streams_keep_the_old_one(
    pools: Pools, tell: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools_module, "LEFT_EVERY_S", 0.01)
    tell(FIRST, SMALL)
    await until(lambda: "tiny" in pools.models())
    old = pools.get("small")
    assert old is not None
    await until(lambda: old.client.reader.is_connected)
    old.client.reader.open(Stream("r1", lambda: 0))
    tell(FIRST, PoolSpec("small", served_model_name="renamed"))
    await until(lambda: "renamed" in pools.models())
    assert pools.get("small") is not old
    assert not old.is_stopping
    old.client.reader.close("r1")
    await until(lambda: old.is_stopping)


async def test_a_store_that_has_forgotten_changes_nothing(
    pools: Pools, tell: Callable[..., None], store: "redis.Redis[bytes]"
) -> None:
    tell(FIRST, SMALL)
    await until(lambda: "tiny" in pools.models())
    store.flushall()
    await asyncio.sleep(0)
    await pools._look()
    assert "tiny" in pools.models()


async def test_the_pool_of_an_address_is_the_one_that_is_looked_at(
    pools: Pools, tell: Callable[..., None]
) -> None:
    tell(FIRST, SMALL)
    await until(lambda: len(served_clients()) == 2)
    with pool_chosen("small"):
        assert served_pool() in [r.client for r in pools.all() if r is pools.get("small")]
    with pool_chosen("nothing"), pytest.raises(NotVisible):
        served_pool()
    assert served_pool() is pools.default.client


async def test_metrics_of_two_pools_do_not_collide(pools: Pools, tell: Callable[..., None]) -> None:
    tell(FIRST, SMALL)
    await until(lambda: "tiny" in pools.models())
    names = [family.name for family in REGISTRY.collect()]
    assert len(names) == len(set(names))
