"""Questions about pools: what is wanted (rows), and what the pool process makes of it (store)."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from django.conf import settings
from django.db.models import QuerySet

from controlplane.errors import NotVisible
from controlplane.fleet.models import ModelAlias, Pool
from controlplane.fleet.publishing import spec_of
from controlplane.gateway.pools import pools
from engine_pool.client import served_clients
from engine_pool.errors import ConfigError
from engine_pool.pool_settings import ENGINE_SETTINGS, SettingValue, shown_value
from engine_pool.pool_spec import PoolCondition, PoolState, pool_config
from engine_pool.types import InstanceState


@dataclass(frozen=True, slots=True)
class EngineSetting:
    """One setting of a pool's engines, for a form."""

    name: str
    value: SettingValue
    """What holds now."""
    own: SettingValue
    """The pool's own; None: it is the environment's."""


@dataclass(frozen=True, slots=True)
class PoolEntry:
    """One pool in the switch of the pages' top bar."""

    name: str
    model: str
    serving: int
    """Instances that serve."""
    desired: int
    state: PoolState | None
    """None: the pool process has not said anything yet."""

    @property
    def tone(self) -> str:
        """ok, warn or bad."""
        if self.state is not None and self.state.condition is PoolCondition.FAILED:
            return "bad"
        return "ok" if self.serving >= self.desired else "warn"

    @property
    def words(self) -> str:
        if self.state is not None and self.state.condition is PoolCondition.FAILED:
            return f"cannot start: {self.state.why}"
        return f"{self.serving} of {self.desired} serve"


def pools_list() -> QuerySet[Pool]:
    """Returns all pools, by name, with their aliases."""
    return Pool.objects.prefetch_related("aliases").order_by("name")


def pool_get(name: str) -> Pool:
    """Raises: NotVisible."""
    pool = pools_list().filter(name=name).first()
    if pool is None:
        raise NotVisible(f"There is no pool {name}.")
    return pool


def alias_get(alias: str) -> ModelAlias:
    """Raises: NotVisible."""
    found = ModelAlias.objects.select_related("pool").filter(alias=alias).first()
    if found is None:
        raise NotVisible(f"There is no alias {alias}.")
    return found


def engine_settings_of(pool: Pool) -> list[EngineSetting]:
    """Returns every setting that a pool may have of its own, with what holds now."""
    try:
        config = pool_config(settings.POOL, spec_of(pool))
    except ConfigError:
        config = settings.POOL
    own: Mapping[str, Any] = pool.engine_settings
    known = [f.name for f in fields(config) if f.name in ENGINE_SETTINGS]
    return [EngineSetting(n, shown_value(getattr(config, n)), own.get(n)) for n in known]


def pool_state(name: str) -> PoolState | None:
    """Returns what the pool process said last of a pool; None: nothing, or it is off. In a web
    process only."""
    return pools().states.get(name)


def pool_entries() -> list[PoolEntry]:
    """Returns the pools that this web process serves, the default one first. No query."""
    found = []
    states = pools().states if served_clients() else {}
    for client in served_clients():
        config = client.config
        statuses = list(client.view.statuses.values())
        found.append(
            PoolEntry(
                name=config.pool,
                model=config.served_model_name or config.pool,
                serving=sum(s.state is InstanceState.SERVING for s in statuses),
                desired=config.instances,
                state=states.get(config.pool),
            )
        )
    return found
