"""A request on its way into a vLLM engine: from the room that is held for it to its first step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine_pool.ports import EngineRequest
from engine_pool.vllm_sampling_state import SamplingState, cached_state, has_own_generator
from migration.ports import Parked

if TYPE_CHECKING:
    from vllm.v1.request import Request
    from vllm.v1.structured_output import StructuredOutputManager

    from engine_pool.vllm_workers import Workers


@dataclass(slots=True)
class HeldRequest:
    """In the scheduler's `requests`, in no queue."""

    wish: EngineRequest
    request: "Request"
    cached_blocks: int = 0
    has_place: bool = False
    """It will run at once when it is adopted; a queued one waits its turn."""
    grammar_tokens: int = 0
    """Output tokens that its grammar has accepted here."""
    spoilt: str = ""
    """Why its grammar is of no use any more."""


def advance_grammar(held: HeldRequest, grammars: "StructuredOutputManager") -> str:
    """Brings a request's grammar to its last output token, and with it what vLLM knows of the end
    of its reasoning. Returns why that cannot be, "" if it is."""
    own = held.request
    rule = own.structured_output_request
    new = own.output_token_ids[held.grammar_tokens :]
    if rule is None or not new or held.spoilt:
        return held.spoilt
    if not rule.is_grammar_ready:
        return "its grammar is not compiled yet"
    if isinstance(rule.grammar, Exception):
        held.spoilt = f"its grammar does not compile here: {rule.grammar}"
    elif not grammars.accept_tokens(own, list(new)):
        held.spoilt = "its output does not follow its grammar here"
    held.grammar_tokens = own.num_output_tokens
    return held.spoilt


def why_not_adoptable(
    held: HeldRequest, parked: Parked, state: SamplingState, *, room_tokens: int, is_v2: bool
) -> str:
    """Returns why a request cannot go on here as its source left it, "" if it can. `room_tokens`:
    what its blocks hold."""
    own, computed = held.request, parked.computed_tokens
    outputs = parked.output_token_ids
    if outputs[: own.num_output_tokens] != tuple(own.output_token_ids):
        return "its output tokens are not those that it was held with"
    all_tokens = own.num_prompt_tokens + len(outputs)
    if computed and (computed != all_tokens - 1 or not outputs):
        return f"{computed} of its {all_tokens} tokens are computed, not all but the last"
    if computed > room_tokens:
        return f"it has blocks for {room_tokens} tokens and brings {computed}"
    if not is_v2 and outputs and has_own_generator(own) and state.generator is None:
        return "the state of its random generator is missing"
    return ""


def enter(
    scheduler: Any, workers: "Workers", own: "Request", blocks: Sequence[int], state: SamplingState
) -> None:
    """Puts an adopted request where it belongs: queue or batch."""
    from vllm.v1.request import RequestStatus

    if own.num_output_tokens:
        # The first token, which says what the prefix cache did for it, was somebody else's.
        own.prefill_stats = None
        if not scheduler.use_v2_model_runner:
            _introduce(scheduler, workers, own, blocks, state)
    if own.num_computed_tokens == 0:
        # Preempted at the last moment, it may hold blocks that nothing was written to.
        scheduler.kv_cache_manager.free(own)
        if own.num_output_tokens:
            own.status = RequestStatus.PREEMPTED
        scheduler._enqueue_waiting_request(own)
        return
    scheduler.kv_cache_manager.cache_blocks(own, own.num_computed_tokens)
    if scheduler.use_v2_model_runner:
        # Only what is admitted from a queue reaches that runner with all its tokens. This queue
        # goes first, and its requests keep their blocks.
        own.status = RequestStatus.PREEMPTED
        scheduler._enqueue_waiting_request(own)
    else:
        # At the front: no other prompt may use up the next step's tokens.
        own.status = RequestStatus.RUNNING
        scheduler.running.insert(0, own)


def _introduce(
    scheduler: Any, workers: "Workers", own: "Request", blocks: Sequence[int], state: SamplingState
) -> None:
    """Tells V1 model runners of outputs that they did not sample."""
    # It may have left this engine a moment ago: the next step would make them forget it again.
    was_here = own.request_id in scheduler.finished_req_ids
    scheduler.finished_req_ids.discard(own.request_id)
    scheduler.prev_step_scheduled_req_ids.discard(own.request_id)
    workers.install(cached_state(own, blocks), state.generator, forget_first=was_here)
