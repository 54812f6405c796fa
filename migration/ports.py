"""The interfaces between a move and what it moves: an engine's books and an engine's KV memory.

Two engines implement them: vLLM (`engine_pool.vllm_moves`) and the simulated one
(`engine_pool.simulator.moves`). Books (`MovingEngine`) are touched by the engine's one step thread
only, between two steps. Memory (`KvPlane`) is touched by background threads while the engine
decodes: complete blocks never change, and the books hold them as long as a move needs them.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from engine_pool.ports import EngineRequest


@dataclass(frozen=True, slots=True)
class KvShape:
    """What two engines must have in common, all of it, for KV blocks to move between them."""

    engine: str
    """Kind and version: "vllm 0.32.0", "simulated"."""
    model: str
    """Fingerprint of the weights' folder or hub id and its config, not a path."""
    layers: int
    block_size_tokens: int
    block_bytes: int
    """Bytes of one block over all layers, of all ranks together."""
    dtype: str
    layout: str
    """Names the order inside a block: blocks go over the wire as (layers, block, heads, tokens,
    channels)."""
    ranks: int
    """Tensor parallel size: each rank sends its own shard."""

    @property
    def token_bytes(self) -> int:
        return self.block_bytes // self.block_size_tokens


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an engine does not do something: normal, not an error. `code`: MoveReport.abort_code."""

    code: str
    why: str


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request that could leave its engine, at one step boundary."""

    is_queued: bool
    """It waits and holds no KV: it moves without a copy."""
    is_prefilling: bool
    """Its prompt, or what it lost to a preemption, is being computed: look again later."""
    computed_tokens: int
    """Tokens whose KV is there. The token sampled last is not among them."""
    output_token_ids: tuple[int, ...]
    """All it has produced so far."""
    complete_blocks: tuple[int, ...]
    """Ids of its blocks that are full and settled: no step writes to them any more, none in flight
    either. In the order of the tokens."""
    preemptions: int
    """A move that sees it change has lost its blocks."""


@dataclass(frozen=True, slots=True)
class Parked:
    """A request taken out of its batch, blocks kept: all that the destination needs besides KV."""

    computed_tokens: int
    output_token_ids: tuple[int, ...]
    blocks: tuple[int, ...]
    """All its blocks, the partly filled one too; empty when it is queued."""
    state: bytes
    """The engine's own encoding of what else belongs to it (random generator, preemptions); only
    the same kind of engine reads it."""


@dataclass(frozen=True, slots=True)
class Held:
    """Room for a request at the destination. It is in no queue and takes no step."""

    blocks: tuple[int, ...]
    """All the blocks it holds now, in the order of the tokens."""
    cached_blocks: int
    """How many of the first ones hold the right KV already (prefix cache): not to be sent."""


class MovingEngine(Protocol):
    """The books' side. Every method is called from the step thread only, and takes no device work
    to speak of: microseconds to a millisecond. Unknown request ids are bugs, except where said."""

    @property
    def shape(self) -> KvShape: ...

    def look(self, request_id: str) -> Outgoing | Refusal:
        """Says what there is of a request. Refusal: `request_finished` when it is not here (any
        more), or a feature of it cannot be moved (`refused`)."""

    def park(self, request_id: str) -> Refusal | None:
        """Takes a request out of its batch or queue, so that no further step has it. Its blocks
        stay. Nothing has changed when it is refused."""

    def parked(self, request_id: str) -> Parked | None:
        """Returns the parked request's state; None while a step that has it is still in flight
        (asynchronous scheduling): ask again after the next step."""

    def unpark(self, request_id: str) -> None:
        """Undoes `park`: the request goes on with the next step, as if nothing had happened."""

    def release(self, request_id: str) -> None:
        """Forgets a parked request and frees its blocks: it is somebody else's now."""

    def hold(
        self, request: EngineRequest, output_token_ids: Sequence[int], tokens: int
    ) -> Held | Refusal:
        """Makes room for a request that will come: blocks for `tokens` tokens (0: none; it is
        queued at its source). `output_token_ids`: what it has produced so far, for the prefix
        cache. Refusal (`no_blocks`, `refused`): nothing is held then. Preempts nobody."""

    def reserve(self, request_id: str, tokens: int) -> Held | Refusal:
        """Grows a held request's room to at least `tokens` tokens. Refusal: it keeps what it
        has."""

    def adopt(self, request_id: str, parked: Parked) -> Refusal | None:
        """Makes a held request, whose KV is written, one of the engine's own: with the next step
        it computes exactly one token, the one its source would have computed. A queued one enters
        the queue. Refusal: it is still held."""

    def discard(self, request_id: str) -> None:
        """Forgets a held request and frees its blocks. Does nothing for an unknown one."""

    def abort_parked(self, request_ids: Sequence[str]) -> None:
        """Ends parked requests whose client left and frees their blocks."""

    def probe(self, request_id: str, prompt_tokens: int, max_tokens: int) -> EngineRequest:
        """Returns a greedy request that ignores end tokens, for a self-test; it is not added.
        The same prompt every time for the same numbers."""


class KvBlockIo(Protocol):
    """One rank's KV memory. Any thread, while the engine decodes."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers of this rank."""

    @property
    def is_on_gpu(self) -> bool: ...

    def new_buffer(self, blocks: int) -> object:
        """Returns a contiguous uint8 tensor of (blocks, block_bytes) elements, in pinned host
        memory or on the KV's device, whatever the transport wants."""

    def gather(self, block_ids: Sequence[int], buffer: object) -> None:
        """Fuses blocks into the first len(block_ids) rows of a buffer. It is complete on return."""

    def scatter(self, block_ids: Sequence[int], buffer: object) -> None:
        """Writes the first len(block_ids) rows into blocks. It is complete on return, and every
        step that begins afterwards sees it."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A finished transfer, as one side saw it."""

    bytes: int
    took_ms: float
    gather_ms: float = 0.0
    """Source: fusing; destination: writing."""


class TransferFailed(Exception):
    """A transfer broke, timed out or was stopped; its channel is of no use any more."""


class KvPlane(Protocol):
    """The memory's side: channels to other engines, and transfers over them, each in a background
    thread. Every method returns at once; failures come as TransferFailed in the future.

    A channel joins two engines and carries one transfer at a time. A transfer is known to both
    sides by the order in which they are asked for; both name the same number of blocks.
    """

    def offer(self, channel: str) -> "Future[str]":
        """Opens one end and returns what the other end needs to join; it is waited for in the
        background."""

    def join(self, channel: str, offer: str) -> "Future[None]":
        """Opens the other end of a channel; done when both ends are connected."""

    def send(self, channel: str, block_ids: Sequence[int], *, urgent: bool) -> "Future[Transfer]":
        """Sends blocks. Not urgent: at the pace that leaves the processors to the decoding."""

    def receive(self, channel: str, block_ids: Sequence[int]) -> "Future[Transfer]":
        """Receives blocks and writes them. After its future is done, also with an error, nothing
        of it touches the blocks any more."""

    def close(self, channel: str) -> None:
        """Breaks a channel at this end; its transfers fail, soon. Unknown ones are ignored."""

    def measure_send(self, channel: str, size_bytes: int) -> "Future[Transfer]":
        """Sends that many bytes of nothing, to measure the way between two engines."""

    def measure_receive(self, channel: str, size_bytes: int) -> "Future[Transfer]": ...

    def shut_down(self) -> None:
        """Closes all channels and ends the threads."""
