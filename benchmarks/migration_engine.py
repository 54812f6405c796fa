"""An engine process that moves requests, without Ray: for the migration benchmark and soak.

All of it is the product's: engine host, step thread, publisher, token log, agent, links, channels.
Only the door is another one, a Unix socket instead of an actor's methods. `serve` is the server,
`EngineDoor` the benchmark's side.

An engine has two desks. The second one's agent differs in one setting: it makes no copy before the
pause, which is stop-and-copy by the same code.
"""

import asyncio
import os
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from engine_pool.config import PoolConfig
from engine_pool.engine_actor import EngineHost
from engine_pool.engine_spec import EngineSpec
from engine_pool.move_desk import MoveDesk, open_desk
from engine_pool.ports import Engine, EngineRequest, StepOutput
from engine_pool.store import connect
from engine_pool.token_log import LogTimes, TokenLogWriter
from engine_pool.types import InstanceName
from engine_pool.vllm_adapter import VllmEngine
from migration.ports import Refusal

LIVE: Final = "live"
STOP_AND_COPY: Final = "stop-and-copy"
HOST: Final = "127.0.0.1"
CALL_TIMEOUT_S: Final = 60.0
"""Longest wait for an engine's answer: it may be in the middle of a long prefill."""
THREADS: Final = 1
"""Of the forward pass: the engines and the benchmark share a few cores."""
STEPS_KEPT: Final = 20_000
"""Times of steps: the last minute or more."""

_decode_requests = msgspec.msgpack.Decoder(list[EngineRequest]).decode


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an engine. Monotonic seconds; all processes share that clock."""

    began_s: float
    ended_s: float
    outputs: int
    """Requests that got a token."""
    is_prefill: bool
    """One of them got its first token here."""


@dataclass(frozen=True, slots=True)
class Books:
    """What an engine has at one moment."""

    used_tokens: int
    capacity_tokens: int
    running: int
    waiting: int
    parked: int
    held: int
    """Of the requests that were asked about."""
    preemptions_total: int

    @property
    def is_empty(self) -> bool:
        """Nothing is here, nor is any block kept for anything."""
        return not any((self.used_tokens, self.running, self.waiting, self.parked, self.held))


class TimedEngine(VllmEngine):
    """Notes when its steps began and ended."""

    def __init__(self, spec: EngineSpec) -> None:
        # Its warm-up steps already.
        self._known: set[str] = set()
        self.steps: deque[Step] = deque(maxlen=STEPS_KEPT)
        super().__init__(spec)

    def step(self) -> list[StepOutput]:
        began_s = time.monotonic()
        outputs = super().step()
        new = {o.request_id for o in outputs} - self._known
        self._known |= new
        self.steps.append(Step(began_s, time.monotonic(), len(outputs), bool(new)))
        return outputs


class EngineProcess:
    """The engine and its two desks."""

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self.host = EngineHost(spec, lambda: TimedEngine(spec), _die)
        self._desks: dict[str, MoveDesk] = {}
        self._steps: deque[Step] = deque()

    def start(self) -> None:
        """Starts the engine; some ten seconds. Raises: EngineFailed."""
        self.host.start()
        self.host.loop.ready.result()
        engine = self.host.loop.engine
        assert isinstance(engine, TimedEngine)
        self._steps = engine.steps
        self.host.open_desk(HOST)
        config = replace(self._spec.config, migration_copies_max=0)
        store = connect(config.redis_url)
        writer = TokenLogWriter(store, LogTimes(config.log_live_s, config.log_ended_s))
        spec, loop, publisher = (
            replace(self._spec, config=config),
            self.host.loop,
            self.host.publisher,
        )
        for way, desk in (
            (LIVE, self.host.desk),
            (STOP_AND_COPY, open_desk(spec, loop, publisher, store, writer, HOST)),
        ):
            if isinstance(desk, Refusal):
                raise RuntimeError(f"requests cannot move here: {desk.why}")
            self._desks[way] = desk

    async def answer(self, call: dict[str, Any]) -> object:
        """Does what a call names; what it answers is msgpack's business."""
        doing: dict[str, Callable[[dict[str, Any]], Awaitable[object]]] = {
            "submit": self._submit,
            "abort": self._abort,
            "invite": self._invite,
            "migrate": self._migrate,
            "cancel": self._cancel,
            "steps": self._steps_since,
            "books": self._books,
        }
        return await doing[call["do"]](call)

    async def _submit(self, call: dict[str, Any]) -> object:
        answer = self.host.loop.submit(_decode_requests(call["blob"]))
        self.host.publisher.nudge()
        return await asyncio.wrap_future(answer)

    async def _abort(self, call: dict[str, Any]) -> None:
        self.host.loop.abort(call["ids"])

    async def _invite(self, call: dict[str, Any]) -> object:
        return self._desks[call["way"]].invite()

    async def _migrate(self, call: dict[str, Any]) -> object:
        desk = self._desks[call["way"]]
        refusal = await asyncio.wrap_future(desk.migrate(call["wish"], call["invitation"]))
        return None if refusal is None else (refusal.code, refusal.why)

    async def _cancel(self, call: dict[str, Any]) -> object:
        return await asyncio.wrap_future(self._desks[LIVE].agent.cancel(call["id"]))

    async def _steps_since(self, call: dict[str, Any]) -> object:
        return [step for step in self._steps.copy() if step.ended_s >= call["since_s"]]

    async def _books(self, call: dict[str, Any]) -> object:
        def look(engine: Engine) -> Books:
            assert isinstance(engine, TimedEngine)
            load = engine.load()
            return Books(
                used_tokens=load.used_tokens,
                capacity_tokens=load.capacity_tokens,
                running=len(load.running),
                waiting=len(load.waiting),
                parked=len(engine.moves.parked_requests()),
                held=sum(engine.moves.holds(request_id) for request_id in call["ids"]),
                preemptions_total=load.preemptions_total,
            )

        return await asyncio.wrap_future(self.host.loop.between_steps(look))


def _die(error: BaseException) -> None:
    print(f"the engine died: {error!r}", flush=True)
    os._exit(1)


class EngineDoor:
    """One engine process, as the benchmark speaks to it. Raises: OSError, TimeoutError, EOFError
    when it does not answer."""

    def __init__(self, instance: str, path: Path) -> None:
        self.instance = instance
        self._path = path

    async def submit(self, requests: list[EngineRequest]) -> list[tuple[str, str]]:
        """Returns (request id, why) of each request that was refused."""
        answer = await self._call(do="submit", blob=msgspec.msgpack.encode(requests))
        return msgspec.msgpack.decode(answer, type=list[tuple[str, str]])

    async def abort(self, request_ids: list[str]) -> None:
        await self._call(do="abort", ids=request_ids)

    async def invite(self, way: str) -> dict[str, object]:
        return msgspec.msgpack.decode(
            await self._call(do="invite", way=way), type=dict[str, object]
        )

    async def migrate(
        self, way: str, wish: dict[str, object], invitation: dict[str, object]
    ) -> tuple[str, str] | None:
        """Begins a move. Returns (code, why) when it is refused."""
        answer = await self._call(do="migrate", way=way, wish=wish, invitation=invitation)
        refused = msgspec.msgpack.decode(answer, type=list[str] | None)
        return (refused[0], refused[1]) if refused else None

    async def cancel(self, migration_id: str) -> bool:
        """Says whether there is such a move."""
        return msgspec.msgpack.decode(await self._call(do="cancel", id=migration_id), type=bool)

    async def steps(self, since_s: float) -> list[Step]:
        """Returns the steps that ended since then."""
        answer = await self._call(do="steps", since_s=since_s)
        return msgspec.msgpack.decode(answer, type=list[Step])

    async def books(self, request_ids: list[str]) -> Books:
        """`request_ids`: those that may be held there."""
        return msgspec.msgpack.decode(await self._call(do="books", ids=request_ids), type=Books)

    async def is_up(self) -> bool:
        try:
            await self.invite(LIVE)
        except (OSError, EOFError):
            return False
        return True

    async def _call(self, **call: object) -> bytes:
        async with asyncio.timeout(CALL_TIMEOUT_S):
            reader, writer = await asyncio.open_unix_connection(str(self._path))
            try:
                await _send(writer, call)
                return await _receive(reader)
            finally:
                writer.close()


async def _send(writer: asyncio.StreamWriter, message: object) -> None:
    body = msgspec.msgpack.encode(message)
    writer.write(len(body).to_bytes(4, "big") + body)
    await writer.drain()


async def _receive(reader: asyncio.StreamReader) -> bytes:
    """Raises: asyncio.IncompleteReadError (an EOFError) when the other side is gone."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    return await reader.readexactly(size)


async def serve(path: Path, process: EngineProcess) -> None:
    """Serves one engine until the process is ended."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            call = msgspec.msgpack.decode(await _receive(reader))
            await _send(writer, await process.answer(call))
        finally:
            writer.close()

    server = await asyncio.start_unix_server(answer, str(path))
    async with server:
        await server.serve_forever()


def main() -> None:
    """Arguments: socket path, instance, model folder, GiB of KV cache, dtype; the rest from the
    environment, as for the pool."""
    path, instance, model, kv_cache_gib, dtype = sys.argv[1:6]
    # The variable's least value is larger than a soak wants it.
    config = replace(PoolConfig.from_env(os.environ), kv_cache_gib=float(kv_cache_gib), dtype=dtype)
    spec = EngineSpec(InstanceName(instance), f"{instance}-a", config, model, THREADS, 0)
    process = EngineProcess(spec)
    process.start()
    asyncio.run(serve(Path(path), process))


if __name__ == "__main__":
    main()
