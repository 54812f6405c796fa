"""The pools that are wanted: what the control plane publishes and everybody else follows.

In the store, so that neither the pool process nor a web process needs the database for it:

| key | type | holds |
|---|---|---|
| ferry:pools | hash | `wanted` -> Wanted as msgpack, `as_of` -> the store's time of it, us |
| ferry:pools:state | hash | pool -> PoolState as JSON, written by the pool process |

One value, not one a pool: all of it changes at once, and a reader never sees half of a change.
While nothing is published there is one pool, the environment's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

import msgspec
import redis
import redis.asyncio

from engine_pool.class_rules import ClassRule, with_classes
from engine_pool.config import PoolConfig
from engine_pool.errors import ConfigError
from engine_pool.policy.settings import PolicySettings
from engine_pool.policy.wishes import InstanceWish
from engine_pool.pool_settings import SettingValue, read_engine_settings
from engine_pool.types import PriorityClass

WANTED: Final = "ferry:pools"
STATES: Final = "ferry:pools:state"
LOOK_EVERY_S: Final = 0.5
"""Between two looks at what is wanted: a change is known everywhere within a second."""


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """One pool, as operators want it."""

    pool: str
    model: str = ""
    """A folder or a hub id; empty: the environment's."""
    served_model_name: str = ""
    aliases: tuple[str, ...] = ()
    """Other names under which clients may ask for the model."""
    is_enabled: bool = True
    instances: int = 1
    engine_settings: dict[str, SettingValue] = field(default_factory=dict)
    """Fields of PoolConfig that differ from the environment."""
    below_steps: float | None = None
    """Thresholds of rebalancing; None: the environment's."""
    above_steps: float | None = None
    band_low_steps: float | None = None
    """Band of scaling; None: the default one."""
    band_high_steps: float | None = None
    min_instances: int = 1
    max_instances: int = 8
    requests_per_minute: int | None = None
    """Limits of all tenants together, kept by the gateway; None: no limit."""
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    wishes: dict[str, InstanceWish] = field(default_factory=dict)
    """By instance; an instance without one serves."""
    is_rolling: bool = True
    """Instances with other engine settings than the pool's are replaced one by one."""
    hold_s: float = 0.0
    """How long a request waits for an instance while none serves; 0: it is refused at once."""
    hold_max: int = 0
    """Requests that wait so at the same time, in one web process."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """All that is published."""

    pools: tuple[PoolSpec, ...] = ()
    classes: dict[PriorityClass, ClassRule] = field(default_factory=dict)
    node_wishes: dict[str, InstanceWish] = field(default_factory=dict)
    """By node: for all instances there, of whatever pool."""

    def enabled(self) -> list[PoolSpec]:
        return [spec for spec in self.pools if spec.is_enabled]


class PoolCondition(StrEnum):
    """What the pool process does with a pool."""

    RUNNING = "running"
    FAILED = "failed"
    """It cannot work; PoolState.why says why, and it is tried again."""
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class PoolState:
    condition: PoolCondition
    why: str = ""
    at_unix_s: float = 0.0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Wanted).decode
_decode_state = msgspec.json.Decoder(PoolState).decode

_PUBLISH: Final = """
local known = redis.call('HGET', KEYS[1], 'as_of')
if known and tonumber(known) > tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'as_of', ARGV[1], 'wanted', ARGV[2])
return 1
"""


def pool_config(first: PoolConfig, spec: PoolSpec, wanted: Wanted | None = None) -> PoolConfig:
    """Returns a pool's settings: the environment's (`first`), overridden by its row's.

    Raises: ConfigError that begins with the name of the field that cannot work.
    """
    policy = _policy(first.policy, spec)
    classes = wanted.classes if wanted is not None else {}
    headroom = with_classes(policy.dispatch.headroom, classes)
    overridden: dict[str, Any] = read_engine_settings(spec.engine_settings)
    return replace(
        first,
        pool=spec.pool,
        namespace="" if spec.pool == first.pool else spec.pool,
        instances=spec.instances,
        model=spec.model or first.model,
        served_model_name=spec.served_model_name or first.served_model_name,
        policy=replace(policy, dispatch=replace(policy.dispatch, headroom=headroom)),
        classes=classes,
        wishes=spec.wishes,
        node_wishes=wanted.node_wishes if wanted is not None else {},
        knows_wishes=True,
        is_rolling=spec.is_rolling,
        hold_s=spec.hold_s,
        hold_max=spec.hold_max,
        **overridden,
    )


def _policy(policy: PolicySettings, spec: PoolSpec) -> PolicySettings:
    rebalance, scaling = policy.rebalance, policy.scaling
    below, above = spec.below_steps, spec.above_steps
    low, high = spec.band_low_steps, spec.band_high_steps
    try:
        rebalance = replace(
            rebalance,
            below_steps=rebalance.below_steps if below is None else below,
            above_steps=rebalance.above_steps if above is None else above,
        )
    except ValueError as error:
        raise ConfigError(f"rebalance_above_steps: {error}") from None
    scaling = replace(
        scaling,
        low_steps=scaling.low_steps if low is None else low,
        high_steps=scaling.high_steps if high is None else high,
        min_instances=spec.min_instances,
        max_instances=spec.max_instances,
    )
    return replace(policy, rebalance=rebalance, scaling=scaling)


def store_time_us(store: "redis.Redis[bytes]") -> int:
    """Returns the store's clock, microseconds: ask before reading what is to be published."""
    seconds, microseconds = store.time()
    return int(seconds) * 1_000_000 + int(microseconds)


def publish(store: "redis.Redis[bytes]", wanted: Wanted, as_of_us: int) -> bool:
    """Says which pools are wanted, as of a time of the store's clock. False: somebody has read the
    database later, and has said it already. Blocking. Raises: redis.RedisError."""
    return bool(store.eval(_PUBLISH, 1, WANTED, as_of_us, _encode(wanted)))


async def read_wanted(store: "redis.asyncio.Redis[bytes]") -> Wanted | None:
    """Returns what is published; None: nothing. Raises: redis.RedisError; ValueError for what
    another version wrote."""
    found: bytes | None = await store.hget(WANTED, "wanted")
    return None if found is None else _decode(found)


def write_states(store: "redis.Redis[bytes]", states: Mapping[str, PoolState]) -> None:
    """Says how all pools are. Blocking. Raises: redis.RedisError."""
    pipe = store.pipeline(transaction=True)
    pipe.delete(STATES)
    if states:
        pipe.hset(STATES, mapping={name: msgspec.json.encode(s) for name, s in states.items()})
    pipe.execute()


async def read_states(store: "redis.asyncio.Redis[bytes]") -> dict[str, PoolState]:
    """Raises: redis.RedisError; ValueError for what another version wrote."""
    found: dict[bytes, bytes] = await store.hgetall(STATES)
    return {name.decode(): _decode_state(blob) for name, blob in found.items()}
