"""An open-loop load: requests come when the trace says, whatever became of those before.

One process, one event loop, raw SSE over aiohttp. All bodies are made before the first request is
sent, and a chunk is only looked at, not parsed, so that the client leaves the cores to the engines.
Prompts are token ids, so their lengths are exact; no two share a block, so that no prefix cache
helps. TTFT counts from the moment at which the trace says that the request comes.
"""

import asyncio
import itertools
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp

from engine_pool.simulator.sim_request import Arrival
from engine_pool.types import PriorityClass

REQUEST_TIMEOUT_S: Final = 240.0
"""Longest single request; a round must end."""
LOWEST_TOKEN: Final = 64
"""Below are a vocabulary's special tokens."""
HIGHEST_TOKEN: Final = 1000
"""In the vocabulary of every model, the tests' tiny one included."""
OWN_TOKENS: Final = 4
"""The first tokens of a prompt tell it from all others."""


@dataclass(frozen=True, slots=True)
class Door:
    """Where requests go. A class has its own key, whose tenant has that class."""

    base_url: str
    model: str
    keys: dict[PriorityClass, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as its reader saw it."""

    index: int
    priority_class: PriorityClass
    ttft_ms: float
    gaps_ms: tuple[float, ...]
    latency_ms: float
    """From its arrival to its last token."""
    output_tokens: int

    @property
    def decode_ms(self) -> float | None:
        """Mean time of a token after the first; None when there is only one."""
        left = self.output_tokens - 1
        return (self.latency_ms - self.ttft_ms) / left if left > 0 else None


@dataclass(frozen=True, slots=True)
class Outcome:
    """One round."""

    seen: tuple[Seen, ...]
    failures: tuple[str, ...]
    wall_s: float
    late_ms: float
    """How late the client itself sent its most belated request: it needs a core, too."""


async def play(
    door: Door, arrivals: Sequence[Arrival], *, seed: str, with_classes: bool
) -> Outcome:
    """Sends a round's requests at their times and reads their answers.

    `seed`: another one makes other prompts of the same lengths. Without classes all are normal.
    """
    bodies = [_body(door, a, seed) for a in arrivals]
    timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
    seen: list[Seen] = []
    failures: list[str] = []
    late_ms = 0.0
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        began_s = time.perf_counter()

        async def one(arrival: Arrival, body: bytes) -> None:
            nonlocal late_ms
            due_s = began_s + arrival.arrival_s
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            late_ms = max(late_ms, (time.perf_counter() - due_s) * 1000)
            kind = arrival.priority_class if with_classes else PriorityClass.NORMAL
            try:
                seen.append(await _stream(session, door, arrival, kind, body, due_s))
            except (TimeoutError, aiohttp.ClientError, RuntimeError) as error:
                failures.append(f"request {arrival.index}: {error or type(error).__name__}")

        async with asyncio.TaskGroup() as group:
            for arrival, body in zip(arrivals, bodies, strict=True):
                group.create_task(one(arrival, body))
        wall_s = time.perf_counter() - began_s
    seen.sort(key=lambda s: s.index)
    return Outcome(tuple(seen), tuple(failures), wall_s, late_ms)


def _body(door: Door, arrival: Arrival, seed: str) -> bytes:
    dice = random.Random(f"{seed}/{arrival.index}")
    count = arrival.prompt_tokens
    prompt = [dice.randrange(LOWEST_TOKEN, HIGHEST_TOKEN) for _ in range(min(count, OWN_TOKENS))]
    first = dice.randrange(HIGHEST_TOKEN)
    span = HIGHEST_TOKEN - LOWEST_TOKEN
    prompt += [LOWEST_TOKEN + (first + 37 * n) % span for n in range(count - len(prompt))]
    body = {
        "model": door.model,
        "prompt": prompt,
        "max_tokens": arrival.output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return json.dumps(body).encode()


async def _stream(
    session: aiohttp.ClientSession,
    door: Door,
    arrival: Arrival,
    kind: PriorityClass,
    body: bytes,
    due_s: float,
) -> Seen:
    """Reads one answer. Raises: RuntimeError unless a whole one comes; aiohttp.ClientError,
    TimeoutError."""
    headers = {"Authorization": f"Bearer {door.keys[kind]}", "Content-Type": "application/json"}
    times_s: list[float] = []
    last = b""
    url = f"{door.base_url}/completions"
    async with session.post(url, data=body, headers=headers) as response:
        if response.status != 200:
            raise RuntimeError(f"HTTP {response.status}: {(await response.text())[:200]}")
        async for line in response.content:
            if line.startswith(b'data: {"error"'):
                raise RuntimeError(line.decode()[:200])
            if line.startswith(b"data: {"):
                times_s.append(time.perf_counter())
                last = line
    tokens = _output_tokens(last)
    # The last chunk is the usage; it carries no token.
    del times_s[-1:]
    if tokens != arrival.output_tokens or not times_s:
        raise RuntimeError(f"{tokens} of {arrival.output_tokens} tokens came")
    return Seen(
        index=arrival.index,
        priority_class=kind,
        ttft_ms=(times_s[0] - due_s) * 1000,
        gaps_ms=tuple((b - a) * 1000 for a, b in itertools.pairwise(times_s)),
        latency_ms=(times_s[-1] - due_s) * 1000,
        output_tokens=tokens,
    )


def _output_tokens(line: bytes) -> int:
    """Reads the count from the chunk with the usage; 0 when it is not one."""
    if not line:
        return 0
    usage = json.loads(line[len(b"data: ") :]).get("usage") or {}
    return int(usage.get("completion_tokens", 0))


def bytes_per_kv_token(model: Path) -> int:
    """Returns the KV cache of one token in a model's folder, in vLLM's 16-bit types."""
    config = json.loads((model / "config.json").read_text())
    heads = config["num_attention_heads"]
    head_size = config.get("head_dim") or config["hidden_size"] // heads
    kv_heads = config.get("num_key_value_heads") or heads
    return int(2 * config["num_hidden_layers"] * kv_heads * head_size * 2)
