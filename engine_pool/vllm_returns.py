"""Requests that come back to life in a vLLM engine: their engine was lost, their tokens were not.

vLLM knows such requests: one that was preempted has outputs and no KV, and computes prompt and
outputs anew when its turn comes. So a request that brings output tokens becomes what it would be
if this engine had produced them and then preempted it; penalties, `min_tokens`, `max_tokens`, stop
tokens and the grammar count them. What its engine kept besides is made again: the grammar's state
by its tokens, a seed's random generator by as many draws. Where that cannot be shown to be right
the request is refused, and says why.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from engine_pool.ports import EngineRequest, StepOutput
from engine_pool.types import RequestId
from engine_pool.vllm_held import HeldRequest, advance_grammar, enter
from engine_pool.vllm_sampling_state import SamplingState, generator_after, has_own_generator
from engine_pool.vllm_shape import feature_of, why_engine_differs

if TYPE_CHECKING:
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.request import Request

    from engine_pool.vllm_workers import Workers


class VllmReturns:
    """Step thread only, between two steps."""

    def __init__(
        self,
        core: "EngineCore",
        workers: "Workers",
        *,
        entered: Callable[[EngineRequest, int], None],
    ) -> None:
        """`entered` hears of a request that is in the engine's queue now."""
        # vLLM's scheduler is its internals: checked at start, not typed here.
        scheduler: Any = core.scheduler
        self._scheduler = scheduler
        self._workers = workers
        self._grammars = core.structured_output_manager
        self._entered = entered
        self._why_not = why_engine_differs(core)
        self._makes_generators = _makes_generators(core, workers.facts.device)
        self._pending: dict[str, HeldRequest] = {}
        """They wait for their grammars to be compiled, in no queue of vLLM's."""
        self._refusals: list[StepOutput] = []

    def add(self, wish: EngineRequest, own: "Request") -> None:
        """Takes a request that was just read, with `wish.output_token_ids`."""
        if why := self._why_refused(own, len(wish.output_token_ids)):
            self._refuse(wish, why)
            return
        own.append_output_token_ids(list(wish.output_token_ids))
        self._pending[own.request_id] = HeldRequest(wish, own)
        self._enter_ready()

    def has_work(self) -> bool:
        """Says whether `take_refusals` or a step would get on with any."""
        return bool(self._pending or self._refusals)

    def before_step(self) -> None:
        """Queues those whose grammars are ready."""
        if self._pending:
            self._enter_ready()

    def take_refusals(self) -> list[StepOutput]:
        """Returns the ends of those that cannot go on here."""
        refused, self._refusals = self._refusals, []
        return refused

    def pending(self) -> "list[Request]":
        """Returns those that wait for their grammars."""
        return [held.request for held in self._pending.values()]

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forgets those that wait here; unknown ids are ignored."""
        gone = set(request_ids)
        for request_id in gone:
            self._pending.pop(request_id, None)
        self._refusals = [o for o in self._refusals if o.request_id not in gone]

    def _enter_ready(self) -> None:
        for request_id, held in list(self._pending.items()):
            rule = held.request.structured_output_request
            if rule is not None and not rule.is_grammar_ready:
                continue
            del self._pending[request_id]
            if why := advance_grammar(held, self._grammars):
                self._refuse(held.wish, why)
            else:
                self._enter(held)

    def _enter(self, held: HeldRequest) -> None:
        own, generator = held.request, None
        if has_own_generator(own) and not self._scheduler.use_v2_model_runner:
            assert own.sampling_params is not None
            seed = own.sampling_params.seed
            assert seed is not None
            generator = generator_after(seed, own.num_output_tokens)
        self._scheduler.requests[own.request_id] = own
        enter(self._scheduler, self._workers, own, (), SamplingState(0, generator))
        self._entered(held.wish, 0)

    def _refuse(self, wish: EngineRequest, why: str) -> None:
        self._refusals.append(StepOutput(RequestId(wish.request_id), (), refusal=why))

    def _why_refused(self, own: "Request", outputs: int) -> str:
        """Returns why a request cannot go on here after that many outputs, "" if it can."""
        if self._why_not:
            return f"the engine uses {self._why_not}"
        if feature := feature_of(own):
            return f"the request uses {feature}"
        if outputs >= own.max_tokens:
            return "it has all its tokens already"
        limit: int = self._scheduler.max_model_len
        longest = own.num_prompt_tokens + own.max_tokens
        if longest > limit:
            # A shorter limit than that of the engine before would end the answer early.
            return f"it may get {longest} tokens long, the limit here is {limit}"
        is_v2: bool = self._scheduler.use_v2_model_runner
        if has_own_generator(own) and not (is_v2 or self._makes_generators):
            return "the state of its random generator was lost, and is not made again here"
        return ""


def _makes_generators(core: "EngineCore", device: str) -> bool:
    """Says whether a seed's draws are those of `generator_after`: vLLM's sampler for CPUs, one
    number a token. Elsewhere the first model runner draws the whole vocabulary a token."""
    from vllm.platforms import CpuArchEnum, current_platform

    if device != "cpu" or core.vllm_config.model_config.use_fp64_gumbel:
        return False
    arch = current_platform.get_cpu_architecture()
    return arch not in (CpuArchEnum.RISCV, CpuArchEnum.POWERPC)
