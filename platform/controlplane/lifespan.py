"""Start and stop of a web process, as its ASGI server announces them."""

import asyncio
import logging
import signal
import threading
from types import FrameType
from typing import Any, Final

from django.conf import settings

from controlplane.fleet.publishing import pools_publish_soon
from controlplane.fleet.watch import watches_start, watches_stop
from controlplane.gateway.exchange import Receive, Send
from controlplane.gateway.pools import Pools
from controlplane.leaving import leaving
from controlplane.usage.prices import price_book

logger = logging.getLogger(__name__)

PUBLISH_TIMEOUT_S: Final = 3.0
"""The pages come up without store and database, too."""


async def run_lifespan(receive: Receive, send: Send, pools: Pools) -> None:
    """Starts runtimes and watch, waits for the server's end, stops them."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            price_book().start()
            await _publish()
            await pools.start()
            watches_start()
            pools.listen(watches_start)
            _hear_of_stop(pools)
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await watches_stop()
            await pools.stop()
            await asyncio.to_thread(price_book().stop)
            await send({"type": "lifespan.shutdown.complete"})
            return


async def _publish() -> None:
    """Says which pools are wanted before they are looked for; the worker does so again."""
    try:
        async with asyncio.timeout(PUBLISH_TIMEOUT_S):
            await asyncio.to_thread(pools_publish_soon)
    except TimeoutError:
        logger.warning("the database or the store is slow; the pools are told of later")


def _hear_of_stop(pools: Pools) -> None:
    """Has SIGTERM and SIGINT begin a stop in steps (leaving.py), before the server does its part:
    that closes the port and all WebSockets at once. The same signal again leaves the steps out.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    loop = asyncio.get_running_loop()
    caught_once: set[int] = set()
    for number in (signal.SIGTERM, signal.SIGINT):
        servers = signal.getsignal(number)

        def handle(caught: int, frame: FrameType | None, servers: Any = servers) -> None:
            def finish() -> None:
                if callable(servers):
                    servers(caught, None)

            # Ctrl-C sends one, and the supervisor the other.
            if caught in caught_once:
                finish()
            caught_once.add(caught)
            loop.call_soon_threadsafe(leaving.begin, pools, settings.WEB_GRACE_S, finish)

        signal.signal(number, handle)
