"""Which faults, in which order, and which process each of them meets."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import psutil

from benchmarks.chaos_site import ChaosSite
from engine_pool.types import InstanceState


class Part(StrEnum):
    """What a fault meets."""

    ENGINE = "engine"
    RANK = "engine_rank"
    """A worker process of an engine that has several (tensor parallel)."""
    POOL = "pool"
    WEB = "web"
    WEB_2 = "web-2"
    WORKER = "worker"
    BEAT = "beat"
    STORE = "store"
    NODE = "node"
    """The raylet of the second node."""
    HEAD = "head"
    """The raylet of the head's node."""
    GCS = "gcs"


class Blow(StrEnum):
    KILL = "kill"
    """SIGKILL."""
    PAUSE = "pause"
    """SIGSTOP, and SIGCONT after a while; by then somebody may have ended it."""


SHORT_PAUSE_S: Final = (0.5, 5.0)
"""Shorter than anybody's patience: nothing but a delay may come of it."""
LONG_PAUSE_S: Final = (12.0, 25.0)
"""Longer than `lost_after_s` and the store's timeout: the part counts as dead and then wakes up."""
LONG_SHARE: Final = 0.5
GAP_S: Final = (1.0, 8.0)
"""Before a fault that comes on top of the one before."""
ON_TOP_SHARE: Final = 0.3
QUICK: Final = (
    (Part.ENGINE, Blow.KILL),
    (Part.POOL, Blow.KILL),
    (Part.WEB_2, Blow.KILL),
    (Part.ENGINE, Blow.PAUSE),
    (Part.STORE, Blow.PAUSE),
    (Part.NODE, Blow.KILL),
    (Part.WORKER, Blow.KILL),
    (Part.STORE, Blow.KILL),
)
"""The faults of a short run."""


@dataclass(frozen=True, slots=True)
class Fault:
    part: Part
    blow: Blow
    pause_s: float = 0.0
    is_on_top: bool = False
    """It does not wait until everything is well after the one before, but `gap_s`."""
    gap_s: float = 0.0

    def __str__(self) -> str:
        how = f"{self.blow} for {self.pause_s:.1f} s" if self.blow is Blow.PAUSE else self.blow
        return f"{self.part} {how}{', on top of the last' if self.is_on_top else ''}"


@dataclass(frozen=True, slots=True)
class Hit:
    """A fault that happened."""

    fault: Fault
    at_s: float
    pid: int
    name: str
    in_flight: int
    """Requests under way in the installation, as its reports said then."""


def plan(count: int, rng: random.Random, parts: Sequence[Part], *, is_short: bool) -> list[Fault]:
    """Returns faults: every part gets every blow in turn, in an order and at times by chance."""
    pairs: list[tuple[Part, Blow]] = []
    while len(pairs) < count:
        turn = [p for p in QUICK if p[0] in parts] if is_short else [
            (part, blow) for part in parts for blow in Blow
        ]  # fmt: skip
        rng.shuffle(turn)
        pairs += turn
    return [
        _fault(part, blow, rng, is_first=n == 0) for n, (part, blow) in enumerate(pairs[:count])
    ]


def _fault(part: Part, blow: Blow, rng: random.Random, *, is_first: bool) -> Fault:
    span = LONG_PAUSE_S if rng.random() < LONG_SHARE else SHORT_PAUSE_S
    pause_s = rng.uniform(*span) if blow is Blow.PAUSE else 0.0
    is_on_top = rng.random() < ON_TOP_SHARE and not is_first
    return Fault(part, blow, round(pause_s, 1), is_on_top, round(rng.uniform(*GAP_S), 1))


def victim(site: ChaosSite, part: Part, rng: random.Random) -> psutil.Process | None:
    """Returns the process that a fault of this part meets, None while there is none."""
    try:
        return _victim(site, part, rng)
    except psutil.Error:
        return None


def _victim(site: ChaosSite, part: Part, rng: random.Random) -> psutil.Process | None:
    if part in (Part.ENGINE, Part.RANK):
        pids = [s.pid for s in site.known_statuses() if s.state is InstanceState.SERVING and s.pid]
        # Another process may have a dead engine's number by now.
        engines = [p for p in site.engine_processes() if p.pid in pids]
        if part is Part.RANK:
            engines = [child for engine in engines for child in engine.children()]
        return rng.choice(engines) if engines else None
    name = {Part.NODE: "ray-2", Part.HEAD: "ray", Part.GCS: "ray"}.get(part, part.value)
    if part in (Part.WORKER, Part.BEAT):
        name = rng.choice((part.value, f"{part.value}-2"))
    found = site.processes(name)
    if part in (Part.NODE, Part.HEAD, Part.GCS):
        program = "gcs_server" if part is Part.GCS else "raylet"
        return next((p for p in found if p.name() == program), None)
    # The part's own process is the oldest of those that bear its mark.
    return min(found, key=lambda p: p.create_time(), default=None)


def strike(process: psutil.Process, blow: Blow) -> bool:
    """Kills or stops a process. Says whether it was still there."""
    try:
        process.kill() if blow is Blow.KILL else process.suspend()
    except psutil.Error:
        return False
    return True


def wake(process: psutil.Process) -> bool:
    """Lets a stopped process go on. Says whether it was still there."""
    try:
        process.resume()
    except psutil.Error:
        return False
    return True
