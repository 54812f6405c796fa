"""Connections to the store. Whoever uses one decides about retries, so the client itself makes
none."""

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

CONNECT_TIMEOUT_S = 1.0
"""A store on the same machine or network accepts within milliseconds."""
ANSWER_TIMEOUT_S = 2.0
"""Longest answer: one script call of a full batch takes about 5 ms; beyond this the store hangs."""

ASYNC_TIMEOUT_S = 5.0
"""For an event loop that also does other work: hundreds of requests at once keep it from its
sockets for a second or two, and that is no dead store."""
ASYNC_CONNECTIONS_MAX = 32
"""Two follow channels for good; the rest answer within a millisecond each."""

NO_NOTICES = MaintNotificationsConfig(enabled=False)
"""With these notices of managed stores on, as by default, the client gives out idle connections
without a look whether they have been closed: after a restart of the store each of them would cost
a request."""


def connect(url: str) -> "redis.Redis[bytes]":
    """Returns a blocking client; it connects when first used."""
    return redis.Redis.from_url(
        url,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        socket_timeout=ANSWER_TIMEOUT_S,
        socket_keepalive=True,
        retry=Retry(NoBackoff(), 0),
        retry_on_timeout=False,
        maint_notifications_config=NO_NOTICES,
    )


def connect_async(url: str) -> "redis.asyncio.Redis[bytes]":
    """Returns an asyncio client; it connects when first used.

    Its calls share a few connections and wait for one: a burst of requests that opened one each
    would spend its time on handshakes.
    """
    pool = redis.asyncio.BlockingConnectionPool.from_url(
        url,
        max_connections=ASYNC_CONNECTIONS_MAX,
        timeout=ASYNC_TIMEOUT_S,
        socket_connect_timeout=ASYNC_TIMEOUT_S,
        socket_timeout=ASYNC_TIMEOUT_S,
        socket_keepalive=True,
        retry=AsyncRetry(NoBackoff(), 0),
        retry_on_timeout=False,
        maint_notifications_config=NO_NOTICES,
    )
    return redis.asyncio.Redis.from_pool(pool)
