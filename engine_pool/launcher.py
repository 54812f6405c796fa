"""Starts, finds and stops engine actors. The pool's only file that speaks to Ray.

An actor is detached and named `engine:<pool>:<instance>:<incarnation>`, so it outlives the pool
process, and a new one finds it again. Ray does not restart actors: the pool decides about that.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, Final

import ray
import ray.exceptions
import ray.util
from ray.util.scheduling_strategies import NodeLabelSchedulingStrategy, NotIn

from engine_pool.class_rules import ClassRules
from engine_pool.config import RAY_NAMESPACE, PoolConfig
from engine_pool.engine_process import EngineProcess
from engine_pool.engine_spec import EngineSpec, SampleText
from engine_pool.errors import EngineFailed
from engine_pool.ports import Pong
from engine_pool.served_model import ServedModel
from engine_pool.types import EngineKind, InstanceName

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 60.0
"""Ray starts beside the pool; on a busy machine that takes ten seconds."""
CONNECT_RETRY_S: Final = 0.5
ASK_TIMEOUT_S: Final = 10.0
"""Of a question to an engine: it answers after the step that it is in."""

ENGINE_PREFIX: Final = "engine:"
"""Of the names of all engine actors."""
NODE_ID_LABEL: Final = "ray.io/node-id"
"""Ray's own label of each node."""


class RayEngine:
    """One engine actor, as the pool drives it."""

    def __init__(self, actor: str, handle: Any) -> None:
        self.actor = actor
        """Ray's name, by which web processes find it."""
        self._handle = handle

    async def start(self, timeout_s: float) -> Pong:
        """Starts the engine and waits until it takes requests. Raises: EngineFailed."""
        return await self._call("start", timeout_s)

    async def ping(self, timeout_s: float) -> Pong:
        """Raises: EngineFailed when it does not answer in time."""
        return await self._call("ping", timeout_s)

    async def _call(self, method: str, timeout_s: float) -> Pong:
        try:
            async with asyncio.timeout(timeout_s):
                return Pong(**await getattr(self._handle, method).remote())
        except TimeoutError:
            raise EngineFailed(f"no answer to {method} for {timeout_s:.0f} s") from None
        except ray.exceptions.RayError as error:
            raise EngineFailed(_in_words(error)) from error

    async def wait_end(self) -> str:
        """Returns, in words, why the actor's process ended, once it has."""
        try:
            await self._handle.wait_end.remote()
        except ray.exceptions.RayError as error:
            return _in_words(error)
        return "it ended by itself"

    async def submit_probe(self, request_id: str, prompt_tokens: int, max_tokens: int) -> None:
        """Runs a request of the pool's own. Raises: EngineFailed."""
        refused = await self._ask("submit_probe", request_id, prompt_tokens, max_tokens)
        if refused:
            raise EngineFailed(f"{self.actor} refused the self-test's request: {refused}")

    async def migrate(self, wish: dict[str, object]) -> tuple[str, str] | None:
        """Begins a move from this engine; returns (code, why) when it is refused. Raises:
        EngineFailed."""
        refused: tuple[str, str] | None = await self._ask("migrate", wish)
        return refused

    async def abort(self, request_ids: list[str]) -> None:
        """Ends requests. Raises: EngineFailed."""
        await self._ask("abort", request_ids)

    async def forbid_moves(self, why: str) -> None:
        """Lets no further move begin at this engine; "": lets them again. Raises: EngineFailed."""
        await self._ask("forbid_moves", why)

    async def close_door(self, why: str) -> None:
        """Has it take nothing new. Raises: EngineFailed."""
        await self._ask("close_door", why)

    async def open_door(self) -> None:
        """Has it take requests again. Raises: EngineFailed."""
        await self._ask("open_door")

    async def fail_left(self, code: str, why: str) -> None:
        """Ends all its requests with an error (EngineActor.fail_left). Raises: EngineFailed."""
        await self._ask("fail_left", code, why)

    async def use_classes(self, classes: ClassRules) -> None:
        """Has priority classes treated so. Raises: EngineFailed."""
        await self._ask("use_classes", dict(classes))

    async def _ask(self, method: str, *args: object) -> Any:
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                return await getattr(self._handle, method).remote(*args)
        except TimeoutError:
            raise EngineFailed(f"no answer to {method} for {ASK_TIMEOUT_S:.0f} s") from None
        except ray.exceptions.RayError as error:
            raise EngineFailed(_in_words(error)) from error

    async def stop(self, timeout_s: float) -> None:
        """Ends its streams with a typed error, then the process, at the latest after the time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._handle.stop.remote()
        except (TimeoutError, ray.exceptions.RayError) as error:
            log.info("%s is killed without a farewell: %s", self.actor, type(error).__name__)
        self.kill()

    def kill(self) -> None:
        """Ends the process at once; does nothing when it is gone."""
        try:
            ray.kill(self._handle, no_restart=True)
        except ray.exceptions.RayError as error:
            log.info("%s could not be killed: %s", self.actor, type(error).__name__)


class Launcher:
    """Makes engine actors of one pool."""

    def __init__(
        self,
        config: PoolConfig,
        model: ServedModel,
        max_model_len: int,
        text: SampleText | None,
        neighbours: Callable[[], int] = lambda: 0,
    ) -> None:
        """`neighbours`: engines of other pools, with which these share the machine's cores."""
        self._config = config
        self._neighbours = neighbours
        self._model = model
        self._max_model_len = max_model_len
        self._text = text
        self._prefix = f"{ENGINE_PREFIX}{config.pool}:"
        self.avoided_nodes: Collection[str] = ()
        """Ray's ids of nodes that get no new engine as long as another one can have it."""

    def use(self, config: PoolConfig) -> None:
        """Starts engines with these settings from now on; those that run keep theirs."""
        self._config = config

    def spec(self, instance: InstanceName, incarnation: str) -> EngineSpec:
        engines = max(1, self._config.instances + self._neighbours())
        share = max(1, (os.cpu_count() or 1) // engines)
        return EngineSpec(
            instance=instance,
            incarnation=incarnation,
            config=self._config,
            model_path=self._model.path,
            threads=self._config.engine_threads or share,
            max_model_len=self._max_model_len,
            sample_text=self._text,
        )

    @property
    def fingerprint(self) -> str:
        """Of the engines that it starts now (EngineSpec.fingerprint)."""
        return self.spec(InstanceName("any"), "any").fingerprint

    @property
    def installation(self) -> str:
        """Of its engines (EngineSpec.installation)."""
        return self.spec(InstanceName("any"), "any").installation

    def launch(self, instance: InstanceName, incarnation: str) -> RayEngine:
        """Makes the actor; its engine starts with `start`. Returns at once."""
        name = f"{self._prefix}{instance}:{incarnation}"
        wants_gpu = self._config.engine is EngineKind.VLLM and ray.cluster_resources().get("GPU")
        actor_class = ray.remote(EngineProcess).options(
            name=name,
            lifetime="detached",
            max_restarts=0,
            # The machine's cores are shared by configuration, not by Ray's accounts.
            num_cpus=0,
            num_gpus=self._config.tensor_parallel if wants_gpu else 0,
            scheduling_strategy=self._strategy(),
        )
        plain = self.spec(instance, incarnation)
        spec = replace(plain, launched_unix_s=time.time(), told_fingerprint=plain.fingerprint)
        return RayEngine(name, actor_class.remote(spec))

    def _strategy(self) -> Any:
        if not self.avoided_nodes:
            return "SPREAD"
        # Soft: where nobody else can have it, a node that is drained is better than none.
        return NodeLabelSchedulingStrategy(
            hard={}, soft={NODE_ID_LABEL: NotIn(*self.avoided_nodes)}
        )

    def find_living(self) -> dict[str, RayEngine]:
        """Returns the engine actors of this pool that are there already, by name."""
        return {n: e for n, e in find_engines().items() if n.startswith(self._prefix)}


def find_engines() -> dict[str, RayEngine]:
    """Returns all engine actors that there are, of whatever pool or installation, by name."""
    found = {}
    for name in ray.util.list_named_actors():
        if name.startswith(ENGINE_PREFIX):
            try:
                found[name] = RayEngine(name, ray.get_actor(name))
            except ValueError:
                log.info("%s went away while it was looked up", name)
    return found


def connect_ray(config: PoolConfig, timeout_s: float = CONNECT_TIMEOUT_S) -> None:
    """Connects this process to Ray. Raises: EngineFailed when Ray does not answer in time."""
    give_up_s = time.monotonic() + timeout_s
    while True:
        try:
            ray.init(
                address=config.ray_address,
                namespace=RAY_NAMESPACE,
                logging_level=logging.WARNING,
                log_to_driver=False,
            )
            return
        except (ConnectionError, RuntimeError, ray.exceptions.RayError) as error:
            if time.monotonic() > give_up_s:
                raise EngineFailed(
                    f"Ray at {config.ray_address} does not answer: {error}"
                ) from error
            time.sleep(CONNECT_RETRY_S)


def _in_words(error: ray.exceptions.RayError) -> str:
    if isinstance(error, ray.exceptions.RayTaskError):
        return str(error.cause)
    if isinstance(error, ray.exceptions.RayActorError):
        # Ray's own memory monitor says so in these words; the kernel's is seen by its counters.
        if "running low on memory" in str(error):
            return "out of memory: Ray ended its process"
        return "its process ended"
    return f"{type(error).__name__}: {str(error).splitlines()[0]}"
