"""A closed-loop load of streaming chat requests, and what its readers saw.

One process, one event loop, raw SSE over aiohttp: the same client for whatever server is measured.
"""

import asyncio
import itertools
import json
import random
import statistics
import time
from dataclasses import dataclass

import aiohttp

REQUEST_TIMEOUT_S = 300.0
"""Longest single request; a benchmark that hangs must end."""
WORDS = [
    "river", "harbour", "engine", "signal", "bridge", "lantern",
    "market", "winter", "copper", "garden", "window", "letter",
    "mountain", "paper", "silver", "forest", "station", "candle",
    "ocean", "village", "kitchen", "thunder", "meadow", "ladder",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Target:
    """A server to measure. `base_url` ends in /v1."""

    name: str
    base_url: str
    model: str
    api_key: str = "none"


@dataclass(frozen=True, slots=True)
class Streamed:
    """One request as its reader saw it."""

    ttft_ms: float
    gaps_ms: tuple[float, ...]
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Burst:
    """All requests of one run at one concurrency."""

    requests: tuple[Streamed, ...]
    wall_s: float

    @property
    def tokens_per_s(self) -> float:
        return sum(r.output_tokens for r in self.requests) / self.wall_s

    @property
    def ttft_p50_ms(self) -> float:
        return statistics.median(r.ttft_ms for r in self.requests)

    @property
    def itl_p50_ms(self) -> float:
        return statistics.median(gap for r in self.requests for gap in r.gaps_ms)


def prompt(rng: random.Random, words: int) -> str:
    """Returns a prompt that no earlier one shares a prefix with, so that no prefix cache helps."""
    return f"{rng.randrange(10**9)}: " + " ".join(rng.choices(WORDS, k=words))


async def stream_one(
    session: aiohttp.ClientSession, target: Target, text: str, max_tokens: int
) -> Streamed:
    """Sends one streaming chat request. Raises: RuntimeError unless a whole stream comes."""
    body = {
        "model": target.model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"Authorization": f"Bearer {target.api_key}"}
    started = time.perf_counter()
    arrivals: list[float] = []
    tokens = 0
    async with session.post(
        f"{target.base_url}/chat/completions", json=body, headers=headers
    ) as response:
        if response.status != 200:
            raise RuntimeError(f"{target.name}: {response.status} {await response.text()}")
        async for line in response.content:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise RuntimeError(f"{target.name}: {chunk['error']}")
            choices = chunk["choices"]
            # The role comes in a chunk of its own, before the first token; it is no token.
            if choices and ("role" not in (delta := choices[0]["delta"]) or delta.get("content")):
                arrivals.append(time.perf_counter())
            if chunk.get("usage"):
                tokens = chunk["usage"]["completion_tokens"]
    if tokens != max_tokens or not arrivals:
        raise RuntimeError(f"{target.name}: {tokens} of {max_tokens} tokens came")
    gaps = tuple((b - a) * 1000 for a, b in itertools.pairwise(arrivals))
    return Streamed((arrivals[0] - started) * 1000, gaps, tokens)


async def burst(
    target: Target,
    *,
    concurrency: int,
    requests: int,
    max_tokens: int,
    prompt_words: int,
    seed: int,
) -> Burst:
    """Runs `requests` requests, `concurrency` at a time, each worker starting its next at once."""
    rng = random.Random(seed)
    texts = [prompt(rng, prompt_words) for _ in range(requests)]
    timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=concurrency)
    done: list[Streamed] = []

    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:

        async def work() -> None:
            while texts:
                done.append(await stream_one(session, target, texts.pop(), max_tokens))

        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(work())
        wall_s = time.perf_counter() - started
    return Burst(tuple(done), wall_s)
