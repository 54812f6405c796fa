"""The workers of a vLLM engine, which run the model: one in this process, or one process a rank.

What a move needs of a worker is asked here. Of a worker process most of it goes over a connection
of its own: a copy is begun, and its end is known, whatever the step thread is doing, so a paused
request waits neither for a step nor for the next look at the boundary between two. Only what the
model runner keeps of a request (its random generator) is asked for by vLLM's own calls, between two
steps: those are not made for several threads. That costs a paused request two short calls.
"""

import logging
import os
import shutil
import socket
import tempfile
from concurrent.futures import Future
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from engine_pool.errors import EngineFailed
from engine_pool.vllm_hooks import check_executor
from engine_pool.vllm_kv import VllmKv
from engine_pool.vllm_plane import open_local_plane
from engine_pool.vllm_rank import RankFacts, all_ranks, prepare_rank
from engine_pool.vllm_sampling_state import forget_state, put_state, read_generator
from migration.ports import KvPlane
from migration.ranked_plane import RankedKvPlane
from migration.remote_plane import PlaneTerms, RemoteKvPlane

if TYPE_CHECKING:
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.worker.gpu_input_batch import CachedRequestState

log = logging.getLogger(__name__)

WORKER_CLASS: Final = "engine_pool.vllm_worker.FerryWorker"
OPEN_TIMEOUT_S: Final = 60.0
"""Longest wait for the workers to connect; they have loaded the model by then."""
CALL_TIMEOUT_S: Final = 30.0
"""Longest wait for a call between two steps: above a step in flight, which goes first."""


class Workers(Protocol):
    """Step thread only, except `open_plane`."""

    @property
    def facts(self) -> RankFacts: ...

    @property
    def is_broken(self) -> bool:
        """Whether a worker has ended by itself: the engine cannot go on."""

    def generator(self, request_id: str) -> bytes | None:
        """See `vllm_sampling_state.read_generator`. V1 runners only."""

    def install(
        self, state: "CachedRequestState", generator: bytes | None, *, forget_first: bool
    ) -> None:
        """See `vllm_sampling_state.put_state`; `forget_first`: and `forget_state`. V1 only."""

    def open_plane(self, terms: PlaneTerms) -> KvPlane:
        """Opens the plane over their KV memory, once. Only where `facts` say that it can move."""

    def close(self) -> None:
        """Is told that the engine closes, before it does."""


def find_workers(core: "EngineCore", ranks: int) -> "OneWorker | WorkerProcesses":
    """Returns the workers of an engine that was just made. Raises: EngineFailed, or vLLM's."""
    return OneWorker(core) if ranks == 1 else WorkerProcesses(core, ranks)


class OneWorker:
    """The worker in this process."""

    is_broken = False

    def __init__(self, core: "EngineCore") -> None:
        scheduler: Any = core.scheduler
        self._runner: Any = core.model_executor.driver_worker.model_runner
        blocks: int = scheduler.kv_cache_config.num_blocks
        is_v2: bool = scheduler.use_v2_model_runner
        self.facts, self.kv = prepare_rank(self._runner, blocks, is_v2=is_v2)

    def generator(self, request_id: str) -> bytes | None:
        return read_generator(self._runner, request_id)

    def install(
        self, state: "CachedRequestState", generator: bytes | None, *, forget_first: bool
    ) -> None:
        if forget_first:
            forget_state(self._runner, state.req_id)
        put_state(self._runner, state, generator)

    def open_plane(self, terms: PlaneTerms) -> KvPlane:
        assert self.kv is not None, "facts say why it cannot move"
        return open_local_plane(self.kv, terms)

    def close(self) -> None:
        return


class WorkerProcesses:
    """Worker processes of vLLM's multiprocessing executor."""

    kv: VllmKv | None = None
    """None: their memory is not in this process."""

    def __init__(self, core: "EngineCore", ranks: int) -> None:
        check_executor(core)
        scheduler: Any = core.scheduler
        self._executor: Any = core.model_executor
        self.is_broken = False
        self._is_closing = False
        with _Door() as door:
            blocks: int = scheduler.kv_cache_config.num_blocks
            args = (str(door.path), blocks, scheduler.use_v2_model_runner)
            facts = self._executor.collective_rpc("ferry_open", OPEN_TIMEOUT_S, args)
            connections = door.accept(ranks)
        self.facts = all_ranks(facts)
        self._planes = [RemoteKvPlane(c, self._ended) for c in connections]

    def generator(self, request_id: str) -> bytes | None:
        # The ranks draw alike: any of them knows.
        state: bytes | None = self._executor.collective_rpc(
            "ferry_generator", CALL_TIMEOUT_S, (request_id,), unique_reply_rank=0
        )
        return state

    def install(
        self, state: "CachedRequestState", generator: bytes | None, *, forget_first: bool
    ) -> None:
        # All answer, so a rank that could not do it ends the engine instead of going on alone.
        args = (state, generator, forget_first)
        self._executor.collective_rpc("ferry_install", CALL_TIMEOUT_S, args)

    def open_plane(self, terms: PlaneTerms) -> KvPlane:
        for plane in self._planes:
            plane.open(terms).add_done_callback(_log_failure)
        return RankedKvPlane(self._planes)

    def close(self) -> None:
        self._is_closing = True

    def _ended(self) -> None:
        """Sees a worker hang up: at once, where vLLM may look for it after seconds."""
        if self._is_closing or self.is_broken:
            return
        self.is_broken = True
        log.error("a worker process of the engine has ended")
        # The others may wait in mid step for the one that is gone, and the step thread for them.
        for worker in self._executor.workers:
            worker.proc.kill()


class _Door:
    """Where the workers connect to: a socket in a folder that only this user may enter."""

    def __enter__(self) -> "_Door":
        self._folder = Path(tempfile.mkdtemp(prefix="ferry-"))
        self.path = self._folder / "door"
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(os.fspath(self.path))
        self._listening.listen()
        self._listening.settimeout(OPEN_TIMEOUT_S)
        return self

    def __exit__(self, *error: object) -> None:
        self._listening.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def accept(self, ranks: int) -> list[Connection]:
        """Returns the connections to the workers in the order of their ranks. Raises:
        EngineFailed."""
        by_rank: dict[int, Connection] = {}
        for _ in range(ranks):
            try:
                accepted, _ = self._listening.accept()
            except TimeoutError as error:
                raise EngineFailed("a worker process did not connect in time") from error
            accepted.setblocking(True)
            connection = Connection(accepted.detach())
            by_rank[int(connection.recv_bytes())] = connection
        return [by_rank[rank] for rank in range(ranks)]


def _log_failure(opened: "Future[None]") -> None:
    error = opened.exception()
    if error is not None:
        log.error("a worker could not open its KV plane: %s", error)
