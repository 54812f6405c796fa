"""The books' side of a move for a vLLM engine: implements migration.ports.MovingEngine.

vLLM has no such thing as a request that comes or goes while it runs. But the EngineCore lives in
this process and the step thread owns it, so between two steps its scheduler's own objects can be
set to what they would be if the request had always been here, or never:

- parked: taken out of `scheduler.running` or its queue, all else kept;
- held: in `scheduler.requests` with blocks, in no queue;
- adopted: in `scheduler.running`, all tokens but the last one computed.

No function of vLLM is replaced. A parked or held request that will run keeps a place in the batch:
`max_num_active_reqs`, up to which the scheduler admits requests, is lowered meanwhile.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from engine_pool.errors import EngineRefused
from engine_pool.ports import EngineRequest
from engine_pool.types import RequestId
from engine_pool.vllm_held import HeldRequest, advance_grammar, enter, why_not_adoptable
from engine_pool.vllm_sampling_state import decode_state, encode_state, has_own_generator
from engine_pool.vllm_shape import why_request_cannot_move
from migration.ports import Held, KvShape, Outgoing, Parked, Refusal

if TYPE_CHECKING:
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.request import Request

    from engine_pool.vllm_workers import Workers

REFUSED = "refused"
NO_BLOCKS = "no_blocks"
FINISHED = "request_finished"


class VllmMoves:
    """Step thread only, between two steps."""

    def __init__(
        self,
        core: "EngineCore",
        workers: "Workers",
        *,
        shape: KvShape,
        why_not: str,
        read: "Callable[[EngineRequest], Request]",
        adopted: Callable[[EngineRequest, int], None],
        ended: Callable[[Sequence[RequestId]], None],
        looked: Callable[[str], None],
    ) -> None:
        """`why_not`: what rules out every move, "" if nothing does. `read` decodes a request, not
        adding it; it raises EngineRefused. `adopted` hears of a request that is the engine's own
        now, and of its preemptions elsewhere; `ended` of those that are not any more, and calls
        `forget`; `looked` of those that a move is interested in. No step may be in flight."""
        # vLLM's scheduler is its internals: checked at start, not typed here.
        scheduler: Any = core.scheduler
        self._scheduler = scheduler
        self._workers = workers
        self._grammars = core.structured_output_manager
        self._core = core
        self._shape = shape
        self._why_not = why_not
        self._read = read
        self._adopted = adopted
        self._ended = ended
        self._looked = looked
        self._parked: dict[str, int | None] = {}
        """Place in the batch; None: it was queued."""
        self._held: dict[str, HeldRequest] = {}
        self._places: int = scheduler.max_num_active_reqs
        if core.batch_queue is not None:
            # With steps in flight, a block that one of them still writes could be given to a held
            # request and be overwritten there. vLLM knows the danger, and this switch against it,
            # for its own KV connectors only.
            assert not core.batch_queue
            scheduler.defer_block_free = True

    @property
    def shape(self) -> KvShape:
        return self._shape

    def holds(self, request_id: str) -> bool:
        """Says whether a request is held here, for its source."""
        return request_id in self._held

    def parked_requests(self) -> "list[Request]":
        known = self._scheduler.requests
        return [known[request_id] for request_id in self._parked if request_id in known]

    def look(self, request_id: str) -> Outgoing | Refusal:
        request = self._scheduler.requests.get(request_id)
        if request is None or self.holds(request_id):
            return Refusal(FINISHED, "the request is not here any more")
        if why := self._why_not or why_request_cannot_move(request):
            return Refusal(REFUSED, why)
        self._looked(request_id)
        computed: int = max(0, request.num_computed_tokens - request.num_in_flight_tokens)
        is_queued = not is_running(request) and request.num_computed_tokens == 0
        complete = computed // self._scheduler.block_size
        return Outgoing(
            is_queued=is_queued,
            # The token that was sampled last has no KV before the next step.
            is_prefilling=not is_queued
            and (request.num_output_tokens == 0 or computed < request.num_tokens - 1),
            computed_tokens=computed,
            output_token_ids=tuple(request.output_token_ids),
            complete_blocks=self._blocks(request_id)[:complete],
            preemptions=request.num_preemptions,
        )

    def park(self, request_id: str) -> Refusal | None:
        seen = self.look(request_id)
        if isinstance(seen, Refusal):
            return seen
        if seen.is_prefilling:
            return Refusal(REFUSED, "its prompt is being computed")
        assert request_id not in self._parked, f"{request_id} is parked already"
        scheduler = self._scheduler
        request = scheduler.requests[request_id]
        place = None
        if is_running(request):
            place = scheduler.running.index(request)
            del scheduler.running[place]
        else:
            scheduler.waiting.remove_requests([request])
            scheduler.kv_holding_waiting.remove_requests([request])
            scheduler.deferred_waiting.discard(request)
        self._parked[request_id] = place
        self._keep_places()
        return None

    def parked(self, request_id: str) -> Parked | None:
        """None, too, when the request ended with the step that was in flight: `look` says so."""
        request = self._scheduler.requests.get(request_id)
        if request is None or request.num_in_flight_tokens:
            return None
        return Parked(
            computed_tokens=request.num_computed_tokens,
            output_token_ids=tuple(request.output_token_ids),
            blocks=self._blocks(request_id),
            state=encode_state(request, self._generator(request)),
        )

    def _generator(self, request: "Request") -> bytes | None:
        if self._scheduler.use_v2_model_runner or not has_own_generator(request):
            return None
        return self._workers.generator(request.request_id)

    def unpark(self, request_id: str) -> None:
        """Does nothing for a request that has ended meanwhile."""
        place = self._parked.pop(request_id, None)
        self._keep_places()
        request = self._scheduler.requests.get(request_id)
        if request is None:
            return
        if place is None:
            self._scheduler._enqueue_waiting_request(request)
        else:
            self._scheduler.running.insert(place, request)

    def release(self, request_id: str) -> None:
        self.abort_parked([request_id])

    def abort_parked(self, request_ids: Sequence[str]) -> None:
        ours = [RequestId(request_id) for request_id in request_ids if request_id in self._parked]
        self._core.abort_requests(list(ours))
        self._ended(ours)

    def forget(self, request_ids: Iterable[str]) -> None:
        """Hears of requests that ended otherwise; parked ones need their place no more."""
        for request_id in request_ids:
            self._parked.pop(request_id, None)
        self._keep_places()

    def hold(
        self, request: EngineRequest, output_token_ids: Sequence[int], tokens: int
    ) -> Held | Refusal:
        if self._why_not:
            return Refusal(REFUSED, self._why_not)
        if request.request_id in self._scheduler.requests:
            return Refusal(REFUSED, "the request is here already")
        if tokens and (full := self._why_no_place()):
            return full
        try:
            own = self._read(request)
        except EngineRefused as error:
            return Refusal(REFUSED, str(error))
        if why := why_request_cannot_move(own) or self._why_too_long(own):
            return Refusal(REFUSED, why)
        own.append_output_token_ids(list(output_token_ids))
        held = HeldRequest(request, own)
        self._scheduler.requests[own.request_id] = own
        self._held[own.request_id] = held
        if tokens and (refusal := self._allocate(held, tokens)):
            self.discard(own.request_id)
            return refusal
        return self._as_held(held)

    def reserve(self, request_id: str, tokens: int) -> Held | Refusal:
        held = self._held[request_id]
        if not held.has_place and (full := self._why_no_place()):
            return full
        if refusal := self._allocate(held, tokens):
            return refusal
        # Some of the work that would otherwise be done while the request is paused.
        advance_grammar(held, self._grammars)
        return self._as_held(held)

    def adopt(self, request_id: str, parked: Parked) -> Refusal | None:
        held = self._held[request_id]
        own, state, scheduler = held.request, decode_state(parked.state), self._scheduler
        blocks = self._blocks(request_id)
        is_v2: bool = scheduler.use_v2_model_runner
        room_tokens = len(blocks) * scheduler.block_size
        if why := why_not_adoptable(held, parked, state, room_tokens=room_tokens, is_v2=is_v2):
            return Refusal(REFUSED, why)
        own.append_output_token_ids(list(parked.output_token_ids[own.num_output_tokens :]))
        if why := advance_grammar(held, self._grammars):
            return Refusal(REFUSED, why)
        own.num_preemptions = state.preemptions
        own.num_computed_tokens = parked.computed_tokens
        del self._held[request_id]
        self._keep_places()
        enter(scheduler, self._workers, own, blocks, state)
        self._adopted(held.wish, state.preemptions)
        return None

    def discard(self, request_id: str) -> None:
        if self._held.pop(request_id, None) is None:
            return
        ended = self._scheduler.finished_req_ids
        has_to_tell = request_id in ended
        self._core.abort_requests([request_id])
        if not has_to_tell:
            # The runner has never heard of it: no step is needed to tell it.
            ended.discard(request_id)
        self._keep_places()

    def probe(self, request_id: str, prompt_tokens: int, max_tokens: int) -> EngineRequest:
        from engine_pool.vllm_probe import probe_request

        vocabulary = self._core.vllm_config.model_config.get_vocab_size()
        return probe_request(request_id, prompt_tokens, max_tokens, vocabulary)

    def _blocks(self, request_id: str) -> tuple[int, ...]:
        """Returns a request's block ids in the order of its tokens."""
        if self._why_not:
            return ()
        return tuple(self._scheduler.kv_cache_manager.get_block_ids(request_id)[0])

    def _as_held(self, held: HeldRequest) -> Held:
        return Held(self._blocks(held.request.request_id), held.cached_blocks)

    def _keep_places(self) -> None:
        kept = sum(place is not None for place in self._parked.values())
        kept += sum(held.has_place for held in self._held.values())
        self._scheduler.max_num_active_reqs = self._places - kept

    def _why_no_place(self) -> Refusal | None:
        scheduler = self._scheduler
        free: int = scheduler.max_num_active_reqs - len(scheduler.running)
        if free > len(scheduler.kv_holding_waiting):
            return None
        return Refusal(NO_BLOCKS, f"all {self._places} places of its batch are taken")

    def _why_too_long(self, own: "Request") -> str:
        """A shorter limit than the source's would end the answer early."""
        limit: int = self._scheduler.max_model_len
        longest = own.num_prompt_tokens + own.max_tokens
        return f"it may get {longest} tokens long, the limit is {limit}" if longest > limit else ""

    def _allocate(self, held: HeldRequest, tokens: int) -> Refusal | None:
        """Gives a held request blocks for `tokens` tokens, cached ones first; they are offered to
        others only when it is adopted, its KV written."""
        cache = self._scheduler.kv_cache_manager
        own = held.request
        hit, hit_tokens = cache.empty_kv_cache_blocks, 0
        if not held.has_place:
            hit, hit_tokens, _ = cache.get_computed_blocks(own)
        # Neither may it take what prompts in progress count on: that would preempt them.
        spoken_for: int = self._scheduler._inflight_prefill_reserved_blocks()
        free: int = cache.block_pool.get_num_free_blocks() - spoken_for
        allocated = cache.allocate_slots(
            own,
            max(0, tokens - hit_tokens),
            num_new_computed_tokens=hit_tokens,
            new_computed_blocks=hit,
            delay_cache_blocks=True,
            reserved_blocks=spoken_for,
            has_scheduled_reqs=bool(self._scheduler.running),
        )
        if allocated is None:
            shared = sum(block.ref_cnt > 0 for block in hit.blocks[0])
            has = len(self._blocks(own.request_id)) + shared
            needed = -(-tokens // self._scheduler.block_size) - has
            return Refusal(NO_BLOCKS, f"{max(0, free)} blocks are free, {needed} are needed")
        held.cached_blocks += len(hit.blocks[0])
        held.has_place = True
        self._keep_places()
        return None


def is_running(request: "Request") -> bool:
    from vllm.v1.request import RequestStatus

    return request.status == RequestStatus.RUNNING
