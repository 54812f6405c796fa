"""`python -m engine_pool.main`: the pool process. Settings come from the environment (config.py).

Exit codes: 0 after SIGTERM or SIGINT, 2 for a setting that cannot work, 1 for anything else.
"""

import asyncio
import logging
import os
import signal
import sys

from engine_pool.board import Board
from engine_pool.config import PoolConfig
from engine_pool.errors import ConfigError, EngineFailed
from engine_pool.launcher import Launcher, connect_ray
from engine_pool.scheduler import Scheduler
from engine_pool.served_model import ServedModel, longest_context_tokens, resolve_model, sample_text
from engine_pool.types import EngineKind

log = logging.getLogger("engine_pool")

EXIT_BAD_SETTING = 2
STOP_TIMEOUT_S = 2.5
"""Longest stop; the supervisor kills this process after 3 s."""


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stdout)
    try:
        config = PoolConfig.from_env(os.environ)
        model = resolve_model(config)
        is_simulated = config.engine is EngineKind.SIMULATED
        text = sample_text(model) if is_simulated else None
        max_model_len = longest_context_tokens(model, config) if is_simulated else 0
    except ConfigError as error:
        log.error("%s", error)
        return EXIT_BAD_SETTING
    log.info(
        "pool %s: %d x %s engine, %s", config.pool, config.instances, config.engine, model.name
    )
    try:
        connect_ray(config)
    except EngineFailed as error:
        log.error("%s", error)
        return 1
    return asyncio.run(_serve(config, model, Launcher(config, model, max_model_len, text)))


async def _serve(config: PoolConfig, model: ServedModel, launcher: Launcher) -> int:
    board = Board(config.redis_url)
    scheduler = Scheduler(config, model, launcher, board)
    serving = asyncio.create_task(scheduler.run(), name="scheduler")
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, serving.cancel)
    code = 0
    try:
        await serving
    except asyncio.CancelledError:
        log.info("stopping")
    except Exception as error:  # outermost loop of the process
        log.error("the pool failed", exc_info=error)
        code = 1
    if code == 0:
        await _stop(scheduler)
    return code


async def _stop(scheduler: Scheduler) -> None:
    try:
        await asyncio.wait_for(scheduler.stop(), STOP_TIMEOUT_S)
    except TimeoutError:
        log.warning("the engines did not all stop within %.1f s", STOP_TIMEOUT_S)


if __name__ == "__main__":
    sys.exit(main())
