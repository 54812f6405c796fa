"""`python -m engine_pool.main`: the pool process. Settings come from the environment (config.py).

Exit codes: 0 after SIGTERM or SIGINT, 2 for a setting that cannot work, 1 for anything else, an
event loop that stands still among it.
"""

import asyncio
import logging
import os
import signal
import sys

import redis

from engine_pool.config import PoolConfig
from engine_pool.errors import ConfigError, EngineFailed
from engine_pool.launcher import connect_ray
from engine_pool.loop_guard import guard_loop
from engine_pool.pool_set import PoolSet
from engine_pool.pool_spec import WANTED
from engine_pool.served_model import resolve_model
from engine_pool.store import connect

log = logging.getLogger("engine_pool")

EXIT_BAD_SETTING = 2
STOP_TIMEOUT_S = 2.5
"""Longest stop; the supervisor kills this process after 3 s."""


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stdout)
    try:
        config = PoolConfig.from_env(os.environ)
        if not _is_published(config):
            # The environment's pool is all there is: what it lacks is told at once.
            resolve_model(config)
    except ConfigError as error:
        log.error("%s", error)
        return EXIT_BAD_SETTING
    try:
        connect_ray(config)
    except EngineFailed as error:
        log.error("%s", error)
        return 1
    return asyncio.run(_serve(PoolSet(config)))


def _is_published(config: PoolConfig) -> bool:
    """Says whether the store tells which pools are wanted; no while it does not answer yet."""
    store = connect(config.redis_url)
    try:
        return bool(store.exists(WANTED))
    except redis.RedisError:
        return False
    finally:
        store.close()


async def _serve(pools: PoolSet) -> int:
    serving = asyncio.create_task(pools.run(), name="pools")
    guard = asyncio.create_task(guard_loop(), name="guard")
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, serving.cancel)
    code = 0
    try:
        await serving
    except asyncio.CancelledError:
        log.info("stopping")
    except Exception as error:  # outermost loop of the process
        log.error("the pool process failed", exc_info=error)
        code = 1
    if code == 0:
        await _stop(pools)
    guard.cancel()
    return code


async def _stop(pools: PoolSet) -> None:
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await pools.stop()
    except TimeoutError:
        log.warning("the engines did not all stop within %.1f s", STOP_TIMEOUT_S)
        pools.kill_engines()


if __name__ == "__main__":
    sys.exit(main())
