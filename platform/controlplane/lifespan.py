"""Start and stop of a web process, as its ASGI server announces them."""

import asyncio
import signal
import threading
from types import FrameType

from controlplane.fleet.watch import watches_start, watches_stop
from controlplane.gateway.exchange import Receive, Send
from controlplane.gateway.pools import Pools
from controlplane.usage.prices import price_book


async def run_lifespan(receive: Receive, send: Send, pools: Pools) -> None:
    """Starts runtimes and watch, waits for the server's end, stops them."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            price_book().start()
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


def _hear_of_stop(pools: Pools) -> None:
    """Has the runtimes told of SIGTERM and SIGINT, before the server does its own part.

    The server announces its end only when all connections are closed, which is too late for those.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        servers = signal.getsignal(number)

        def handle(caught: int, frame: FrameType | None, servers: object = servers) -> None:
            loop.call_soon_threadsafe(pools.begin_stop)
            if callable(servers):
                servers(caught, frame)

        signal.signal(number, handle)
