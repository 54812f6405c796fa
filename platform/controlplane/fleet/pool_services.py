"""Changes to pools and model aliases. They take effect within a second, without a restart.

All raise NotVisible, NotAllowed, VersionConflict, and ValidationError naming the field.
"""

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import transaction

from controlplane.fleet.models import ModelAlias, Pool
from controlplane.fleet.publishing import pool_keys_forget, pools_publish_soon, spec_of
from controlplane.tenants.access import Access, Role
from controlplane.tenants.changes import row_add, row_change, row_remove
from engine_pool.config import PoolConfig
from engine_pool.errors import ConfigError
from engine_pool.pool_settings import read_engine_settings
from engine_pool.pool_spec import pool_config
from engine_pool.served_model import DEFAULT_MODEL

OPERATOR_FIELDS: Final = (
    "is_enabled",
    "instances",
    "min_instances",
    "max_instances",
    "band_low_steps",
    "band_high_steps",
    "rebalance_below_steps",
    "rebalance_above_steps",
    "requests_per_minute",
    "tokens_per_minute",
    "concurrency",
    "is_rolling",
    "scaling_mode",
    "grow_after_s",
    "shrink_after_s",
    "grow_cooldown_s",
    "shrink_cooldown_s",
    "ttft_attainment_floor",
    "zero_after_s",
    "hold_s",
    "hold_max",
)
"""What an operator may change; the others need the owner."""
OWNER_FIELDS: Final = ("model", "served_model_name", "engine_settings")
POOL_FIELDS: Final = (*OWNER_FIELDS, *OPERATOR_FIELDS)
OFF_FIELDS: Final = ("model", "served_model_name")
"""Changed only while the pool is off: half of its instances would answer as another model."""
NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,31}")
TAKEN_NAME: Final = "i"
"""The first pool's instances are i-01, i-02, ...; others begin with their pool's name."""


def pool_create(*, access: Access, changes: Mapping[str, Any], reason: str = "") -> Pool:
    """Returns a new pool; its instances start at once if it is enabled.

    `changes`: `name` and of POOL_FIELDS. Needs the platform's owner.
    """
    access.require(Role.OWNER)
    pool = Pool(**_only(changes, ("name", *POOL_FIELDS)))
    _check_name(pool.name)
    _check_settings(pool)
    _check_model_name("served_model_name", pool.served_model_name, pool)
    made = row_add(
        pool, access=access, action="pool_create", fields=("name", *POOL_FIELDS), reason=reason
    )
    transaction.on_commit(pools_publish_soon)
    return made


def pool_update(
    *,
    access: Access,
    pool: Pool,
    changes: Mapping[str, Any],
    version: int | None = None,
    reason: str = "",
) -> Pool:
    """Changes any of POOL_FIELDS. Needs the platform's operator, for OWNER_FIELDS the owner.

    Fewer instances: those that go take no new requests, and wait until theirs have moved or ended.
    Other engine settings: an instance has them from its next start.
    """
    access.require(Role.OPERATOR)
    values = _only(changes, POOL_FIELDS)
    differing = {name for name, value in values.items() if getattr(pool, name) != value}
    if differing & set(OWNER_FIELDS):
        access.require(Role.OWNER)
    if pool.is_enabled:
        for name in OFF_FIELDS:
            if name in differing:
                raise ValidationError({name: "can be changed only while the pool is off"})
    after = Pool.objects.get(pk=pool.pk)
    for name, value in values.items():
        setattr(after, name, value)
    _check_settings(after)
    _check_windows(after)
    _check_model_name("served_model_name", after.served_model_name, after)
    changed = row_change(
        pool, values, access=access, action="pool_update", version=version, reason=reason
    )
    transaction.on_commit(pools_publish_soon)
    return changed


def pool_remove(
    *, access: Access, pool: Pool, version: int | None = None, reason: str = ""
) -> None:
    """Removes a pool that is off, with its aliases. Needs the platform's owner."""
    access.require(Role.OWNER)
    current = Pool.objects.filter(pk=pool.pk).first()
    if current is None:
        return
    if current.is_enabled:
        raise ValidationError({"is_enabled": "switch the pool off before it is removed"})
    if not Pool.objects.exclude(pk=pool.pk).exists():
        raise ValidationError({"name": "the last pool cannot be removed, only switched off"})
    if version is not None:
        row_change(pool, {}, access=access, action="pool_remove", version=version)
    row_remove(
        current, access=access, action="pool_remove", fields=("name", *POOL_FIELDS), reason=reason
    )
    transaction.on_commit(pools_publish_soon)
    transaction.on_commit(partial(pool_keys_forget, current.name))


def alias_set(*, access: Access, alias: str, pool: Pool, reason: str = "") -> ModelAlias:
    """Lets clients ask for a pool's model by another name, too; an alias that is there is turned to
    the pool. Needs the platform's operator."""
    access.require(Role.OPERATOR)
    known = ModelAlias.objects.filter(alias=alias).first()
    if known is not None:
        made = row_change(
            known, {"pool": pool}, access=access, action="alias_update", reason=reason
        )
    else:
        _check_model_name("alias", alias, None)
        made = row_add(
            ModelAlias(alias=alias, pool=pool), access=access, action="alias_create",
            fields=("alias", "pool"), reason=reason,
        )  # fmt: skip
    transaction.on_commit(pools_publish_soon)
    return made


def alias_remove(*, access: Access, alias: ModelAlias, reason: str = "") -> None:
    """Needs the platform's operator."""
    access.require(Role.OPERATOR)
    row_remove(alias, access=access, action="alias_remove", fields=("alias", "pool"), reason=reason)
    transaction.on_commit(pools_publish_soon)


def pool_first_ensure(*, access: Access, config: PoolConfig) -> Pool | None:
    """Makes the first pool from the environment; None when somebody has made or changed pools.

    Until somebody changes it here, it goes on following the environment: whoever starts an
    installation with INSTANCES=4 gets four.
    """
    model = config.served_model_name or Path(config.model).name or DEFAULT_MODEL
    rebalance, scaling = config.policy.rebalance, config.policy.scaling
    values = {
        "served_model_name": model,
        "instances": config.instances,
        "min_instances": min(1, config.instances),
        "max_instances": max(8, config.instances),
        "band_low_steps": scaling.low_steps,
        "band_high_steps": scaling.high_steps,
        "rebalance_below_steps": rebalance.below_steps,
        "rebalance_above_steps": rebalance.above_steps,
    }
    if not Pool.objects.exists():
        return pool_create(access=access, changes={"name": config.pool, **values})
    untouched = Pool.objects.filter(name=config.pool, version=1)
    if untouched.exclude(**values).update(**values):
        transaction.on_commit(pools_publish_soon)
    return untouched.first()


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise ValidationError(
            {"name": "must begin with a letter and have only a-z, 0-9 and -, 32 at most"}
        )
    if name == TAKEN_NAME:
        raise ValidationError({"name": "is taken: instances of the first pool begin with it"})


def _check_settings(pool: Pool) -> None:
    if not isinstance(pool.engine_settings, dict):
        raise ValidationError({"engine_settings": "must be an object of settings"})
    try:
        read_engine_settings(pool.engine_settings)
    except ConfigError as error:
        raise ValidationError({"engine_settings": str(error)}) from None
    try:
        pool_config(settings.POOL, spec_of(pool))
    except ConfigError as error:
        field, _, why = str(error).partition(": ")
        raise ValidationError({field: why}) from None


def _check_windows(pool: Pool) -> None:
    """A window's bounds lie within the pool's own: its instances must, at every hour."""
    for window in pool.scaling_windows.filter(is_enabled=True):
        most = window.max_instances if window.max_instances is not None else window.min_instances
        if window.min_instances < pool.min_instances:
            why = f"window {window.name} wants {window.min_instances} and more; change it first"
            raise ValidationError({"min_instances": why})
        if most > pool.max_instances:
            why = f"window {window.name} wants up to {most}; change it first"
            raise ValidationError({"max_instances": why})


def _check_model_name(field: str, name: str, pool: Pool | None) -> None:
    """Served names and aliases are one namespace: a request's `model` must mean one pool."""
    own = None if pool is None else pool.pk
    if Pool.objects.filter(served_model_name=name).exclude(pk=own).exists():
        raise ValidationError({field: f"{name} is the model of another pool"})
    if field != "alias" and ModelAlias.objects.filter(alias=name).exists():
        raise ValidationError({field: f"{name} is an alias"})


def _only(values: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    for name in values:
        if name not in names:
            raise ValidationError({name: "cannot be set"})
    return dict(values)
