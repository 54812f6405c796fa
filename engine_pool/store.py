"""Connections to the store. Whoever uses one decides about retries, so the client itself makes
none."""

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

CONNECT_TIMEOUT_S = 1.0
"""A store on the same machine or network accepts within milliseconds."""
ANSWER_TIMEOUT_S = 2.0
"""Longest answer: one script call of a full batch takes about 5 ms; beyond this the store hangs."""


def connect(url: str) -> "redis.Redis[bytes]":
    """Returns a blocking client; it connects when first used."""
    return redis.Redis.from_url(
        url,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        socket_timeout=ANSWER_TIMEOUT_S,
        socket_keepalive=True,
        retry=Retry(NoBackoff(), 0),
        retry_on_timeout=False,
    )


def connect_async(url: str) -> "redis.asyncio.Redis[bytes]":
    """Returns an asyncio client; it connects when first used."""
    return redis.asyncio.Redis.from_url(
        url,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        socket_timeout=ANSWER_TIMEOUT_S,
        socket_keepalive=True,
        retry=AsyncRetry(NoBackoff(), 0),
        retry_on_timeout=False,
    )
