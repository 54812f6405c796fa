"""Who may check the pools now: one process, for a bounded time, with a number that only grows.

| key | holds |
|---|---|
| ferry:scaling:lease | the holder's own word, until it gives the lease back or the time is over |
| ferry:scaling:fence | the number of the last lease |

A lease alone keeps nobody from deciding twice: a process that is stopped may wake up after its
lease has ended and does not know it. Therefore its number, the fence, is compared in the
transaction that stores the decision (loop.py): who comes with a lower one than has decided before
decides nothing.
(https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html)
"""

import uuid
from dataclasses import dataclass
from typing import Final

import redis

LEASE: Final = "ferry:scaling:lease"
FENCE: Final = "ferry:scaling:fence"
LEASE_S: Final = 15.0
"""A check takes some 20 ms a pool, and its longest waits (store 2 s, database 5 s) fit in; renewed
before each pool. When its holder dies, the next check but two is made by another."""

_TAKE: Final = """
if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 0 end
local fence = redis.call('INCR', KEYS[2])
if fence <= tonumber(ARGV[3]) then
  fence = tonumber(ARGV[3]) + 1
  redis.call('SET', KEYS[2], fence)
end
return fence
"""
_RENEW: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
_GIVE_BACK: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"""


@dataclass(frozen=True, slots=True)
class Lease:
    holder: str
    fence: int


def take(store: "redis.Redis[bytes]", *, above: int = 0, lease_s: float = LEASE_S) -> Lease | None:
    """Returns the lease; None while somebody else has it.

    `above`: the highest fence in the database. A store that has lost its memory counts on from
    there; from 1 on, nobody would be let in for as many checks as there ever were.
    Raises: redis.RedisError.
    """
    holder = uuid.uuid4().hex
    fence = int(store.eval(_TAKE, 2, LEASE, FENCE, holder, int(lease_s * 1000), above))
    return Lease(holder, fence) if fence else None


def renew(store: "redis.Redis[bytes]", lease: Lease, *, lease_s: float = LEASE_S) -> bool:
    """Prolongs a lease; False: it is over, perhaps somebody else's. Raises: redis.RedisError."""
    return bool(store.eval(_RENEW, 1, LEASE, lease.holder, int(lease_s * 1000)))


def give_back(store: "redis.Redis[bytes]", lease: Lease) -> None:
    """Ends a lease; nothing when it is over already. Raises: redis.RedisError."""
    store.eval(_GIVE_BACK, 1, LEASE, lease.holder)
