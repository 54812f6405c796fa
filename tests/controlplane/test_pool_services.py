"""Pools and aliases as rows: who may change them, what is refused, and what is published."""

from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.core.exceptions import ValidationError

from controlplane.audit.models import AuditEntry
from controlplane.errors import NotAllowed, NotVisible, VersionConflict
from controlplane.fleet import publishing
from controlplane.fleet.models import ModelAlias, Pool
from controlplane.fleet.pool_selectors import engine_settings_of, pool_get, pools_list
from controlplane.fleet.pool_services import (
    alias_remove,
    alias_set,
    pool_create,
    pool_first_ensure,
    pool_remove,
    pool_update,
)
from controlplane.scaling.models import ScalingWindow
from controlplane.tenants.access import Access, Role
from controlplane.tenants.models import ClassSettings
from controlplane.tenants.services import class_update
from engine_pool.config import PoolConfig
from engine_pool.pool_spec import Wanted
from engine_pool.types import PriorityClass

pytestmark = pytest.mark.django_db

OWNER, OPERATOR = Access("olga", platform=Role.OWNER), Access("oscar", platform=Role.OPERATOR)
Capture = Callable[..., Any]


@pytest.fixture(autouse=True)
def published(store: "redis.Redis[bytes]", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "_store", lambda: store)


@pytest.fixture
def default() -> Pool:
    made = pool_first_ensure(access=OWNER, config=PoolConfig(instances=2))
    assert made is not None
    return made


def small(**more: Any) -> Pool:
    changes = {"name": "small", "served_model_name": "small-model", **more}
    return pool_create(access=OWNER, changes=changes)


def wanted() -> Wanted:
    found = publishing.wanted_now()
    assert found is not None
    return found


def test_the_first_pool_is_the_environments_and_follows_it_until_somebody_changes_it() -> None:
    assert publishing.wanted_now() is None
    first = pool_first_ensure(access=OWNER, config=PoolConfig(instances=2, model="/m/Llama"))
    assert first is not None
    assert (first.name, first.model, first.served_model_name) == ("default", "", "Llama")
    again = pool_first_ensure(access=OWNER, config=PoolConfig(instances=4, model="/m/Qwen"))
    assert again is not None
    assert (again.instances, again.served_model_name, again.version) == (4, "Qwen", 1)
    pool_update(access=OPERATOR, pool=again, changes={"instances": 3})
    assert pool_first_ensure(access=OWNER, config=PoolConfig(instances=5)) is None
    assert pool_get("default").instances == 3


def test_a_pool_and_its_alias_are_published_once_they_are_committed(
    default: Pool,
    store: "redis.Redis[bytes]",
    django_capture_on_commit_callbacks: Capture,
) -> None:
    with django_capture_on_commit_callbacks(execute=False) as callbacks:
        alias_set(access=OPERATOR, alias="tiny", pool=small(instances=3))
    assert not store.exists("ferry:pools"), "nothing before the commit"
    for callback in callbacks:
        callback()
    assert store.exists("ferry:pools")
    spec = next(s for s in wanted().pools if s.pool == "small")
    assert (spec.instances, spec.aliases, spec.is_enabled) == (3, ("tiny",), True)
    assert [e.action for e in AuditEntry.objects.filter(who="olga")][-1:] == ["pool_create"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        pytest.param({"name": "Small"}, "name", id="capital letter"),
        pytest.param({"name": "i"}, "name", id="the first pool's instances"),
        pytest.param(
            {"served_model_name": "SmolLM2-135M-Instruct"}, "served_model_name", id="taken"
        ),
        pytest.param({"served_model_name": "nick"}, "served_model_name", id="an alias"),
        pytest.param({"engine_settings": {"kv_cache_gib": 0}}, "engine_settings", id="setting"),
        pytest.param({"engine_settings": [1]}, "engine_settings", id="no object"),
        pytest.param({"instances": 9}, "instances", id="more than the most"),
        pytest.param(
            {"rebalance_below_steps": 9, "rebalance_above_steps": 8},
            "rebalance_above_steps",
            id="thresholds",
        ),
        pytest.param({"redis_url": "x"}, "redis_url", id="no field"),
    ],
)
def test_what_cannot_work_is_refused_naming_the_field(
    default: Pool, changes: dict[str, Any], field: str
) -> None:
    alias_set(access=OPERATOR, alias="nick", pool=default)
    with pytest.raises(ValidationError) as refused:
        small(**changes)
    assert list(refused.value.message_dict) == [field]
    assert not Pool.objects.filter(served_model_name="small-model").exists()


def test_an_alias_cannot_hide_a_model(default: Pool) -> None:
    pool = small()
    with pytest.raises(ValidationError, match="model of another pool"):
        alias_set(access=OPERATOR, alias=default.served_model_name, pool=pool)


def test_an_alias_is_turned_to_another_pool_and_removed(default: Pool) -> None:
    pool = small()
    alias_set(access=OPERATOR, alias="best", pool=default)
    alias = alias_set(access=OPERATOR, alias="best", pool=pool)
    assert ModelAlias.objects.get().pool == pool
    alias_remove(access=OPERATOR, alias=alias)
    assert not ModelAlias.objects.exists()


def test_an_operator_changes_instances_and_limits_but_no_model(default: Pool) -> None:
    with pytest.raises(NotAllowed):
        pool_create(access=OPERATOR, changes={"name": "x", "served_model_name": "y"})
    pool = pool_update(
        access=OPERATOR, pool=small(), changes={"instances": 2, "concurrency": 9}, version=1
    )
    assert (pool.instances, pool.concurrency, pool.version) == (2, 9, 2)
    with pytest.raises(NotAllowed):
        pool_update(access=OPERATOR, pool=pool, changes={"engine_settings": {"max_running": 2}})
    with pytest.raises(NotAllowed):
        pool_remove(access=OPERATOR, pool=pool)
    with pytest.raises(NotVisible):
        pool_update(access=Access("mallory"), pool=pool, changes={"instances": 1})


def test_who_has_seen_an_older_version_changes_nothing(default: Pool) -> None:
    pool = small()
    pool_update(access=OWNER, pool=pool, changes={"instances": 2}, version=1)
    with pytest.raises(VersionConflict):
        pool_update(access=OWNER, pool=pool, changes={"instances": 3}, version=1)
    assert pool_get("small").instances == 2


def test_a_model_changes_only_while_its_pool_is_off(default: Pool) -> None:
    pool = small()
    with pytest.raises(ValidationError, match="while the pool is off"):
        pool_update(access=OWNER, pool=pool, changes={"model": "org/other"})
    pool = pool_update(access=OWNER, pool=pool, changes={"is_enabled": False})
    pool = pool_update(access=OWNER, pool=pool, changes={"model": "org/other"})
    assert pool.model == "org/other"


def test_only_a_pool_that_is_off_is_removed_and_never_the_last_one(
    default: Pool, store: "redis.Redis[bytes]", django_capture_on_commit_callbacks: Capture
) -> None:
    pool = small()
    alias_set(access=OPERATOR, alias="tiny", pool=pool)
    with pytest.raises(ValidationError, match="switch the pool off"):
        pool_remove(access=OWNER, pool=pool)
    off = pool_update(access=OWNER, pool=pool, changes={"is_enabled": False})
    store.set(publishing.keys_of("small").samples, "x")
    with django_capture_on_commit_callbacks(execute=True):
        pool_remove(access=OWNER, pool=off, reason="not needed")
    assert [p.name for p in pools_list()] == ["default"]
    assert not ModelAlias.objects.exists()
    assert not store.exists(publishing.keys_of("small").samples)
    last = pool_update(access=OWNER, pool=default, changes={"is_enabled": False})
    with pytest.raises(ValidationError, match="last pool"):
        pool_remove(access=OWNER, pool=last)


def test_a_form_sees_what_holds_and_what_is_the_pools_own(default: Pool) -> None:
    found = {s.name: s for s in engine_settings_of(small(engine_settings={"max_running": 7}))}
    assert (found["max_running"].value, found["max_running"].own) == (7, 7)
    assert (found["migration"].value, found["migration"].own) == (True, None)


def test_a_class_is_published_with_the_pools(
    default: Pool, django_capture_on_commit_callbacks: Capture, store: "redis.Redis[bytes]"
) -> None:
    row = ClassSettings.objects.get(name="high")
    with django_capture_on_commit_callbacks(execute=True):
        class_update(
            access=OPERATOR, settings=row, changes={"headroom_share": 0.5, "ageing_s": 3.0}
        )
    rule = wanted().classes[PriorityClass.HIGH]
    assert (rule.headroom_share, rule.ageing_s, rule.is_preemptible) == (0.5, 3.0, True)
    assert store.exists("ferry:pools")


def test_bounds_that_leave_a_window_outside_name_the_field(default: Pool) -> None:
    ScalingWindow.objects.create(
        pool=default, name="mornings", begins="08:00", ends="12:00", min_instances=2,
        max_instances=6,
    )  # fmt: skip
    for changes, field in (
        ({"min_instances": 3, "instances": 4}, "min_instances"),
        ({"max_instances": 5}, "max_instances"),
    ):
        with pytest.raises(ValidationError) as refused:
            pool_update(access=OPERATOR, pool=default, changes=changes)
        assert "window mornings wants" in refused.value.message_dict[field][0]
    ScalingWindow.objects.update(is_enabled=False)
    assert pool_update(access=OPERATOR, pool=default, changes={"max_instances": 5}).version == 2


def test_requests_are_held_only_while_the_loop_acts(default: Pool) -> None:
    """Nobody would wake the pool otherwise."""
    held = {}
    for mode in ("off", "advise", "act"):
        pool_update(access=OPERATOR, pool=default, changes={"scaling_mode": mode, "hold_s": 30.0})
        held[mode] = wanted().pools[0].hold_s
    assert held == {"off": 0.0, "advise": 0.0, "act": 30.0}
