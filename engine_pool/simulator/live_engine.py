"""A continuous-batching engine in real time, without a model: the port of a real one, quick and
light.

It keeps the books that a real engine keeps (KV blocks, a queue in the order of `turns`, preemption
by recompute of the lowest class's last come) and sleeps as long as a step would take (costs.py).
Prefills go first and are not chunked, so a long prompt stalls decoding: the paper's engine. Its
text is a fixed list of sentences; a request's id decides where it begins and how long it naturally
is, so the same request always gets the same answer.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine_pool.class_rules import ClassRules
from engine_pool.config import PoolConfig
from engine_pool.engine_spec import SampleText
from engine_pool.errors import EngineRefused
from engine_pool.ports import EngineLoad, EngineRequest, StepOutput
from engine_pool.simulator.answer import Answer
from engine_pool.simulator.books import Books, SimulatedRequest
from engine_pool.simulator.costs import (
    A10_CAPACITY_BLOCKS,
    BLOCK_SIZE_TOKENS,
    LIVELY,
    WATERMARK,
    StepCosts,
)
from engine_pool.simulator.live_queue import LiveQueue
from engine_pool.simulator.moves import SimulatedMoves, simulated_shape
from engine_pool.turns import TurnRules, Turns, check_weight
from engine_pool.types import RequestId, RequestLoad


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


class SimulatedEngine:
    """Implements ports.Engine. `sleep(seconds)` passes the time of a step, `clock` says how long
    requests wait (monotonic seconds); tests put their own there."""

    def __init__(
        self,
        text: SampleText,
        limits: SimulatedLimits,
        costs: StepCosts = LIVELY,
        sleep: Callable[[float], None] = time.sleep,
        rules: TurnRules | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._text = text
        self._limits = limits
        self._costs = costs
        self._sleep = sleep
        self._books = Books(
            capacity_blocks=limits.capacity_blocks,
            watermark_blocks=limits.watermark_blocks,
            block_size_tokens=limits.block_size_tokens,
            max_running=limits.max_running,
        )
        self._turns = Turns(rules or TurnRules.of(PoolConfig()))
        self._queue = LiveQueue(self._books, self._turns, clock)
        self._moves = SimulatedMoves(
            self._books,
            shape=simulated_shape(text, limits.block_size_tokens),
            max_model_len=limits.max_model_len,
            read=self._read,
            queue=self._queue,
        )
        self._arrivals = 0
        self._refusals: list[StepOutput] = []

    @property
    def max_model_len(self) -> int:
        return self._limits.max_model_len

    @property
    def moves(self) -> SimulatedMoves:
        return self._moves

    def use_classes(self, classes: ClassRules) -> None:
        self._turns.use_classes(classes)

    def add(self, request: EngineRequest) -> None:
        r = self._read(request)
        if not r.answer.goes_on_after(request.output_token_ids):
            self._refusals.append(
                StepOutput(request.request_id, (), refusal="its answer is another one here")
            )
            return
        r.output_tokens = len(request.output_token_ids)
        self._queue.add(r)

    def _read(self, request: EngineRequest) -> SimulatedRequest:
        """Makes a request's entry in the books. Raises: EngineRefused when it can never run."""
        check_weight(request)
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
        return SimulatedRequest(request, Answer(request, self._text), self._arrivals)

    def abort(self, request_ids: Sequence[RequestId]) -> None:
        # A held request is its source's still.
        mine = [i for i in request_ids if i not in self._books.held]
        self._refusals = [o for o in self._refusals if o.request_id not in mine]
        self._books.remove(set[str](mine))
        self._queue.ended(mine)

    def has_work(self) -> bool:
        # With blocks parked or held, the queue may have to wait for a move and not for a step.
        waiting = self._books.waiting
        if self._books.running or self._refusals:
            return True
        return bool(waiting) and self._fits(waiting[0])

    def step(self) -> list[StepOutput]:
        if self._refusals:
            refused, self._refusals = self._refusals, []
            return refused
        started = time.monotonic()
        self._queue.before_step()
        admitted = self._admit()
        if admitted:
            duration_ms = self._costs.prefill_ms(r.tokens for r in admitted)
            batch = admitted
        else:
            self._grow()
            batch = list(self._books.running)
            duration_ms = self._costs.decode_ms(len(batch), sum(r.tokens for r in batch))
        outputs = [self._produce(r) for r in batch]
        self._books.running = [r for r in self._books.running if r.blocks]
        self._queue.ended(o.request_id for o in outputs if o.finish_reason is not None)
        # The books took some of the step's time already.
        self._sleep(max(0.0, duration_ms / 1000 - (time.monotonic() - started)))
        return outputs

    def load(self) -> EngineLoad:
        books = self._books
        size = books.block_size_tokens
        # A parked request is this engine's until it is released. A held one is its source's, but
        # its blocks are used here.
        parked = books.parked.values()
        batch = (*books.running, *(r for r in parked if r.blocks))
        queue = (*books.waiting, *(r for r in parked if not r.blocks))
        return EngineLoad(
            capacity_tokens=books.capacity_blocks * size,
            used_tokens=(books.capacity_blocks - books.free_blocks) * size,
            block_size_tokens=size,
            max_running=books.max_running,
            running=tuple(self._request_load(r) for r in batch),
            waiting=tuple(self._request_load(r) for r in queue),
            preemptions_total=self._queue.preemptions_total,
        )

    def close(self) -> None:
        self._books.clear()

    def check_integrity(self) -> None:
        """Asserts that no block was lost or given twice."""
        self._books.check_integrity()

    def _fits(self, head: SimulatedRequest) -> bool:
        # One token more: the step's own output needs its place.
        needed = self._books.blocks_for(head.tokens + 1)
        return self._books.free_places > 0 and self._books.has_room_for(needed)

    def _admit(self) -> list[SimulatedRequest]:
        """Moves requests from the head of the queue into the batch, as many as fit one prefill
        step."""
        books = self._books
        admitted: list[SimulatedRequest] = []
        prompt_tokens = 0
        while books.waiting and self._fits(head := books.waiting[0]):
            if admitted and prompt_tokens + head.tokens > self._limits.max_prefill_tokens:
                break
            books.waiting.pop(0)
            books.take(head, books.blocks_for(head.tokens + 1))
            prompt_tokens += head.tokens
            admitted.append(head)
            books.running.append(head)
            self._queue.admitted(head)
        return admitted

    def _grow(self) -> None:
        """Gives each running request room for its next token, preempting the last come when none
        is left."""
        books = self._books
        for r in sorted(books.running, key=lambda r: r.queue_key):
            while r.blocks and books.blocks_for(r.tokens + 1) > r.blocks:
                if books.free_blocks:
                    books.take(r, 1)
                else:
                    self._queue.preempt(max(books.running, key=lambda other: other.queue_key))

    def _produce(self, r: SimulatedRequest) -> StepOutput:
        token, finish_reason = r.answer.token(r.output_tokens)
        r.output_tokens += 1
        self._queue.produced(r)
        if finish_reason is None and r.tokens >= self._limits.max_model_len:
            finish_reason = "length"
        if finish_reason is not None:
            self._books.free(r)
        return StepOutput(r.request.request_id, (token,), finish_reason)

    def _request_load(self, r: SimulatedRequest) -> RequestLoad:
        size = self._limits.block_size_tokens
        return RequestLoad(
            request_id=r.request.request_id,
            priority_class=r.request.priority_class,
            kv_tokens=r.blocks * size,
            prompt_tokens=r.request.prompt_tokens,
            output_tokens=r.output_tokens,
            demand_tokens=0 if r.blocks else self._books.blocks_for(r.tokens + 1) * size,
            preemptions=r.preemptions,
        )
