"""What an engine's load reports are made of: written by the step thread, read by the publisher."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from engine_pool.ports import EngineLoad, EngineRequest
from engine_pool.types import InstanceLoad, InstanceName, RequestId, RequestLoad

ENDED_KEPT = 4096
"""Ended requests that wait for a report; more pile up only while the store is away, and the
ledger that needs them forgets by itself after 2 s."""


@dataclass(slots=True)
class _Counts:
    steps: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    requests_ended: int = 0
    moved_away: int = 0
    """Of those, how many went elsewhere alive."""
    last_token_unix_s: float | None = None
    unreported_steps: int = 0
    unreported_ms: float = 0.0
    step_ms: float | None = None


@dataclass(slots=True)
class LoadBook:
    """The books of one engine. Thread-safe; nothing in it waits for the engine or the store."""

    instance: InstanceName
    incarnation: str
    wall_clock: Callable[[], float] = time.time
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _engine: EngineLoad | None = None
    _inbox: dict[RequestId, EngineRequest] = field(default_factory=dict)
    _ended: list[RequestId] = field(default_factory=list)
    _counts: _Counts = field(default_factory=_Counts)
    _seq: int = 0
    _version: int = 0

    @property
    def version(self) -> int:
        """Changes with the requests that are there: a report of it does not wait. That they have
        grown by a token is said by the regular report; one a step would cost the engine's cores."""
        return self._version

    @property
    def steps_total(self) -> int:
        return self._counts.steps

    @property
    def last_token_unix_s(self) -> float | None:
        return self._counts.last_token_unix_s

    def request_counts(self) -> tuple[int, int]:
        """Returns how many requests run and wait."""
        engine = self._engine
        if engine is None:
            return 0, len(self._inbox)
        return len(engine.running), len(engine.waiting) + len(self._inbox)

    def received(self, requests: Iterable[EngineRequest]) -> None:
        """Notes requests that wait for the step thread."""
        with self._lock:
            self._inbox.update((r.request_id, r) for r in requests)
            self._version += 1

    def taken(self, request_ids: Iterable[RequestId], load: EngineLoad) -> None:
        """Notes that the engine has (or has refused) these requests; `load` is its load now."""
        with self._lock:
            for request_id in request_ids:
                self._inbox.pop(request_id, None)
            self._engine = load
            self._version += 1

    def stepped(self, *, load: EngineLoad, step_ms: float, prompts: int, outputs: int) -> None:
        """Notes one engine step: its duration, the prompt tokens it finished and the tokens it
        produced."""
        with self._lock:
            counts = self._counts
            counts.steps += 1
            counts.prompt_tokens += prompts
            counts.output_tokens += outputs
            counts.unreported_steps += 1
            counts.unreported_ms += step_ms
            if outputs:
                counts.last_token_unix_s = self.wall_clock()
            if self._engine is None or _requests(self._engine) != _requests(load):
                self._version += 1
            self._engine = load

    @property
    def used_tokens(self) -> int:
        """KV tokens that anybody holds."""
        return self._engine.used_tokens if self._engine is not None else 0

    def gone_totals(self) -> tuple[int, int]:
        """Returns how many requests have gone elsewhere alive so far, and how many have ended."""
        with self._lock:
            counts = self._counts
            return counts.moved_away, counts.requests_ended - counts.moved_away

    def ended(
        self, request_ids: Sequence[RequestId], load: EngineLoad, *, elsewhere: bool = False
    ) -> None:
        """Notes requests that are gone, for whatever reason. `elsewhere`: they go on there."""
        with self._lock:
            self._counts.requests_ended += len(request_ids)
            self._counts.moved_away += len(request_ids) if elsewhere else 0
            self._ended = (self._ended + list(request_ids))[-ENDED_KEPT:]
            self._engine = load
            self._version += 1

    def compose(self) -> InstanceLoad | None:
        """Returns a report of now, None before the engine is there. Call `reported` when it got
        through."""
        with self._lock:
            engine, counts = self._engine, self._counts
            if engine is None:
                return None
            self._seq += 1
            if counts.unreported_steps:
                counts.step_ms = counts.unreported_ms / counts.unreported_steps
                counts.unreported_steps, counts.unreported_ms = 0, 0.0
            size = engine.block_size_tokens
            inbox = tuple(_waiting(r, size) for r in self._inbox.values())
            return InstanceLoad(
                instance=self.instance,
                incarnation=self.incarnation,
                seq=self._seq,
                at_unix_s=self.wall_clock(),
                capacity_tokens=engine.capacity_tokens,
                used_tokens=engine.used_tokens,
                block_size_tokens=size,
                max_running=engine.max_running,
                running=engine.running,
                waiting=engine.waiting + inbox,
                ended=tuple(self._ended),
                step_ms=counts.step_ms,
                steps_total=counts.steps,
                preemptions_total=engine.preemptions_total,
                prompt_tokens_total=counts.prompt_tokens,
                output_tokens_total=counts.output_tokens,
                requests_ended_total=counts.requests_ended,
                last_token_unix_s=counts.last_token_unix_s,
            )

    def reported(self, load: InstanceLoad) -> None:
        """Notes that a report has reached the store: what it said is not said again."""
        with self._lock:
            self._ended = self._ended[len(load.ended) :]


def _requests(load: EngineLoad) -> tuple[int, int, int]:
    return len(load.running), len(load.waiting), load.preemptions_total


def _waiting(request: EngineRequest, block_size_tokens: int) -> RequestLoad:
    outputs = len(request.output_token_ids)
    # One token more than there are: the next output needs its place too.
    blocks = -(-(request.prompt_tokens + outputs + 1) // block_size_tokens)
    return RequestLoad(
        request_id=request.request_id,
        priority_class=request.priority_class,
        kv_tokens=0,
        prompt_tokens=request.prompt_tokens,
        output_tokens=outputs,
        demand_tokens=blocks * block_size_tokens,
    )
