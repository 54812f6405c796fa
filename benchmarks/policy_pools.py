"""Random pools for `benchmarks.policy`: busy instances, a part of them hosts of the high class.

Engines as the paper's (13,600 KV tokens, blocks of 16). Depends on the seed only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from engine_pool.policy.dispatch import RequestDemand
from engine_pool.policy.standing import Standing
from engine_pool.types import (
    InFlight,
    InstanceLoad,
    InstanceName,
    PriorityClass,
    RequestId,
    RequestLoad,
)

CAPACITY_TOKENS: Final = 13_600
BLOCK_TOKENS: Final = 16
MAX_RUNNING: Final = 256
HOST_SHARE: Final = 0.25
"""Instances that serve the high class."""
QUEUE_SHARE: Final = 0.2
CACHED_SHARE: Final = 0.3
"""Requests whose beginning is known to be cached somewhere."""
SOURCE_SHARE: Final = 0.2
IDLE_SHARE: Final = 0.05

HIGH, NORMAL, LOW = PriorityClass.HIGH, PriorityClass.NORMAL, PriorityClass.LOW


@dataclass(frozen=True, slots=True)
class Candidate:
    """A request that may move. Implements selection.Movable."""

    name: str
    kv_tokens: int
    rank: int
    can_move: bool

    @property
    def need_tokens(self) -> int:
        return self.kv_tokens + BLOCK_TOKENS


def names(count: int) -> list[InstanceName]:
    return [InstanceName(f"i-{n:04d}") for n in range(count)]


def report(instance: InstanceName, random: Random) -> InstanceLoad:
    """Makes the report of an instance with up to 60 requests."""
    is_host = random.random() < HOST_SHARE
    running, used = [], 0
    most = random.choice((1600, 3000)) if is_host else random.randint(1000, CAPACITY_TOKENS)
    for n in range(random.randint(1, 40)):
        kv_tokens = BLOCK_TOKENS * random.randint(1, 60)
        if used + kv_tokens > most:
            break
        used += kv_tokens
        kind = random.choice((HIGH, NORMAL)) if is_host else random.choice((NORMAL, NORMAL, LOW))
        running.append(RequestLoad(RequestId(f"{instance}r{n}"), kind, kv_tokens, kv_tokens, 1))
    queue = random.randint(1, 20) if random.random() < QUEUE_SHARE else 0
    waiting = []
    for n in range(queue):
        tokens = BLOCK_TOKENS * random.randint(1, 60)
        kind = random.choice((NORMAL, NORMAL, LOW))
        waiting.append(RequestLoad(RequestId(f"{instance}w{n}"), kind, 0, tokens, 0, tokens))
    return InstanceLoad(
        instance=instance,
        incarnation="a",
        seq=1,
        at_unix_s=0.0,
        capacity_tokens=CAPACITY_TOKENS,
        used_tokens=used,
        block_size_tokens=BLOCK_TOKENS,
        max_running=MAX_RUNNING,
        running=tuple(running),
        waiting=tuple(waiting),
    )


def ledger(load: InstanceLoad, random: Random) -> tuple[InFlight, ...]:
    """Makes what was sent since a report: up to three requests."""
    return tuple(
        InFlight(RequestId(f"{load.instance}s{n}"), load.instance, NORMAL, 160, 0.0)
        for n in range(random.randint(0, 3))
    )


def request(n: int, instances: Sequence[InstanceName], random: Random) -> RequestDemand:
    """Makes a new request: a tenth high, a tenth low, some with a cached beginning."""
    tokens = random.randint(16, 1000)
    kind = random.choices((HIGH, NORMAL, LOW), (1, 8, 1))[0]
    cached: dict[InstanceName, int] = {}
    if random.random() < CACHED_SHARE:
        for instance in random.sample(instances, k=min(len(instances), random.randint(1, 8))):
            cached[instance] = random.randint(0, tokens)
    return RequestDemand(RequestId(f"new{n}"), tokens, kind, cached)


def to_pair(count: int, random: Random) -> list[Standing]:
    """Makes the standings of a round: a fifth are sources, a few idle, the others more or less
    free."""
    found = []
    for instance in names(count):
        s = Standing(instance, CAPACITY_TOKENS, BLOCK_TOKENS, MAX_RUNNING)
        found.append(s)
        if random.random() < IDLE_SHARE:
            continue
        requests = random.randint(10, 60)
        s.running = [0, requests, 0]
        is_source = random.random() < SOURCE_SHARE / (1 - IDLE_SHARE)
        steps = random.uniform(-10, 40) if is_source else random.uniform(60, 200)
        s.used_tokens = max(0, CAPACITY_TOKENS - int(steps * requests))
        s.running_tokens = [0, s.used_tokens, 0]
        if is_source and steps < 0:
            # What is short is what waits: memory itself is never overcommitted.
            s.head_tokens = s.used_tokens - CAPACITY_TOKENS + BLOCK_TOKENS
            s.used_tokens = CAPACITY_TOKENS - BLOCK_TOKENS
            s.queued, s.queued_tokens = [0, 1, 0], [0, s.head_tokens, 0]
    return found


def candidates(count: int, random: Random) -> list[Candidate]:
    """Makes the requests of a source."""
    return [
        Candidate(
            f"r{n}",
            BLOCK_TOKENS * random.randint(1, 60),
            random.choices((0, 1, 2), (1, 8, 1))[0],
            random.random() < 0.9,
        )
        for n in range(count)
    ]
