"""The values that the pool, the policies and the gateway exchange. Standard library only.

Nothing here acts. Units are in the names; `unix_s` is wall-clock seconds since the epoch (for rows
and pages), durations are measured with a monotonic clock by whoever needs one. Terms:
ARCHITECTURE.md, glossary.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

InstanceName = NewType("InstanceName", str)
RequestId = NewType("RequestId", str)


class PriorityClass(StrEnum):
    """How urgently a request is served, highest first. `rank` orders classes: lower is more
    urgent."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"

    @property
    def rank(self) -> int:
        return _RANKS[self]


_RANKS = {PriorityClass.HIGH: 0, PriorityClass.NORMAL: 1, PriorityClass.LOW: 2}


class InstanceState(StrEnum):
    """What an instance is doing. Why it does so is `InstanceStatus.cause`."""

    STARTING = "starting"
    SERVING = "serving"
    CORDONED = "cordoned"
    DRAINING = "draining"
    DRAINED = "drained"
    STOPPING = "stopping"
    STOPPED = "stopped"
    LOST = "lost"


class EngineKind(StrEnum):
    VLLM = "vllm"
    SIMULATED = "simulated"


@dataclass(frozen=True, slots=True)
class RequestLoad:
    """One request as its engine sees it."""

    request_id: RequestId
    priority_class: PriorityClass
    kv_tokens: int
    """Tokens whose KV blocks the request holds, rounded up to whole blocks (0 while it waits)."""
    prompt_tokens: int
    output_tokens: int
    demand_tokens: int = 0
    """KV tokens it needs before it can run, rounded up to whole blocks (0 once it runs)."""
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class InstanceLoad:
    """An instance's report about itself: pushed on change, and at least every
    `report_interval_ms`."""

    instance: InstanceName
    incarnation: str
    """Changes at every start of the instance, so that a report of a dead predecessor is
    recognised."""
    seq: int
    at_unix_s: float
    capacity_tokens: int
    used_tokens: int
    block_size_tokens: int
    max_running: int
    """The most requests that the engine runs in one step (vLLM's max_num_seqs)."""
    running: tuple[RequestLoad, ...] = ()
    waiting: tuple[RequestLoad, ...] = ()
    """Queued requests in the order in which the engine would take them; the first is the head of
    line."""
    ended: tuple[RequestId, ...] = ()
    """Requests that ended since the report before this one."""
    step_ms: float | None = None
    """Mean duration of the engine steps since the last report that had one; None before the first
    step."""
    steps_total: int = 0
    preemptions_total: int = 0
    prompt_tokens_total: int = 0
    output_tokens_total: int = 0
    requests_ended_total: int = 0
    last_token_unix_s: float | None = None
    """When the engine last produced a token; None before its first."""

    @property
    def free_tokens(self) -> int:
        return self.capacity_tokens - self.used_tokens

    @property
    def head_demand_tokens(self) -> int:
        """KV tokens that the head of the line needs (Llumnix, queued request); 0 without a
        queue."""
        return self.waiting[0].demand_tokens if self.waiting else 0


@dataclass(frozen=True, slots=True)
class DrainProgress:
    """How far an instance's drain is, as the pool process sees it once a second."""

    begun_unix_s: float
    requests_at_start: int
    left: int
    """Requests that run or wait there now."""
    moving: int
    """Of those, how many are on their way."""
    moved: int
    """Requests that have left alive since the start."""
    ended: int
    """Requests that have ended there by themselves since the start."""
    estimate_s: float | None = None
    """Until it is empty, at the rate so far; None while nothing has left yet."""
    deadline_unix_s: float | None = None
    leftover: str = "wait"
    """What happens at the deadline (policy.wishes.Leftover)."""
    obstacle: str = ""
    """Why what is left does not move, in words; empty while it does."""
    verified_unix_s: float | None = None
    """When it was proven empty: no request, no used block, no transfer, and its door closed."""


CRASH_LOOP_FAILURES = 5
"""Failures in a row from which an instance counts as in a crash loop: with the default back-off
they take at least 15 s, which no transient fault does five times."""


@dataclass(frozen=True, slots=True)
class InstanceStatus:
    """What the pool knows of an instance, written by the pool process alone."""

    instance: InstanceName
    pool: str
    incarnation: str
    state: InstanceState
    cause: str
    """Why it is in this state, in words for an operator: "first start", "exit code -9, restart in 4
    s"."""
    since_unix_s: float
    node: str
    model: str
    engine: EngineKind
    pid: int | None = None
    restarts: int = 0
    actor: str = ""
    """Ray's name of the actor, by which a web process finds it."""
    max_model_len: int | None = None
    rss_bytes: int | None = None
    wanted: str = "serving"
    """What it shall do (policy.wishes.WantedState), its node's wish included."""
    wanted_by: str = ""
    wanted_reason: str = ""
    drain: DrainProgress | None = None
    """While it drains, and after; None when no drain is wanted."""
    engine_started_unix_s: float | None = None
    """When its present engine's start began."""
    is_outdated: bool = False
    """It runs with other engine settings than the pool has now."""
    failures: int = 0
    """Deaths and failed starts in a row; 0 once it has served for a while."""

    @property
    def is_crash_looping(self) -> bool:
        return self.failures >= CRASH_LOOP_FAILURES


@dataclass(frozen=True, slots=True)
class FleetEvent:
    """Something that happened to the pool, for the events list and for the database."""

    at_unix_s: float
    kind: str
    """A slug: instance_starting, instance_serving, instance_lost, instance_restarting, store_lost,
    ..."""
    headline: str
    detail: str
    instance: str = ""
    severity: str = "info"
    """info, warn or bad."""
    link: str = ""
    """Where more of it stands, on this installation's pages; empty when nowhere."""


@dataclass(frozen=True, slots=True)
class InstanceSample:
    """One instance in one second, for the charts. None: no fresh report, which a chart shows as a
    gap."""

    freeness_tokens: float | None
    """Decode steps that the batch can still take (Llumnix, freeness); None also for an idle
    instance."""
    used_tokens: int | None
    virtual_tokens: int | None
    running: int | None
    waiting: int | None


@dataclass(frozen=True, slots=True)
class FleetSample:
    """The whole pool in one second; the pool process writes one a second."""

    at_unix_s: float
    instances: dict[InstanceName, InstanceSample]
    output_tokens_total: int
    prompt_tokens_total: int
    preemptions_total: int


@dataclass(frozen=True, slots=True)
class InFlight:
    """A request that a web process has sent to an instance whose reports do not show it yet (the
    ledger)."""

    request_id: RequestId
    instance: InstanceName
    priority_class: PriorityClass
    demand_tokens: int
    """KV tokens that it needs there before it can run, in whole blocks; what is cached there, and
    what another choice of the same prompt counts, is left out."""
    sent_unix_s: float
    prefix: tuple[int, ...] = ()
    """Hashes of its prompt's beginnings (prefix_map.py), which will be in that instance's prefix
    cache; empty where that is of no use."""


@dataclass(frozen=True, slots=True)
class PoolView:
    """What a decision sees: every instance's status and last report, and the ledger."""

    statuses: tuple[InstanceStatus, ...] = ()
    loads: tuple[InstanceLoad, ...] = ()
    in_flight: tuple[InFlight, ...] = field(default=())
