"""Connections to the store: what a restart of the store leaves of them."""

import asyncio

from engine_pool.store import connect, connect_async
from tests.embedded_store import started_store

BURST = 8
"""Calls at once, so that as many connections are open and then idle."""


async def test_idle_connections_to_a_restarted_store_cost_no_call() -> None:
    server = started_store()
    try:
        url = f"redis://127.0.0.1:{server.port}/0"
        store, blocking = connect_async(url), connect(url)
        await asyncio.gather(*(store.ping() for _ in range(BURST)))
        blocking.ping()
        port = server.port
        # In a thread: the event loop hears meanwhile that its connections were closed.
        await asyncio.to_thread(server.stop)
        server = await asyncio.to_thread(started_store, port)
        answers = await asyncio.gather(*(store.ping() for _ in range(BURST)))
        assert answers == [True] * BURST
        assert blocking.ping()
        await store.aclose()
        blocking.close()
    finally:
        server.stop()
