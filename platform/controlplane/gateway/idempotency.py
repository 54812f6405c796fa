"""`Idempotency-Key`: the same request sent twice runs once, and both get its answer.

Of whole answers alone; a stream is resumed by `Last-Event-ID` instead. Who sends a key that is in
use with the same body waits for that answer, at any web process; with another body it is an error.
What failed or whose client left is forgotten, so the next one with the key runs. Replays are not
counted by any limit.

| key | type | holds |
|---|---|---|
| ferry:once:<tenant>:<digest of endpoint and key> | hash | `body`: its digest, `owner`; `answer` |
"""

import asyncio
import contextlib
import hashlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import redis

from controlplane.gateway.errors import STARTING_RETRY_S, ApiError
from engine_pool.task_end import end_tasks

if TYPE_CHECKING:
    from redis.asyncio import Redis

HEADER: Final = "Idempotency-Key"
REPLAYED: Final = {"idempotent-replayed": "true"}
"""As Stripe's API tells it."""
KEY_MAX_CHARS: Final = 255
KEPT_S: Final = 600
"""How long an answer is there for a repeat: longer than clients retry."""
ANSWER_MAX_BYTES: Final = 1024 * 1024
"""A larger answer is not kept: a repeat runs again."""
CLAIM_MS: Final = 10_000
"""How long a process that says nothing keeps a key to itself."""
CLAIM_EVERY_S: Final = 3.0
LOOK_EVERY_S: Final = 0.2
STORE_TIMEOUT_S: Final = 2.0

# KEYS: the key. ARGV: digest of the body, owner, ms. Returns {"mine"}, {"other"}: another body,
# {"wait"}, or {"done", answer}.
_CLAIM: Final = """
local f = redis.call('HMGET', KEYS[1], 'body', 'answer')
if not f[1] then
  redis.call('HSET', KEYS[1], 'body', ARGV[1], 'owner', ARGV[2])
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  return {'mine'}
end
if f[1] ~= ARGV[1] then return {'other'} end
if f[2] then return {'done', f[2]} end
return {'wait'}
"""
# KEYS: the key. ARGV: owner, ms, the answer: "" keeps the claim, "-" gives it up.
_KEEP: Final = """
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
if ARGV[3] == '-' then redis.call('UNLINK', KEYS[1]) return 1 end
if ARGV[3] ~= '' then redis.call('HSET', KEYS[1], 'answer', ARGV[3]) end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
"""


@dataclass(frozen=True, slots=True)
class Once:
    """A request that is to run once."""

    tenant_id: int
    endpoint: str
    key: str
    body: bytes

    @property
    def store_key(self) -> str:
        name = hashlib.sha256(f"{self.endpoint} {self.key}".encode()).hexdigest()
        return f"ferry:once:{self.tenant_id}:{name}"


def check_key(key: str, *, is_stream: bool) -> None:
    """Raises: ApiError 400 for a key that cannot be one, or that comes with a stream."""
    if not (0 < len(key) <= KEY_MAX_CHARS and key.isascii() and key.isprintable()):
        raise ApiError(
            400,
            f"{HEADER} must be 1 to {KEY_MAX_CHARS} printable ASCII characters.",
            param=HEADER,
        )
    if is_stream:
        raise ApiError(
            400,
            f"{HEADER} is for answers that are not streamed; a stream is resumed by Last-Event-ID.",
            param=HEADER,
        )


async def run_once(
    store: "Redis[bytes]", once: Once, run: Callable[[], Awaitable[bytes]]
) -> tuple[bytes, bool]:
    """Returns the answer, and whether it is that of an earlier request.

    Raises: ApiError of `run`; 400 for a key that was used with another body; 503.
    """
    body, owner = hashlib.sha256(once.body).hexdigest(), uuid.uuid4().hex
    while True:
        found = await _asked(store, _CLAIM, once, body, owner, CLAIM_MS)
        match found:
            case [b"done", answer]:
                return answer, True
            case [b"other"]:
                raise ApiError(
                    400,
                    f"This {HEADER} was used with another body; take a new one for each request.",
                    "idempotency_key_reused",
                    HEADER,
                )
            case [b"mine"]:
                return await _run(store, once, owner, run), False
        await asyncio.sleep(LOOK_EVERY_S)


async def _run(
    store: "Redis[bytes]", once: Once, owner: str, run: Callable[[], Awaitable[bytes]]
) -> bytes:
    kept = b"-"
    try:
        async with _claimed(store, once, owner):
            answer = await run()
        if len(answer) <= ANSWER_MAX_BYTES:
            kept = answer
        return answer
    finally:
        # The claim ends by itself when this does not get through.
        with contextlib.suppress(ApiError):
            await asyncio.shield(_asked(store, _KEEP, once, owner, KEPT_S * 1000, kept))


@contextlib.asynccontextmanager
async def _claimed(store: "Redis[bytes]", once: Once, owner: str) -> AsyncIterator[None]:
    """Keeps the key while the block runs."""

    async def keep() -> None:
        while True:
            await asyncio.sleep(CLAIM_EVERY_S)
            with contextlib.suppress(ApiError):
                await _asked(store, _KEEP, once, owner, CLAIM_MS, b"")

    keeper = asyncio.create_task(keep(), name="idempotency key")
    try:
        yield
    finally:
        await end_tasks([keeper])


async def _asked(
    store: "Redis[bytes]", script: str, once: Once, *args: str | int | bytes
) -> object:
    """Returns a script's answer. Raises: ApiError 503."""
    try:
        async with asyncio.timeout(STORE_TIMEOUT_S):
            return await store.eval(script, 1, once.store_key, *args)
    except (redis.RedisError, OSError, TimeoutError):
        raise ApiError(
            503,
            "The store does not answer, so no request can be taken now.",
            "store_unavailable",
            retry_after_s=STARTING_RETRY_S,
        ) from None
