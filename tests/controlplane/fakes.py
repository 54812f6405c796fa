"""Fakes of our own ports: an engine behind the gate, a front end behind the reader."""

import asyncio
import time
from collections.abc import Callable, Sequence

import msgspec
import redis

from engine_pool.errors import InstanceLost, PoolError
from engine_pool.ports import EngineRequest
from engine_pool.stream import Visit
from engine_pool.task_end import end_tasks
from engine_pool.token_log import LogTimes, TokenFrame, TokenLogWriter
from engine_pool.types import (
    EngineKind,
    InstanceLoad,
    InstanceName,
    InstanceState,
    InstanceStatus,
    PriorityClass,
    RequestId,
    RequestLoad,
)
from migration.report import MoveReport, MoveState

DEADLINE_S = 60.0
"""Longest wait for something that happens within milliseconds where nothing else runs; a machine
that is busy with other tests takes seconds."""


async def until(condition: Callable[[], bool]) -> None:
    """Returns when the condition holds. Raises: TimeoutError."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - the condition is anybody's
            await asyncio.sleep(0.005)


async def assert_ends_after(task: asyncio.Task[None], turns: int) -> None:
    """Ends a task after so many turns of the event loop; one that goes on is ended all the same, so
    that the test can end."""
    for _ in range(turns):
        await asyncio.sleep(0)
    await end_tasks([task])
    has_ended = task.done()
    while not task.done():
        task.cancel()
        await asyncio.sleep(0.01)
    assert has_ended, f"goes on after {turns} turns"


class FakeSink:
    """A FrameSink that remembers."""

    def __init__(self) -> None:
        self.frames: list[TokenFrame] = []
        self.errors: dict[str, PoolError] = {}
        self.visits: list[tuple[int, str, Visit]] = []
        """(frames delivered before, request id, visit)."""

    def deliver(self, frames: Sequence[TokenFrame]) -> None:
        self.frames += frames

    def moved(self, request_id: str, visit: Visit) -> None:
        self.visits.append((len(self.frames), request_id, visit))

    def fail(self, request_id: str, error: PoolError) -> None:
        self.errors[request_id] = error

    def tokens(self, request_id: str) -> list[int]:
        return [t for f in self.frames if f.request_id == request_id for t in f.token_ids]


class FakeGate:
    """An EngineGate whose actors do as they are told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, tuple[str, ...]]] = []
        self.requests: list[EngineRequest] = []
        self.refusing: dict[str, str] = {}
        """actor -> reason."""
        self.dead: set[str] = set()
        self.hold = asyncio.Event()
        self.hold.set()
        self.on_submit: Callable[[str, list[EngineRequest]], None] = lambda actor, requests: None

    async def submit(self, actor: str, blob: bytes) -> dict[str, str]:
        requests = msgspec.msgpack.decode(blob, type=list[EngineRequest])
        ids = tuple(r.request_id for r in requests)
        self.calls.append(("submit", actor, ids))
        await self.hold.wait()
        self.on_submit(actor, requests)
        if actor in self.dead:
            raise InstanceLost(f"{actor} is gone.")
        if actor in self.refusing:
            return dict.fromkeys(ids, self.refusing[actor])
        self.requests += requests
        return {}

    async def abort(self, actor: str, request_ids: Sequence[str]) -> None:
        self.calls.append(("abort", actor, tuple(request_ids)))


class Producer:
    """An engine's side of the token log."""

    def __init__(self, store: "redis.Redis[bytes]") -> None:
        self._writer = TokenLogWriter(store, LogTimes())

    def write(
        self,
        request_id: str,
        start: int,
        tokens: Sequence[int],
        finish: str | None = None,
        epoch: int = 1,
        instance: str = "i-01",
    ) -> bool:
        """Appends one frame; says whether the log took it."""
        frame = TokenFrame(request_id, epoch, start, tuple(tokens), instance, finish_reason=finish)
        firsts = frozenset([request_id]) if start == 0 else frozenset()
        return not self._writer.append([frame], firsts).refused

    def reclaim(self, request_id: str, epoch: int) -> int | None:
        """Takes a stream back from a destination that has appended nothing."""
        return self._writer.reclaim(request_id, epoch)


def status_of(
    name: str, state: InstanceState = InstanceState.SERVING, incarnation: str = "a"
) -> InstanceStatus:
    """Returns an instance's status."""
    return InstanceStatus(
        instance=InstanceName(name),
        pool="default",
        incarnation=incarnation,
        state=state,
        cause="a test",
        since_unix_s=time.time(),
        node="here",
        model="m",
        engine=EngineKind.SIMULATED,
        actor=f"actor-{name}",
    )


def load_of(
    name: str,
    seq: int = 1,
    incarnation: str = "a",
    used: int = 0,
    running: Sequence[str] = (),
    waiting: Sequence[str] = (),
) -> InstanceLoad:
    """Returns an instance's report of now."""

    def load(request_id: str) -> RequestLoad:
        return RequestLoad(RequestId(request_id), PriorityClass.NORMAL, 16, 10, 1)

    return InstanceLoad(
        instance=InstanceName(name),
        incarnation=incarnation,
        seq=seq,
        at_unix_s=time.time(),
        capacity_tokens=10_000,
        used_tokens=used,
        block_size_tokens=16,
        max_running=64,
        running=tuple(map(load, running)),
        waiting=tuple(map(load, waiting)),
    )


def move_of(
    request_id: str,
    state: MoveState,
    source: str = "i-01",
    destination: str = "i-02",
    seq: int = 1,
    output_tokens: int | None = None,
) -> MoveReport:
    """Returns a move's report of now."""
    return MoveReport(
        migration_id=f"{source}-{destination}-{request_id}",
        request_id=request_id,
        seq=seq,
        state=state,
        source=source,
        source_incarnation="a",
        destination=destination,
        destination_incarnation="a",
        started_unix_s=time.time(),
        at_unix_s=time.time(),
        asked_by="a test",
        reason="a test",
        output_tokens_at_pause=output_tokens,
    )


def request_of(request_id: str, prompt_tokens: int = 10) -> EngineRequest:
    """Returns a request for an engine."""
    return EngineRequest(
        request_id=RequestId(request_id),
        epoch=1,
        prompt_tokens=prompt_tokens,
        max_tokens=100,
        min_tokens=0,
        priority_class=PriorityClass.NORMAL,
        tenant="t",
        arrival_unix_s=time.time(),
        payload=b"",
    )
