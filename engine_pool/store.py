"""Connections to the store. Whoever uses one decides about retries, so the client itself makes
none."""

import asyncio
from collections.abc import Iterable

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


class _Cancellable(redis.asyncio.connection.AbstractConnection):
    """A connection whose user can always be cancelled.

    redis.asyncio's own sends with asyncio.wait_for, which in Python 3.11 returns as if nothing had
    happened when it is cancelled just after the sending has ended: whoever waits for the end of a
    loop that asks the store would wait for ever.
    """

    async def send_packed_command(
        self, command: bytes | str | Iterable[bytes], check_health: bool = True
    ) -> None:
        """Sends within `socket_timeout` seconds, as AbstractConnection.send_packed_command does.

        Raises: redis.TimeoutError; redis.ConnectionError. The connection is closed with either.
        """
        if not self.is_connected:
            await self.connect_check_health(check_health=False)
        if check_health:
            await self.check_health()
        if isinstance(command, str):
            command = command.encode()
        parts = [command] if isinstance(command, bytes) else command
        try:
            async with asyncio.timeout(self.socket_timeout):
                await self._send_packed_command(parts)
        except TimeoutError:
            await self.disconnect(nowait=True)
            raise redis.TimeoutError("Timeout writing to socket") from None
        except OSError as error:
            await self.disconnect(nowait=True)
            raise redis.ConnectionError(f"Error while writing to socket: {error}") from error
        except BaseException:
            # Half a command may be on its way: nothing can follow it.
            await self.disconnect(nowait=True)
            raise


class _Plain(_Cancellable, redis.asyncio.Connection):
    """To a host and port."""


class _Tls(_Cancellable, redis.asyncio.SSLConnection):
    """To a host and port, with TLS."""


class _Local(_Cancellable, redis.asyncio.UnixDomainSocketConnection):
    """To a socket in the file system."""


_CANCELLABLE = {
    redis.asyncio.Connection: _Plain,
    redis.asyncio.SSLConnection: _Tls,
    redis.asyncio.UnixDomainSocketConnection: _Local,
}


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
    pool.connection_class = _CANCELLABLE[pool.connection_class]
    return redis.asyncio.Redis.from_pool(pool)
