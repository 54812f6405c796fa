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
import statistics
import sys
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import aiohttp
import msgspec
import psutil
import redis
import redis.asyncio

from benchmarks.load import REQUEST_TIMEOUT_S, WORDS
from benchmarks.servers import MODEL_NAME
from benchmarks.token_stand import TOKENS, Stand, stand_up
from engine_pool.errors import PoolError
from engine_pool.ports import EngineRequest
from engine_pool.stream import Stream, Visit
from engine_pool.token_log import LogTimes, TokenFrame, TokenLogReader
from engine_pool.token_reader import TokenReader
from engine_pool.types import PriorityClass, RequestId

PACED_STREAMS = 40
FULL_STREAMS = 200
GOALS = {"tokens_per_s_per_core": 11_000, "added_p99_ms": 30.0}
"""A prototype's: 11-14 k tokens/s a web core before HTTP (8.7 k with it), p99 30 ms."""


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

    def moved(self, request_id: str, visit: Visit) -> None:
        raise RuntimeError(f"{request_id} moved, though nothing moves here")

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
        requests = [
            EngineRequest(
                i, 1, 100, TOKENS, TOKENS, PriorityClass.NORMAL, "bench", time.time(), b""
            )
            for i in ids
        ]
        async with metered(stand, psutil.Process()) as run:
            for request_id in ids:
                reader.open(Stream(request_id, unread=lambda: 0))
            await stand.gate.submit("", msgspec.msgpack.encode(requests))
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await sink.done.wait()
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
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "stream": True,
    }
    headers = {"Authorization": f"Bearer {stand.api_key}"}
    url = f"{stand.base_url}/chat/completions"
    lines: list[tuple[float, bytes]] = []
    async with session.post(url, json=body, headers=headers) as response:
        if response.status != 200:
            raise RuntimeError(f"{response.status} {await response.text()}")
        async for line in response.content:
            if line.startswith(b"data: {"):
                lines.append((time.monotonic(), line))
    request_id, times = stand.text.arrivals(lines)
    arrived_s[request_id] = times


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
