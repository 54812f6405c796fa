"""What the pool process knows about moves in general, for the pre-flight page and command.

It is written when it changes, and read when somebody asks. In the store:

| key | type | holds |
|---|---|---|
| ferry:migration | hash | `self_test` -> SelfTest, `allowed` -> "1" or "0", `why` -> text, |
| | | `shape:<instance>` -> KvShape; all as JSON |
"""

from dataclasses import dataclass, field
from typing import Final

import msgspec
import redis
import redis.asyncio

from engine_pool.pool_keys import FIRST, PoolKeys
from engine_pool.types import InstanceName
from migration.ports import KvShape

FACTS: Final = FIRST.migration
"""Of the environment's own pool."""
_SELF_TEST: Final = "self_test"
_ALLOWED: Final = "allowed"
_WHY: Final = "why"
_SHAPE: Final = "shape:"


@dataclass(frozen=True, slots=True)
class SelfTest:
    """A request of the pool's own, moved while it ran and compared with one that stayed."""

    at_unix_s: float
    ok: bool
    detail: str
    source: str
    destination: str
    downtime_ms: float | None = None
    is_conclusive: bool = True
    """False: it could not be carried out, which says nothing about answers; it is repeated."""


@dataclass(frozen=True, slots=True)
class MoveFacts:
    """What the pool process has said so far."""

    allowed: bool | None = None
    """None: it has not said anything yet."""
    why: str = ""
    """Why moves are not allowed, in words."""
    self_test: SelfTest | None = None
    """The last one; None: there was none yet."""
    shapes: dict[InstanceName, KvShape] = field(default_factory=dict)
    """By instance; also of instances that have gone meanwhile."""


def write_self_test(store: "redis.Redis[bytes]", test: SelfTest, keys: PoolKeys = FIRST) -> None:
    """Keeps the result of a self-test. Blocking. Raises: redis.RedisError."""
    store.hset(keys.migration, _SELF_TEST, msgspec.json.encode(test))


def write_allowed(
    store: "redis.Redis[bytes]", allowed: bool, why: str, keys: PoolKeys = FIRST
) -> None:
    """Says whether requests may move at all. Blocking. Raises: redis.RedisError."""
    store.hset(keys.migration, mapping={_ALLOWED: "1" if allowed else "0", _WHY: why})


def write_shape(
    store: "redis.Redis[bytes]", instance: InstanceName, shape: KvShape, keys: PoolKeys = FIRST
) -> None:
    """Keeps what an instance's KV blocks look like. Blocking. Raises: redis.RedisError."""
    store.hset(keys.migration, _SHAPE + instance, msgspec.json.encode(shape))


async def read_move_facts(store: "redis.asyncio.Redis[bytes]", keys: PoolKeys = FIRST) -> MoveFacts:
    """Raises: redis.RedisError; ValueError for what another version wrote."""
    found: dict[bytes, bytes] = await store.hgetall(keys.migration)
    fields = {name.decode(): value for name, value in found.items()}
    test = fields.get(_SELF_TEST)
    return MoveFacts(
        allowed=None if _ALLOWED not in fields else fields[_ALLOWED] == b"1",
        why=fields.get(_WHY, b"").decode(),
        self_test=None if test is None else msgspec.json.decode(test, type=SelfTest),
        shapes={
            InstanceName(name.removeprefix(_SHAPE)): msgspec.json.decode(value, type=KvShape)
            for name, value in fields.items()
            if name.startswith(_SHAPE)
        },
    )
