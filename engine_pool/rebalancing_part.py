"""The rebalancer as a part of the pool process: its view of the pool, its way to the engines."""

import asyncio
import logging
from collections.abc import MutableMapping
from typing import Final

from engine_pool.config import PoolConfig
from engine_pool.live_view import LiveView
from engine_pool.moves import Moves
from engine_pool.ray_gate import RayGate
from engine_pool.rebalancer import Rebalancer, Say
from engine_pool.store import connect_async
from engine_pool.types import InstanceName

log = logging.getLogger(__name__)

START_AGAIN_S: Final = 5.0
"""After something that nobody foresaw; the instances are kept meanwhile."""


async def run_rebalancer(
    config: PoolConfig, say: Say, obstacles: MutableMapping[InstanceName, str]
) -> None:
    """Follows the pool and rebalances it until it is cancelled; raises nothing else. `obstacles`:
    is kept full of why the requests of draining instances do not move."""
    while True:
        try:
            await _run_once(config, say, obstacles)
        except Exception:
            log.exception("the rebalancer broke; it starts again in %g s", START_AGAIN_S)
        await asyncio.sleep(START_AGAIN_S)


async def _run_once(
    config: PoolConfig, say: Say, obstacles: MutableMapping[InstanceName, str]
) -> None:
    store = connect_async(config.redis_url)
    live, gate = LiveView(store, config.keys), RayGate(config)
    moves = Moves(live, gate, config.headroom)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(live.run(), name="live view")
            tasks.create_task(gate.run(), name="ray")
            rebalancer = Rebalancer(config, live, moves, store, say, obstacles)
            tasks.create_task(rebalancer.run(), name="rounds")
    finally:
        await store.aclose()
