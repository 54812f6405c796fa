"""The gateway's queue on the web server's event loop, whose timers are not asyncio's."""

import asyncio

import uvloop

from tests.controlplane.test_gateway_queue import pool


def test_a_burst_waits_and_goes_on_uvloop(store_url: str) -> None:
    async def burst() -> None:
        async with pool(store_url, "i-01") as p:
            tasks = [p.send(f"r{n}") for n in range(20)]
            await p.queued(20)
            p.report(used=0)
            await p.queued(11)
            p.report(used=0, running=p.released)
            await p.queued(2)
            p.report(used=0, running=())
            await asyncio.gather(*tasks)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(burst())
