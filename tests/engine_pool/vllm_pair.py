"""Two real engines in one process, stepped by hand, and moves between them through their KV memory.

What a coordinator, two hosts and a transport do over seconds happens here between two steps, so a
test can move a request at the very token it means.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from engine_pool.config import PoolConfig
from engine_pool.engine_spec import EngineSpec
from engine_pool.ports import EngineRequest, StepOutput
from engine_pool.types import InstanceName, PriorityClass
from engine_pool.vllm_detail import decode_detail
from migration.ports import Held, Outgoing, Parked, Refusal
from tests.engine_pool.make import request
from tests.tiny_model import VOCABULARY, tiny_model

if TYPE_CHECKING:
    from engine_pool.vllm_adapter import VllmEngine

KV_CACHE_GIB = 0.0025
"""40 blocks of the tiny model: enough for two of its longest requests, and soon full."""
MAX_RUNNING = 4
STEPS_MAX = 50_000
"""A grammar is compiled by another thread while the engine takes empty steps."""
_numbers = count(1)


def make_engine(name: str, ranks: int = 1) -> "VllmEngine":
    """Returns an engine with 39 blocks for requests."""
    from engine_pool.vllm_adapter import VllmEngine

    config = PoolConfig(kv_cache_gib=KV_CACHE_GIB, max_running=MAX_RUNNING, tensor_parallel=ranks)
    return VllmEngine(EngineSpec(InstanceName(name), "a", config, str(tiny_model()), 1, 0))


def prompt_of(tokens: int, seed: int = 1) -> list[int]:
    return [3 + (seed * 131 + n * n * 7 + n * 17) % (VOCABULARY - 3) for n in range(tokens)]


def wish(
    prompt: Sequence[int],
    *,
    name: str = "",
    priority: PriorityClass = PriorityClass.NORMAL,
    arrival_s: float = 0.0,
    **sampling: object,
) -> EngineRequest:
    """Returns a greedy request with logprobs, unless `sampling` says otherwise."""
    from vllm import SamplingParams
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.serial_utils import MsgpackEncoder

    request_id = name or f"r{next(_numbers)}"
    usual = {"max_tokens": 24, "ignore_eos": True, "temperature": 0.0, "logprobs": 2}
    settings: dict[str, Any] = usual | sampling
    params = SamplingParams(**settings)
    core = EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=list(prompt),
        mm_features=None,
        sampling_params=params,
        pooling_params=None,
        arrival_time=arrival_s,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )
    return request(
        request_id,
        prompt_tokens=len(prompt),
        max_tokens=params.max_tokens or 0,
        priority=priority,
        payload=b"".join(MsgpackEncoder(size_threshold=1 << 60).encode(core)),
    )


@dataclass
class Answer:
    """Everything that a client would see of one request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[tuple[tuple[int, ...], tuple[float, ...]]] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def take(self, output: StepOutput) -> None:
        assert self.finish_reason is None, "tokens after the end"
        self.tokens += output.token_ids
        self.finish_reason, self.stop_reason = output.finish_reason, output.stop_reason
        if output.detail is not None:
            logprobs, _ = decode_detail(output.detail)
            assert logprobs is not None
            for ids, values in zip(
                logprobs.logprob_token_ids.tolist(), logprobs.logprobs.tolist(), strict=True
            ):
                self.logprobs.append((tuple(ids), tuple(values)))


@dataclass(frozen=True)
class Moved:
    """What one move did."""

    sent_blocks: int
    cached_blocks: int
    seen: Outgoing
    parked: Parked


class Pair:
    """Two engines, and where each request is."""

    def __init__(self, first: "VllmEngine", second: "VllmEngine") -> None:
        self.engines = (first, second)
        self.answers: dict[str, Answer] = {}
        self.at: dict[str, int] = {}
        self.wishes: dict[str, EngineRequest] = {}

    def add(self, one: EngineRequest, at: int = 0) -> str:
        self.engines[at].add(one)
        self.at[one.request_id] = at
        self.wishes[one.request_id] = one
        self.answers[one.request_id] = Answer()
        return one.request_id

    def step(self, at: int | None = None) -> None:
        for number, engine in enumerate(self.engines):
            if at in (None, number) and engine.has_work():
                for output in engine.step():
                    assert self.at[output.request_id] == number, "the wrong engine speaks"
                    self.answers[output.request_id].take(output)

    def until(self, request_id: str, tokens: int) -> None:
        """Steps both engines until a request has that many tokens. A step yields one."""
        for _ in range(STEPS_MAX):
            if len(self.answers[request_id].tokens) >= tokens:
                return
            self.step()
        raise AssertionError(f"{request_id} does not get to {tokens} tokens")

    def finish(self) -> None:
        for _ in range(STEPS_MAX):
            if not any(engine.has_work() for engine in self.engines):
                return
            self.step()
        raise AssertionError("the engines do not come to an end")

    def move(self, request_id: str, *, steps: int = 0) -> Moved:
        """Moves a request to the other engine, which it leaves after `steps` more steps: what is
        complete is copied before each of them."""
        source, destination = self._ends(request_id)
        seen = self.look(request_id)
        # One token more than there are: the next step may need a block for it.
        room = 0 if seen.is_queued else seen.computed_tokens + 1
        held = destination.moves.hold(self.wishes[request_id], seen.output_token_ids, room)
        assert isinstance(held, Held), held
        cached = sent = held.cached_blocks
        for _ in range(steps):
            complete = seen.complete_blocks
            self.copy(source, complete[sent:], destination, held.blocks[sent : len(complete)])
            sent = max(sent, len(complete))
            self.step()
            seen = self.look(request_id)
            held = destination.moves.reserve(request_id, seen.computed_tokens + 1)
            assert isinstance(held, Held), held
        assert source.moves.park(request_id) is None
        parked = self.parked(request_id)
        last = parked.blocks[sent:]
        self.copy(source, last, destination, held.blocks[sent : len(parked.blocks)])
        self.adopt(request_id, parked)
        source.moves.release(request_id)
        self.at[request_id] = 1 - self.at[request_id]
        return Moved(max(0, len(parked.blocks) - cached), cached, seen, parked)

    def copy(
        self,
        source: "VllmEngine",
        sent: Sequence[int],
        destination: "VllmEngine",
        into: Sequence[int],
    ) -> None:
        copy_blocks(source, sent, destination, into)

    def look(self, request_id: str) -> Outgoing:
        source, _ = self._ends(request_id)
        seen = source.moves.look(request_id)
        assert isinstance(seen, Outgoing), seen
        return seen

    def parked(self, request_id: str) -> Parked:
        at = self.at[request_id]
        for _ in range(STEPS_MAX):
            if (parked := self.engines[at].moves.parked(request_id)) is not None:
                return parked
            self.step(at)
        raise AssertionError(f"{request_id} stays in flight")

    def adopt(self, request_id: str, parked: Parked) -> None:
        """Adopts a request, waiting for its grammar if it has one."""
        _, destination = self._ends(request_id)
        for _ in range(STEPS_MAX):
            refusal = destination.moves.adopt(request_id, parked)
            if refusal is None:
                return
            assert refusal == Refusal("refused", "its grammar is not compiled yet")
        raise AssertionError("its grammar is not compiled at all")

    def _ends(self, request_id: str) -> "tuple[VllmEngine, VllmEngine]":
        at = self.at[request_id]
        return self.engines[at], self.engines[1 - at]


def copy_blocks(
    source: "VllmEngine", sent: Sequence[int], destination: "VllmEngine", into: Sequence[int]
) -> None:
    """Copies blocks, the memory's side of a stage."""
    assert source.kv is not None
    assert destination.kv is not None
    assert len(sent) == len(into)
    if sent:
        buffer = source.kv.new_buffer(len(sent))
        source.kv.gather(sent, buffer)
        destination.kv.scatter(into, buffer)


def run_unmoved(pair: Pair, *wishes: EngineRequest) -> list[Answer]:
    """Answers requests on the first engine alone, together, with an empty prefix cache; leaves an
    empty one."""
    forget_prefixes(pair)
    request_ids = [pair.add(one) for one in wishes]
    pair.finish()
    forget_prefixes(pair)
    return [pair.answers[request_id] for request_id in request_ids]


def forget_prefixes(pair: Pair) -> None:
    """Empties the prefix caches, so that what one case computes does not help the next."""
    for engine in pair.engines:
        assert engine._scheduler.reset_prefix_cache()
