"""A pool's own settings over the environment's, and what is published about pools and classes."""

from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from engine_pool.class_rules import ClassRule
from engine_pool.config import PoolConfig
from engine_pool.errors import ConfigError
from engine_pool.pool_keys import FIRST, PoolKeys
from engine_pool.pool_settings import ENGINE_SETTINGS, shown_value
from engine_pool.pool_spec import (
    PoolCondition,
    PoolSpec,
    PoolState,
    Wanted,
    pool_config,
    publish,
    read_states,
    read_wanted,
    store_time_us,
    write_states,
)
from engine_pool.scheduler import instance_name
from engine_pool.store import connect_async
from engine_pool.turns import TurnRules
from engine_pool.types import EngineKind, PriorityClass
from tests.engine_pool.conftest import StoreServer

ENVIRON = {"FERRY_KV_CACHE_GIB": "0.25", "FERRY_MODEL": "/models/env", "FERRY_ENGINE": "simulated"}
FIRST_CONFIG = PoolConfig.from_env(ENVIRON)
HIGH, NORMAL = PriorityClass.HIGH, PriorityClass.NORMAL


def test_what_a_pool_leaves_out_comes_from_the_environment() -> None:
    spec = PoolSpec(
        "small", served_model_name="tiny", instances=3, engine_settings={"max_running": 7}
    )
    config = pool_config(FIRST_CONFIG, spec)
    assert (config.max_running, config.kv_cache_gib, config.model) == (7, 0.25, "/models/env")
    assert (config.instances, config.engine) == (3, EngineKind.SIMULATED)
    assert config.policy.rebalance == FIRST_CONFIG.policy.rebalance


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        pytest.param({"kv_cache_gib": 0}, "kv_cache_gib=", id="out of range"),
        pytest.param({"max_running": 1.5}, "max_running=", id="no whole number"),
        pytest.param({"engine": "gpt"}, "engine=.*vllm or simulated", id="no choice"),
        pytest.param({"migration": "maybe"}, "migration=.*on or off", id="no switch"),
        pytest.param({"redis_url": "redis://x"}, "redis_url: is no setting", id="not a pool's"),
        pytest.param({"max_running": [1]}, "max_running: expected", id="a list"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], names: str) -> None:
    with pytest.raises(ConfigError, match=f"^{names}"):
        pool_config(FIRST_CONFIG, PoolSpec("small", engine_settings=settings))


def test_thresholds_that_contradict_each_other_are_named() -> None:
    with pytest.raises(ConfigError, match=r"^rebalance_above_steps: "):
        pool_config(FIRST_CONFIG, PoolSpec("small", below_steps=50, above_steps=40))


def test_every_setting_is_read_back_as_it_is_shown() -> None:
    shown = {name: shown_value(getattr(FIRST_CONFIG, name)) for name in ENGINE_SETTINGS}
    again = pool_config(FIRST_CONFIG, PoolSpec("default", instances=2, engine_settings=shown))
    assert {n: getattr(again, n) for n in shown} == {n: getattr(FIRST_CONFIG, n) for n in shown}


def test_only_the_environments_pool_has_plain_names() -> None:
    assert pool_config(FIRST_CONFIG, PoolSpec("default")).keys == FIRST
    keys = pool_config(FIRST_CONFIG, PoolSpec("small")).keys
    assert keys.statuses == "ferry:pool:small:statuses"
    assert instance_name(1, FIRST) == "i-01"
    assert instance_name(12, keys) == "small-12"


names = st.from_regex(r"[a-z][a-z0-9-]{0,10}", fullmatch=True)


@given(names, names, st.integers(1, 512), st.integers(1, 512))
def test_two_pools_share_no_key_and_no_instance(one: str, other: str, a: int, b: int) -> None:
    mine, others = PoolKeys(one), PoolKeys(other)
    if one != other:
        assert not {*mine.all, mine.fleet} & {*others.all, others.fleet}
        assert instance_name(a, mine) != instance_name(b, others)
    assert not {*mine.all, mine.fleet} & {*FIRST.all, FIRST.fleet}


def test_classes_set_headroom_ageing_and_who_makes_room() -> None:
    classes = {
        HIGH: ClassRule(headroom_share=0.25),
        NORMAL: ClassRule(ageing_s=5, is_preemptible=False),
    }
    config = pool_config(FIRST_CONFIG, PoolSpec("small"), Wanted(classes=classes))
    assert config.headroom.headroom_tokens(HIGH, 1000) == 250
    assert config.headroom.headroom_tokens(NORMAL, 1000) == 0
    rules = TurnRules.of(config)
    assert (rules.ageing_s, rules.ageing_of_rank, rules.kept_ranks) == (120.0, {1: 5}, {1})
    assert rules.shortest_ageing_s == 5


def test_headroom_of_none_is_none_and_an_empty_rule_leaves_the_pools_own() -> None:
    none = Wanted(classes={HIGH: ClassRule(headroom_tokens=0)})
    config = pool_config(FIRST_CONFIG, PoolSpec("small"), none)
    assert not config.headroom.has_headroom(HIGH)
    empty = Wanted(classes={HIGH: ClassRule()})
    assert pool_config(FIRST_CONFIG, PoolSpec("small"), empty).headroom == FIRST_CONFIG.headroom


async def test_what_is_published_is_read_back(store: StoreServer) -> None:
    blocking, client = redis.Redis.from_url(store.url), connect_async(store.url)
    assert await read_wanted(client) is None
    wanted = Wanted(
        (PoolSpec("small", aliases=("a", "b"), engine_settings={"block_size": None}),),
        {HIGH: ClassRule(headroom_tokens=5)},
    )
    assert publish(blocking, wanted, store_time_us(blocking))
    assert await read_wanted(client) == wanted
    await client.aclose()


async def test_who_read_the_database_earlier_does_not_undo_a_later_change(
    store: StoreServer,
) -> None:
    blocking, client = redis.Redis.from_url(store.url), connect_async(store.url)
    early_us = store_time_us(blocking)
    new = Wanted((PoolSpec("new"),))
    assert publish(blocking, new, early_us + 5)
    assert not publish(blocking, Wanted((PoolSpec("old"),)), early_us)
    assert await read_wanted(client) == new
    await client.aclose()


async def test_states_of_pools_that_are_gone_are_gone(store: StoreServer) -> None:
    blocking, client = redis.Redis.from_url(store.url), connect_async(store.url)
    failed = PoolState(PoolCondition.FAILED, "there is no such folder", 1.0)
    write_states(blocking, {"a": failed, "b": PoolState(PoolCondition.RUNNING)})
    write_states(blocking, {"a": failed})
    assert await read_states(client) == {"a": failed}
    await client.aclose()
