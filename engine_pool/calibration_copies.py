"""Measures what it takes to copy KV blocks from one engine to another, with what moves use.

The other engine is a process of its own, as in a pool: gather, a channel, scatter. Nothing is
parked or adopted here, for that costs no more than the step at which it happens.
"""

import contextlib
import multiprocessing
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import wait
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Final

from engine_pool.calibration import CalibrationError, Tell
from engine_pool.engine_spec import EngineSpec
from engine_pool.simulator.fitting import CopyPoint
from engine_pool.vllm_plane import plane_terms
from migration.ports import KvPlane
from migration.remote_plane import PlaneTerms, RemoteKvPlane, serve_plane

if TYPE_CHECKING:
    from engine_pool.vllm_adapter import VllmEngine

HOST: Final = "127.0.0.1"
CHANNEL: Final = "calibration"
READY: Final = b"ready"
START_TIMEOUT_S: Final = 600.0
"""As the pool's: loading the weights of a large model takes minutes."""
ANSWER_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 10.0
COPY_BLOCKS: Final = (1, 2, 4, 8, 16, 32)
COPY_TRIES: Final = 7
WARM_UP_COPIES: Final = 3
"""The first ones fill buffers and meet code that never ran."""


@dataclass
class Copies:
    """A channel between this engine's KV memory and another's. Implements calibration.Busy."""

    own: KvPlane
    other: RemoteKvPlane
    blocks: int
    """How many each of the two has for requests."""

    def __post_init__(self) -> None:
        self._is_ending = threading.Event()
        self._thread: threading.Thread | None = None

    def measure(self, tell: Tell) -> list[CopyPoint]:
        """Measures copies of several sizes between idle engines. Raises: CalibrationError."""
        points: list[CopyPoint] = []
        for blocks in (n for n in COPY_BLOCKS if n <= self.blocks):
            for _ in range(WARM_UP_COPIES):
                self._copy(blocks, is_urgent=True)
            ms = statistics.median(self._copy(blocks, is_urgent=True) for _ in range(COPY_TRIES))
            points.append(CopyPoint(blocks, ms))
            tell(f"copy    {blocks:>3} blocks {ms:24.2f} ms")
        return points

    def begin(self) -> None:
        """Copies block after block at the pace of moves, until `end`."""
        self._is_ending.clear()
        self._thread = threading.Thread(target=self._go_on, name="calibration-copies", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._is_ending.set()
        if self._thread is not None:
            self._thread.join(ANSWER_TIMEOUT_S)

    def _go_on(self) -> None:
        blocks = min(8, self.blocks)
        while not self._is_ending.is_set():
            self._copy(blocks, is_urgent=False)

    def _copy(self, blocks: int, *, is_urgent: bool) -> float:
        """Returns ms from the wish until both ends are done. Raises: CalibrationError."""
        # Block 0 is vLLM's null block.
        ids = list(range(1, blocks + 1))
        began_s = time.perf_counter()
        received = self.other.receive(CHANNEL, ids)
        sent = self.own.send(CHANNEL, ids, urgent=is_urgent)
        done, late = wait((received, sent), ANSWER_TIMEOUT_S)
        took_ms = (time.perf_counter() - began_s) * 1000
        if late:
            raise CalibrationError(f"a copy of {blocks} blocks took over {ANSWER_TIMEOUT_S:.0f} s")
        for future in done:
            if (error := future.exception()) is not None:
                raise CalibrationError(f"a copy of {blocks} blocks failed: {error}")
        return took_ms


@contextlib.contextmanager
def copies_to_another(engine: "VllmEngine", spec: EngineSpec) -> Iterator[Copies]:
    """Starts another engine of the same spec and connects the two. Raises: CalibrationError."""
    terms = plane_terms(spec.config, HOST)
    own = engine.open_plane(terms)
    if own is None:
        raise CalibrationError("the KV blocks of this engine cannot be copied")
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve_other, args=(there, spec), daemon=True)
    process.start()
    there.close()
    try:
        other = _connect(here, own, terms)
        load = engine.load()
        yield Copies(own, other, load.capacity_tokens // load.block_size_tokens)
    finally:
        own.shut_down()
        # It ends by itself when nobody is at the other end any more.
        here.close()
        process.join(STOP_TIMEOUT_S)
        if process.is_alive():
            process.kill()
            process.join(STOP_TIMEOUT_S)


def _connect(here: Connection, own: KvPlane, terms: PlaneTerms) -> RemoteKvPlane:
    try:
        if not here.poll(START_TIMEOUT_S):
            raise CalibrationError(f"the other engine did not start in {START_TIMEOUT_S:.0f} s")
        here.recv_bytes()
    except (EOFError, OSError) as error:
        raise CalibrationError("the other engine did not start; its words are above") from error
    other = RemoteKvPlane(here, lambda: None)
    other.open(terms).result(ANSWER_TIMEOUT_S)
    offer = own.offer(CHANNEL).result(ANSWER_TIMEOUT_S)
    other.join(CHANNEL, offer).result(ANSWER_TIMEOUT_S)
    return other


def _serve_other(connection: Connection, spec: EngineSpec) -> None:
    """Runs in the other process: an engine whose memory takes blocks."""
    from engine_pool.vllm_adapter import VllmEngine

    engine = VllmEngine(spec)

    def open_plane(terms: PlaneTerms) -> KvPlane:
        plane = engine.open_plane(terms)
        assert plane is not None, "the first engine's could be opened"
        return plane

    connection.send_bytes(READY)
    try:
        serve_plane(connection, open_plane)
    finally:
        engine.close()
