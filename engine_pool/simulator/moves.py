"""The books' side of a move for a simulated engine: implements migration.ports.MovingEngine.

Block ids are places in the request: nothing is in a simulated block. What a request says depends on
its id and on how many tokens it has, so a moved one goes on with the very same tokens.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from engine_pool.engine_spec import SampleText
from engine_pool.errors import EngineRefused
from engine_pool.ports import EngineRequest
from engine_pool.simulator.books import Books, SimulatedRequest
from engine_pool.simulator.costs import KV_TOKEN_BYTES, MODEL_LAYERS
from engine_pool.simulator.live_queue import LiveQueue
from engine_pool.types import PriorityClass, RequestId
from migration.ports import Held, KvShape, Outgoing, Parked, Refusal

REFUSED: Final = "refused"
NO_BLOCKS: Final = "no_blocks"
FINISHED: Final = "request_finished"
PROBE_TENANT: Final = "self-test"


class _State(msgspec.Struct, frozen=True, array_like=True):
    """The content of `Parked.state`."""

    preemptions: int
    max_model_len: int
    """Of the source, in tokens: it may end the answer."""


class SimulatedMoves:
    """Step thread only, between two steps."""

    def __init__(
        self,
        books: Books,
        *,
        shape: KvShape,
        max_model_len: int,
        read: Callable[[EngineRequest], SimulatedRequest],
        queue: LiveQueue,
    ) -> None:
        """`read` makes a request's entry, adding it nowhere; it raises EngineRefused."""
        self._books = books
        self._shape = shape
        self._max_model_len = max_model_len
        self._read = read
        self._queue = queue

    @property
    def shape(self) -> KvShape:
        return self._shape

    def look(self, request_id: str) -> Outgoing | Refusal:
        r = self._books.find(request_id)
        if r is None:
            return Refusal(FINISHED, "the request is not here any more")
        self._queue.looked(request_id)
        computed = _computed_tokens(r)
        return Outgoing(
            is_queued=not r.blocks,
            # Prompts are computed whole, in one step: never seen half done.
            is_prefilling=False,
            computed_tokens=computed,
            output_token_ids=r.answer.first(r.output_tokens),
            complete_blocks=tuple(range(computed // self._books.block_size_tokens)),
            preemptions=r.preemptions,
        )

    def park(self, request_id: str) -> Refusal | None:
        books = self._books
        r = books.find(request_id)
        if r is None:
            return Refusal(FINISHED, "the request is not here any more")
        assert request_id not in books.parked, f"{request_id} is parked already"
        (books.running if r.blocks else books.waiting).remove(r)
        books.parked[request_id] = r
        return None

    def parked(self, request_id: str) -> Parked | None:
        r = self._books.parked.get(request_id)
        if r is None:
            return None
        return Parked(
            computed_tokens=_computed_tokens(r),
            output_token_ids=r.answer.first(r.output_tokens),
            # Beyond its tokens it may have room that nothing was written to yet.
            blocks=tuple(range(self._books.blocks_for(_computed_tokens(r)))),
            state=msgspec.msgpack.encode(_State(r.preemptions, self._max_model_len)),
        )

    def unpark(self, request_id: str) -> None:
        """Does nothing for a request that has ended meanwhile."""
        r = self._books.parked.pop(request_id, None)
        if r is None:
            return
        if r.blocks:
            self._books.running.append(r)
        else:
            self._books.enqueue(r)

    def release(self, request_id: str) -> None:
        self.abort_parked([request_id])

    def abort_parked(self, request_ids: Sequence[str]) -> None:
        parked = set(request_ids) & self._books.parked.keys()
        self._books.remove(parked)
        self._queue.ended(parked)

    def hold(
        self, request: EngineRequest, output_token_ids: Sequence[int], tokens: int
    ) -> Held | Refusal:
        books, request_id = self._books, request.request_id
        if request_id in books.held or books.find(request_id) is not None:
            return Refusal(REFUSED, "the request is here already")
        try:
            r = self._read(request)
        except EngineRefused as error:
            return Refusal(REFUSED, str(error))
        if not r.answer.goes_on_after(output_token_ids):
            return Refusal(REFUSED, "its output is not what this engine would have said")
        needed = books.blocks_for(tokens)
        if needed and (refusal := self._why_no_room(needed)):
            return refusal
        r.output_tokens = len(output_token_ids)
        books.held[request_id] = r
        books.take(r, needed)
        return _as_held(r)

    def reserve(self, request_id: str, tokens: int) -> Held | Refusal:
        r = self._books.held[request_id]
        more = max(0, self._books.blocks_for(tokens) - r.blocks)
        if not r.blocks and more and (refusal := self._why_no_room(more)):
            return refusal
        if more > self._books.free_blocks:
            return _no_blocks(self._books.free_blocks, more)
        self._books.take(r, more)
        return _as_held(r)

    def adopt(self, request_id: str, parked: Parked) -> Refusal | None:
        r = self._books.held[request_id]
        try:
            state = msgspec.msgpack.decode(parked.state, type=_State)
        except msgspec.DecodeError as error:
            return Refusal(REFUSED, f"its state cannot be read: {error}")
        if why := self._why_not_adoptable(r, parked, state):
            return Refusal(REFUSED, why)
        del self._books.held[request_id]
        r.output_tokens = len(parked.output_token_ids)
        r.preemptions = state.preemptions
        if parked.computed_tokens:
            self._books.running.append(r)
        else:
            # Preempted at the last moment, it may hold blocks that nothing was written to.
            self._books.free(r)
            self._books.enqueue(r)
        self._queue.adopted(r)
        return None

    def discard(self, request_id: str) -> None:
        r = self._books.held.pop(request_id, None)
        if r is not None:
            self._books.free(r)

    def probe(self, request_id: str, prompt_tokens: int, max_tokens: int) -> EngineRequest:
        return EngineRequest(
            request_id=RequestId(request_id),
            epoch=1,
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            min_tokens=max_tokens,
            priority_class=PriorityClass.NORMAL,
            tenant=PROBE_TENANT,
            arrival_unix_s=time.time(),
            payload=b"",
        )

    def _why_no_room(self, blocks: int) -> Refusal | None:
        books = self._books
        if books.free_places < 1:
            return Refusal(NO_BLOCKS, f"all {books.max_running} places of its batch are taken")
        if not books.has_room_for(blocks):
            return _no_blocks(books.free_blocks - books.watermark_blocks, blocks)
        return None

    def _why_not_adoptable(self, r: SimulatedRequest, parked: Parked, state: _State) -> str:
        if not r.answer.goes_on_after(parked.output_token_ids):
            return "its output is not what this engine would have said"
        computed = parked.computed_tokens
        tokens = r.request.prompt_tokens + len(parked.output_token_ids)
        if computed and (computed != tokens - 1 or not parked.output_token_ids):
            return f"{computed} of its {tokens} tokens are computed, not all but the last"
        if self._books.blocks_for(computed) > r.blocks:
            held_tokens = r.blocks * self._books.block_size_tokens
            return f"it has blocks for {held_tokens} tokens and brings {computed}"
        longest = r.request.prompt_tokens + r.request.max_tokens
        here, there = self._max_model_len, state.max_model_len
        if here != there and longest > min(here, there):
            return f"it may get {longest} tokens long, the limits are {there} there and {here} here"
        return ""


def simulated_shape(text: SampleText, block_size_tokens: int) -> KvShape:
    """Returns the shape of a 7B model's blocks; engines that say other things have another."""
    said = msgspec.msgpack.encode((text.sentences, text.openings, text.eos_token_id))
    return KvShape(
        engine="simulated",
        model=hashlib.sha256(said).hexdigest()[:16],
        layers=MODEL_LAYERS,
        block_size_tokens=block_size_tokens,
        block_bytes=block_size_tokens * KV_TOKEN_BYTES,
        dtype="float16",
        layout="simulated",
        ranks=1,
    )


def _computed_tokens(r: SimulatedRequest) -> int:
    """The token that was sampled last has no KV before the next step."""
    return r.tokens - 1 if r.blocks else 0


def _as_held(r: SimulatedRequest) -> Held:
    return Held(tuple(range(r.blocks)), 0)


def _no_blocks(free: int, needed: int) -> Refusal:
    return Refusal(NO_BLOCKS, f"{max(0, free)} blocks are free, {needed} are needed")
