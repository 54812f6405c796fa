"""A continuous-batching engine in real time, without a model: the port of a real one, quick and
light.

It keeps the books that a real engine keeps (KV blocks, a waiting queue, preemption by recompute of
the last come) and sleeps as long as a step would take (costs.py). Prefills go first and are not
chunked, so a long prompt stalls decoding: the paper's engine. Its text is a fixed list of
sentences; a request's id decides where it begins and how long it naturally is, so the same request
always gets the same answer.
"""

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine_pool.engine_spec import SampleText
from engine_pool.errors import EngineRefused
from engine_pool.ports import EngineLoad, EngineRequest, StepOutput
from engine_pool.simulator.costs import (
    A10_CAPACITY_BLOCKS,
    BLOCK_SIZE_TOKENS,
    LIVELY,
    WATERMARK,
    StepCosts,
)
from engine_pool.types import RequestId, RequestLoad

NATURAL_MEDIAN_TOKENS = 120
NATURAL_SPREAD = 0.6
"""Natural lengths are log-normal: half of them between 80 and 180 tokens, one in fifty above
400."""


@dataclass(frozen=True, slots=True)
class SimulatedLimits:
    """What the engine can hold."""

    capacity_blocks: int = A10_CAPACITY_BLOCKS
    block_size_tokens: int = BLOCK_SIZE_TOKENS
    max_running: int = 64
    max_model_len: int = 4096
    max_prefill_tokens: int = 4096
    """Prompt tokens that one prefill step takes together; a longer prompt gets a step of its
    own."""

    @property
    def watermark_blocks(self) -> int:
        return max(1, int(self.capacity_blocks * WATERMARK))

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size_tokens)


@dataclass(slots=True)
class _Request:
    request: EngineRequest
    answer: "Answer"
    queue_key: tuple[int, float, int]
    output_tokens: int = 0
    blocks: int = 0
    preemptions: int = 0

    @property
    def tokens(self) -> int:
        return self.request.prompt_tokens + self.output_tokens


class Answer:
    """The tokens that one request will produce: the same ones for the same request id."""

    def __init__(self, request: EngineRequest, text: SampleText) -> None:
        seeded = random.Random(request.request_id)
        sentence = seeded.randrange(len(text.sentences))
        wanted_tokens = seeded.lognormvariate(math.log(NATURAL_MEDIAN_TOKENS), NATURAL_SPREAD)
        tokens = list(text.openings[sentence])
        while len(tokens) < max(wanted_tokens, request.min_tokens):
            sentence = (sentence + 1) % len(text.sentences)
            tokens += text.sentences[sentence]
        tokens.append(text.eos_token_id)
        self._ends_naturally = len(tokens) <= request.max_tokens
        self._tokens = tokens[: request.max_tokens]

    def token(self, index: int) -> tuple[int, str | None]:
        """Returns the token at an index and, with the last one, why it is the last."""
        is_last = index == len(self._tokens) - 1
        reason = "stop" if self._ends_naturally else "length"
        return self._tokens[index], reason if is_last else None


class SimulatedEngine:
    """Implements ports.Engine. `sleep(seconds)` passes the time of a step; tests put their own
    clock there."""

    def __init__(
        self,
        text: SampleText,
        limits: SimulatedLimits,
        costs: StepCosts = LIVELY,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._text = text
        self._limits = limits
        self._costs = costs
        self._sleep = sleep
        self._waiting: list[_Request] = []
        self._running: list[_Request] = []
        self._free_blocks = limits.capacity_blocks
        self._arrivals = 0
        self._preemptions_total = 0

    @property
    def max_model_len(self) -> int:
        return self._limits.max_model_len

    def add(self, request: EngineRequest) -> None:
        limits = self._limits
        if request.prompt_tokens + 1 > limits.max_model_len:
            raise EngineRefused(
                f"{request.prompt_tokens} prompt tokens; the model takes {limits.max_model_len}"
            )
        longest = min(request.prompt_tokens + request.max_tokens, limits.max_model_len)
        if limits.blocks_for(longest) > limits.capacity_blocks - limits.watermark_blocks:
            held = limits.capacity_blocks * limits.block_size_tokens
            raise EngineRefused(f"needs up to {longest} KV tokens; the engine holds {held}")
        self._arrivals += 1
        key = (request.priority_class.rank, request.arrival_unix_s, self._arrivals)
        self._waiting.append(_Request(request, Answer(request, self._text), key))
        self._waiting.sort(key=lambda r: r.queue_key)

    def abort(self, request_ids: Sequence[RequestId]) -> None:
        gone = set(request_ids)
        for r in self._running:
            if r.request.request_id in gone:
                self._free(r)
        self._running = [r for r in self._running if r.request.request_id not in gone]
        self._waiting = [r for r in self._waiting if r.request.request_id not in gone]

    def has_work(self) -> bool:
        return bool(self._running or self._waiting)

    def step(self) -> list[StepOutput]:
        started = time.monotonic()
        admitted = self._admit()
        if admitted:
            duration_ms = self._costs.prefill_ms(r.tokens for r in admitted)
            batch = admitted
        else:
            self._grow()
            batch = list(self._running)
            duration_ms = self._costs.decode_ms(len(batch), sum(r.tokens for r in batch))
        outputs = [self._produce(r) for r in batch]
        self._running = [r for r in self._running if r.blocks]
        # The books took some of the step's time already.
        self._sleep(max(0.0, duration_ms / 1000 - (time.monotonic() - started)))
        return outputs

    def load(self) -> EngineLoad:
        limits = self._limits
        size = limits.block_size_tokens
        return EngineLoad(
            capacity_tokens=limits.capacity_blocks * size,
            used_tokens=(limits.capacity_blocks - self._free_blocks) * size,
            block_size_tokens=size,
            max_running=limits.max_running,
            running=tuple(self._request_load(r) for r in self._running),
            waiting=tuple(self._request_load(r) for r in self._waiting),
            preemptions_total=self._preemptions_total,
        )

    def close(self) -> None:
        self._waiting, self._running = [], []
        self._free_blocks = self._limits.capacity_blocks

    def check_integrity(self) -> None:
        """Asserts that no block was lost or given twice."""
        held = sum(r.blocks for r in self._running)
        assert held + self._free_blocks == self._limits.capacity_blocks, "KV blocks are conserved"
        assert all(r.blocks == 0 for r in self._waiting), "a queued request holds no blocks"
        assert len(self._running) <= self._limits.max_running

    def _admit(self) -> list[_Request]:
        """Moves requests from the head of the queue into the batch, as many as fit one prefill
        step."""
        admitted: list[_Request] = []
        prompt_tokens = 0
        while self._waiting and len(self._running) < self._limits.max_running:
            head = self._waiting[0]
            # One token more: the step's own output needs its place.
            need = self._limits.blocks_for(head.tokens + 1)
            fits = need <= self._free_blocks - self._limits.watermark_blocks
            too_many = admitted and prompt_tokens + head.tokens > self._limits.max_prefill_tokens
            if not fits or too_many:
                break
            self._waiting.pop(0)
            head.blocks = need
            self._free_blocks -= need
            prompt_tokens += head.tokens
            admitted.append(head)
            self._running.append(head)
        return admitted

    def _grow(self) -> None:
        """Gives each running request room for its next token, preempting the last come when none
        is left."""
        for r in sorted(self._running, key=lambda r: r.queue_key):
            while r.blocks and self._limits.blocks_for(r.tokens + 1) > r.blocks:
                if self._free_blocks:
                    self._free_blocks -= 1
                    r.blocks += 1
                else:
                    self._preempt(max(self._running, key=lambda other: other.queue_key))

    def _preempt(self, victim: _Request) -> None:
        self._free(victim)
        victim.preemptions += 1
        self._preemptions_total += 1
        self._running.remove(victim)
        self._waiting.append(victim)
        self._waiting.sort(key=lambda r: r.queue_key)

    def _produce(self, r: _Request) -> StepOutput:
        token, finish_reason = r.answer.token(r.output_tokens)
        r.output_tokens += 1
        if finish_reason is None and r.tokens >= self._limits.max_model_len:
            finish_reason = "length"
        if finish_reason is not None:
            self._free(r)
        return StepOutput(r.request.request_id, (token,), finish_reason)

    def _free(self, r: _Request) -> None:
        self._free_blocks += r.blocks
        r.blocks = 0

    def _request_load(self, r: _Request) -> RequestLoad:
        size = self._limits.block_size_tokens
        return RequestLoad(
            request_id=r.request.request_id,
            priority_class=r.request.priority_class,
            kv_tokens=r.blocks * size,
            prompt_tokens=r.request.prompt_tokens,
            output_tokens=r.output_tokens,
            demand_tokens=0 if r.blocks else self._limits.blocks_for(r.tokens + 1) * size,
            preemptions=r.preemptions,
        )
