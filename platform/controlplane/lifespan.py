"""Start and stop of a web process, as its ASGI server announces them."""

import logging

from controlplane.fleet.observer import fleet_watch
from controlplane.gateway.exchange import Receive, Send
from controlplane.gateway.runtime import Runtime

logger = logging.getLogger(__name__)


async def run_lifespan(receive: Receive, send: Send, runtime: Runtime) -> None:
    """Starts the runtime, waits for the server's end, stops it."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await runtime.start()
            fleet_watch().start()
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await fleet_watch().stop()
            await runtime.stop()
            await send({"type": "lifespan.shutdown.complete"})
            return
