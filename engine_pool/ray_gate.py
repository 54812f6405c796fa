"""Calls to engine actors over Ray. The only module of the web process that knows Ray.

Ray is imported and joined in a thread when the process starts: it takes seconds, and pages answer
meanwhile.
"""

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Awaitable, Sequence
from typing import Any, Final, TypeVar

from engine_pool.config import RAY_NAMESPACE, PoolConfig
from engine_pool.errors import InstanceLost, MoveRefused
from engine_pool.questions import Question

logger = logging.getLogger(__name__)

JOIN_PATIENCE_S: Final = 60.0
"""How long Ray may take to be there after this process's start before it counts as away."""
ASK_EVERY_S: Final = 2.0
ASK_TIMEOUT_S: Final = 5.0
"""Ray's head answers within milliseconds; a machine whose cores are all busy takes a second."""
JOIN_RETRY_S: Final = 2.0
"""Between two tries to join Ray: its head starts together with this process."""

T = TypeVar("T")


class RayGate:
    """One a web process; `run` is the caller's task. Implements outbox.EngineGate and
    moves.MoveGate."""

    def __init__(self, config: PoolConfig) -> None:
        self._config = config
        self._joined = asyncio.Event()
        self._handles: dict[str, Any] = {}
        self._began_s = time.monotonic()
        self._answers: bool | None = None

    @property
    def answers(self) -> bool | None:
        """Whether Ray's head answers; None: not known yet. Engines may go on without it, and calls
        to those whose handles are open reach them."""
        if self._answers is None and time.monotonic() - self._began_s > JOIN_PATIENCE_S:
            return False
        return self._answers

    @property
    def is_joined(self) -> bool:
        """Whether this process takes part in the Ray cluster."""
        return self._joined.is_set()

    async def run(self) -> None:
        """Joins Ray, trying until it works; then asks its head for signs of life until it is
        cancelled."""
        was_told = False
        while True:
            try:
                await asyncio.to_thread(_join, self._config.ray_address)
                break
            # Ray raises ConnectionError, RuntimeError and its own kinds when no head answers.
            except Exception as error:  # noqa: BLE001
                if not was_told:
                    logger.warning("Ray does not answer yet: %s", type(error).__name__)
                    was_told = True
            await asyncio.sleep(JOIN_RETRY_S)
        _take_signals_back()
        self._joined.set()
        logger.info("joined Ray at %s", self._config.ray_address)
        head = Question("ray probe", _ask_head, ASK_TIMEOUT_S)
        while True:
            answers = await head.answered()
            if not answers and self._answers is not False:
                logger.warning("Ray's head does not answer; engines that are known go on")
            self._answers = answers
            await asyncio.sleep(ASK_EVERY_S)

    async def submit(self, actor: str, blob: bytes) -> dict[str, str]:
        """As in EngineGate."""
        handle = await self._handle(actor)
        refused = await self._call(actor, handle.submit.remote(blob))
        return dict(refused)

    async def abort(self, actor: str, request_ids: Sequence[str]) -> None:
        """As in EngineGate."""
        handle = await self._handle(actor)
        await self._call(actor, handle.abort.remote(list(request_ids)))

    async def migrate(self, actor: str, wish: dict[str, object]) -> tuple[str, str] | None:
        """As in MoveGate."""
        handle = await self._handle(actor)
        refused = await self._call(actor, handle.migrate.remote(wish))
        return None if refused is None else (refused[0], refused[1])

    async def cancel_move(self, actor: str, migration_id: str) -> bool:
        """As in MoveGate."""
        handle = await self._handle(actor)
        return bool(await self._call(actor, handle.cancel_move.remote(migration_id)))

    async def measure(
        self, actor: str, destination_actor: str, size_bytes: int
    ) -> dict[str, float]:
        """As in MoveGate."""
        handle = await self._handle(actor)
        answer = await self._call(actor, handle.measure.remote(destination_actor, size_bytes))
        if "error" in answer:
            raise MoveRefused(str(answer["error"]))
        return dict(answer)

    async def _handle(self, actor: str) -> Any:
        if actor not in self._handles:
            if not self._joined.is_set():
                raise InstanceLost("This server has not joined Ray yet.")
            self._handles[actor] = await self._call(actor, asyncio.to_thread(_find, actor))
        return self._handles[actor]

    async def _call(self, actor: str, answer: Awaitable[T]) -> T:
        import ray

        try:
            async with asyncio.timeout(self._config.submit_timeout_s):
                return await answer
        except TimeoutError:
            self._handles.pop(actor, None)
            raise InstanceLost(
                f"{actor} did not answer for {self._config.submit_timeout_s:g} s."
            ) from None
        # ValueError: no actor has this name.
        except (ray.exceptions.RayError, ValueError) as error:
            self._handles.pop(actor, None)
            raise InstanceLost(f"{actor} is gone: {type(error).__name__}.") from error


def _join(address: str) -> None:
    import ray

    if not ray.is_initialized():
        ray.init(
            address=address,
            namespace=RAY_NAMESPACE,
            log_to_driver=False,
            logging_level=logging.WARNING,
            configure_logging=False,
        )


def _ask_head() -> bool:
    import ray

    return bool(ray.nodes())


def _take_signals_back() -> None:
    """Puts this process's own handlers back: Ray's print a stack trace on SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in (signal.SIGTERM, signal.SIGINT):
        handler = signal.getsignal(number)
        if handler is not None:
            signal.signal(number, handler)


def _find(actor: str) -> Any:
    import ray

    return ray.get_actor(actor, namespace=RAY_NAMESPACE)
