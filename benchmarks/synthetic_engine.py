"""An engine process without a model: every running request gets one token a tick.

It is the product's own engine host (step thread, publisher, load reports) around an engine that
computes nothing, so what it costs is the token path alone. It notes when it produced each token.
Spoken to over a Unix socket instead of Ray: `serve` is the server, `SocketGate` the web side.
"""

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import redis

from engine_pool.config import PoolConfig
from engine_pool.engine_actor import EngineHost
from engine_pool.engine_spec import EngineSpec
from engine_pool.errors import InstanceLost
from engine_pool.ports import EngineLoad, EngineRequest, StepOutput
from engine_pool.types import (
    EngineKind,
    InstanceName,
    InstanceState,
    InstanceStatus,
    RequestId,
    RequestLoad,
)
from engine_pool.view import Bulletin

BLOCK_TOKENS = 16
CAPACITY_TOKENS = 4_000_000
"""Room for every request of a run: memory is not what is measured."""
MAX_RUNNING = 4096
CALL_TIMEOUT_S = 30.0
INSTANCE = InstanceName("i-01")
INCARNATION = "synthetic"


class SyntheticEngine:
    """Implements ports.Engine."""

    def __init__(self, token_ids: Sequence[int], tick_s: float) -> None:
        self._token_ids = token_ids
        self._tick_s = tick_s
        self._next_s = time.monotonic()
        self._running: dict[RequestId, tuple[EngineRequest, int]] = {}
        self.produced_s: dict[str, list[float]] = {}
        """Monotonic time of each token, by request; all processes share that clock."""

    def add(self, request: EngineRequest) -> None:
        self._running[request.request_id] = (request, 0)
        self.produced_s[request.request_id] = []

    def abort(self, request_ids: Sequence[RequestId]) -> None:
        for request_id in request_ids:
            self._running.pop(request_id, None)

    def has_work(self) -> bool:
        return bool(self._running)

    def step(self) -> list[StepOutput]:
        now_s = time.monotonic()
        # A tick that came late is not made up for: the rate is a ceiling.
        self._next_s = max(self._next_s + self._tick_s, now_s)
        time.sleep(self._next_s - now_s)
        produced_s = time.monotonic()
        outputs = []
        for request_id, (request, count) in list(self._running.items()):
            token = self._token_ids[count % len(self._token_ids)]
            is_last = count + 1 >= request.max_tokens
            self.produced_s[request_id].append(produced_s)
            outputs.append(StepOutput(request_id, (token,), "length" if is_last else None))
            if is_last:
                del self._running[request_id]
            else:
                self._running[request_id] = (request, count + 1)
        return outputs

    def load(self) -> EngineLoad:
        running = tuple(
            RequestLoad(i, r.priority_class, BLOCK_TOKENS, r.prompt_tokens, count)
            for i, (r, count) in self._running.items()
        )
        used_tokens = BLOCK_TOKENS * len(running)
        return EngineLoad(CAPACITY_TOKENS, used_tokens, BLOCK_TOKENS, MAX_RUNNING, running, (), 0)

    def close(self) -> None:
        pass


class SocketGate:
    """Implements outbox.EngineGate over the engine process's Unix socket."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def submit(self, actor: str, blob: bytes) -> dict[str, str]:
        return dict(await self._call({"do": "submit", "blob": blob}))

    async def abort(self, actor: str, request_ids: Sequence[str]) -> None:
        await self._call({"do": "abort", "ids": list(request_ids)})

    async def produced_s(self) -> dict[str, list[float]]:
        return dict(await self._call({"do": "produced"}))

    async def cpu_s(self) -> float:
        return float(await self._call({"do": "cpu"}))

    async def _call(self, message: dict[str, Any]) -> Any:
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                reader, writer = await asyncio.open_unix_connection(self._path, limit=1 << 30)
                await _send(writer, message)
                answer = await _receive(reader)
                writer.close()
                return answer
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            raise InstanceLost("the synthetic engine does not answer") from error


async def _send(writer: asyncio.StreamWriter, message: Any) -> None:
    body = msgspec.msgpack.encode(message)
    writer.write(len(body).to_bytes(4, "big") + body)
    await writer.drain()


async def _receive(reader: asyncio.StreamReader) -> Any:
    size = int.from_bytes(await reader.readexactly(4), "big")
    return msgspec.msgpack.decode(await reader.readexactly(size))


def start_host(engine: SyntheticEngine, config: PoolConfig) -> EngineHost:
    """Starts the product's engine host around the engine, and reports it as serving."""
    spec = EngineSpec(INSTANCE, INCARNATION, config, "", threads=1, max_model_len=0)

    def die(error: BaseException) -> None:
        print(f"the synthetic engine died: {error!r}", flush=True)
        os._exit(1)

    host = EngineHost(spec, lambda: engine, die)
    host.start()
    host.loop.ready.result(timeout=CALL_TIMEOUT_S)
    status = InstanceStatus(
        instance=INSTANCE,
        pool=config.pool,
        incarnation=INCARNATION,
        state=InstanceState.SERVING,
        cause="benchmark",
        since_unix_s=time.time(),
        node="local",
        model=config.model,
        engine=EngineKind.SIMULATED,
        actor="synthetic",
        max_model_len=8192,
    )
    store: redis.Redis[bytes] = redis.Redis.from_url(config.redis_url)
    Bulletin(store).report_status(status)
    return host


async def serve(path: str, token_ids: Sequence[int], tick_s: float, config: PoolConfig) -> None:
    """Serves one engine until the process is ended."""
    engine = SyntheticEngine(token_ids, tick_s)
    host = start_host(engine, config)
    decode = msgspec.msgpack.Decoder(list[EngineRequest]).decode

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        message = await _receive(reader)
        match message["do"]:
            case "submit":
                refused = await asyncio.wrap_future(host.loop.submit(decode(message["blob"])))
                await _send(writer, dict(refused))
            case "abort":
                host.loop.abort(message["ids"])
                await _send(writer, None)
            case "produced":
                await _send(writer, engine.produced_s)
            case "cpu":
                await _send(writer, time.process_time())
        writer.close()

    server = await asyncio.start_unix_server(answer, path, limit=1 << 30)
    print("ready", flush=True)
    async with server:
        await server.serve_forever()


def main() -> None:
    """Arguments: socket path, tick in seconds, a file with token ids as JSON."""
    path, tick_s, tokens = sys.argv[1:4]
    token_ids = msgspec.json.decode(Path(tokens).read_bytes(), type=list[int])
    asyncio.run(serve(path, token_ids, float(tick_s), PoolConfig.from_env(os.environ)))


if __name__ == "__main__":
    main()
