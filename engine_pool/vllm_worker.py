"""What is mixed into vLLM's worker class, in each worker process of an engine with several ranks.

vLLM calls these methods for the engine's process (`collective_rpc`), one after another with the
model's steps, so they are short. Blocks move in threads of this process, told what to do over a
connection of their own (migration.remote_plane): no step waits for them, nor they for a step.
"""

import glob
import logging
import os
import socket
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from engine_pool.vllm_plane import open_local_plane
from engine_pool.vllm_rank import RankFacts, prepare_rank, return_freed_memory
from engine_pool.vllm_sampling_state import forget_state, put_state, read_generator
from migration.remote_plane import serve_plane

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_input_batch import CachedRequestState

    from engine_pool.vllm_kv import VllmKv

log = logging.getLogger(__name__)

SHARED_MEMORY: Final = Path("/dev/shm")
LEAVE_S: Final = 10.0
"""How long a worker may take to end by itself when its engine is gone."""


class FerryWorker:
    """Has no state of its own before `ferry_open`; vLLM makes the object."""

    model_runner: Any
    rank: int

    def ferry_open(self, door: str, blocks: int, is_v2: bool) -> RankFacts:
        """Connects to the engine's process, which listens at the path `door`. Raises: EngineFailed
        when this vLLM lacks what is used here; OSError."""
        facts, kv = prepare_rank(self.model_runner, blocks, is_v2=is_v2)
        with socket.socket(socket.AF_UNIX) as connecting:
            connecting.connect(door)
            connection = Connection(connecting.detach())
        connection.send_bytes(str(self.rank).encode())
        threading.Thread(
            target=_serve, args=(connection, kv), name="ferry-kv-serve", daemon=True
        ).start()
        _unlink_shared_memory()
        return_freed_memory()
        return facts

    def ferry_generator(self, request_id: str) -> bytes | None:
        """See `vllm_sampling_state.read_generator`."""
        return read_generator(self.model_runner, request_id)

    def ferry_install(
        self, state: "CachedRequestState", generator: bytes | None, forget_first: bool
    ) -> None:
        """See `vllm_sampling_state.put_state`."""
        if forget_first:
            forget_state(self.model_runner, state.req_id)
        put_state(self.model_runner, state, generator)


def _unlink_shared_memory() -> None:
    """Takes away the names of the memory that the ranks on a CPU add up their results in: vLLM
    leaves it behind when a process ends (8 MiB an engine of two). All ranks have it open."""
    name = os.environ.get("VLLM_DIST_IDENT", "")
    if name:
        for file in SHARED_MEMORY.glob(f"{glob.escape(name)}-*cpushm_*"):
            file.unlink(missing_ok=True)


def _serve(connection: Connection, kv: "VllmKv | None") -> None:
    def open_plane(terms: Any) -> Any:
        assert kv is not None, "the engine opens no plane over memory that cannot move"
        return open_local_plane(kv, terms)

    serve_plane(connection, open_plane)
    # The process ends by itself when its engine has closed it or is gone. But in mid step it may
    # wait for another rank, and that one may be gone too.
    time.sleep(LEAVE_S)
    log.error("the engine is gone and the step does not end")
    os._exit(1)
