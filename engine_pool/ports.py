"""The interfaces between the pool's shells and what they drive.

`Engine` has two implementations: `vllm_adapter.VllmEngine` (a real vLLM EngineCore in this process)
and
`simulator.live_engine.SimulatedEngine` (a latency model in real time). `engine_actor.EngineActor`
hosts either and adds what both need: the step thread, the token log, load reports.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from engine_pool.class_rules import ClassRules
from engine_pool.types import PriorityClass, RequestId, RequestLoad


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A request as a web process sends it to an engine.

    `payload` is the engine's own encoding: for vLLM an EngineCoreRequest in vLLM's msgpack; a
    simulated engine reads only the plain fields.
    """

    request_id: RequestId
    epoch: int
    """Number of the producer, from 1; a takeover raises it (token_log.py, fencing)."""
    prompt_tokens: int
    max_tokens: int
    min_tokens: int
    """Output tokens before which no end token ends it; `max_tokens` when end tokens are
    ignored."""
    priority_class: PriorityClass
    tenant: str
    arrival_unix_s: float
    payload: bytes
    weight: float = 1.0
    """The tenant's share of its class, against the other tenants' (policy/fair_share.py)."""
    output_token_ids: tuple[int, ...] = ()
    """What engines that were lost have produced of its answer already: it goes on after them."""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one step produced for one request."""

    request_id: RequestId
    token_ids: tuple[int, ...]
    finish_reason: str | None = None
    """vLLM's FinishReason in words (stop, length, abort, error, repetition), None while it goes
    on."""
    stop_reason: int | str | None = None
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache; meaningful in a request's first output."""
    detail: bytes | None = None
    """Logprobs and the like in the engine's own encoding, read only by the matching front end."""
    refusal: str = ""
    """Why a request that came with output tokens cannot go on here; it has ended then, without a
    token."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The engine's part of an InstanceLoad; fields as there."""

    capacity_tokens: int
    used_tokens: int
    block_size_tokens: int
    max_running: int
    running: tuple[RequestLoad, ...]
    waiting: tuple[RequestLoad, ...]
    preemptions_total: int


class Engine(Protocol):
    """A continuous-batching engine. Every method is called from the actor's one step thread
    only."""

    def add(self, request: EngineRequest) -> None:
        """Queues a request. Raises: EngineRefused when it can never run; nothing is queued then.

        One that brings output tokens and cannot go on after them is refused by an output."""

    def abort(self, request_ids: Sequence[RequestId]) -> None:
        """Ends requests and frees their KV blocks before the next step. Unknown ids are ignored."""

    def has_work(self) -> bool:
        """Says whether `step` would do anything."""

    def step(self) -> list[StepOutput]:
        """Runs one iteration and returns its outputs. Raises: any error means the engine is
        dead."""

    def load(self) -> EngineLoad:
        """Returns the present load; O(requests), no device work."""

    def close(self) -> None:
        """Frees the engine's resources and ends its worker processes, if it has any."""


@runtime_checkable
class ClassedEngine(Engine, Protocol):
    """An engine whose queue treats priority classes as operators want it."""

    def use_classes(self, classes: ClassRules) -> None:
        """Treats them so from the next step on."""


@dataclass(frozen=True, slots=True)
class Pong:
    """What an engine actor says about itself when the pool asks."""

    instance: str
    incarnation: str
    fingerprint: str
    is_ready: bool
    node: str
    pid: int
    rss_bytes: int
    running: int
    waiting: int
    steps_total: int
    last_token_unix_s: float | None
    is_store_away: bool
    max_model_len: int | None
    used_tokens: int = 0
    """KV tokens held by anybody, prefix cache that nobody uses left out."""
    moves: int = 0
    """Moves that come to it or go from it now."""
    door: str = ""
    """Why it takes nothing new: "cordoned" or "draining"; empty: it does."""
    door_since_unix_s: float | None = None
    """When its door was closed; None: it is open."""
    requests_at_closing: int = 0
    moved_away: int = 0
    """Requests that have gone elsewhere alive since its door was closed."""
    ended: int = 0
    """Requests that have ended here since then."""
    leaving_since_unix_s: float | None = None
    """When its process was told to end (SIGTERM); None: it was not."""
    leave_deadline_unix_s: float | None = None
    """When it ends by itself then."""
    launched_unix_s: float = 0.0
    """When the pool made it, by the pool's clock."""
    installation: str = ""
    """Digest of the store it belongs to: two installations may share one Ray cluster."""
