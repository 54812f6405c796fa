"""Who is where in a simulated engine, and who holds how many of its KV blocks.

A request waits, runs, is parked (its source's view of a move) or held (its destination's). Blocks
are only counted: there is nothing in them. A parked or held request that will run keeps a place in
the batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from engine_pool.ports import EngineRequest
from engine_pool.simulator.answer import Answer


@dataclass(slots=True)
class SimulatedRequest:
    """One request, with what it has and holds here."""

    request: EngineRequest
    answer: Answer
    number: int
    """Counts arrivals at this engine."""
    priority: int = 0
    """Of its turn in the queue, or in the batch (turns.Turns)."""
    output_tokens: int = 0
    blocks: int = 0
    preemptions: int = 0

    @property
    def queue_key(self) -> tuple[int, float, int]:
        """Order of the queue; the last of the batch is preempted first."""
        return self.priority, self.request.arrival_unix_s, self.number

    @property
    def tokens(self) -> int:
        return self.request.prompt_tokens + self.output_tokens


@dataclass(slots=True)
class Books:
    """Owned by the engine's step thread."""

    capacity_blocks: int
    watermark_blocks: int
    """Left free by whoever comes, so that those who are there can grow."""
    block_size_tokens: int
    max_running: int
    waiting: list[SimulatedRequest] = field(default_factory=list)
    """In the order in which they will run."""
    running: list[SimulatedRequest] = field(default_factory=list)
    parked: dict[str, SimulatedRequest] = field(default_factory=dict)
    """With blocks: out of the batch; without: out of the queue."""
    held: dict[str, SimulatedRequest] = field(default_factory=dict)
    free_blocks: int = field(init=False)

    def __post_init__(self) -> None:
        self.free_blocks = self.capacity_blocks

    @property
    def free_places(self) -> int:
        """How many more requests the batch takes."""
        kept = sum(r.blocks > 0 for r in (*self.parked.values(), *self.held.values()))
        return self.max_running - len(self.running) - kept

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size_tokens)

    def has_room_for(self, blocks: int) -> bool:
        """Says whether a request that comes gets so many blocks."""
        return blocks <= self.free_blocks - self.watermark_blocks

    def find(self, request_id: str) -> SimulatedRequest | None:
        """Returns a request that is this engine's own: not a held one."""
        for r in (*self.running, *self.waiting):
            if r.request.request_id == request_id:
                return r
        return self.parked.get(request_id)

    def enqueue(self, r: SimulatedRequest) -> None:
        self.waiting.append(r)
        self.sort_queue()

    def sort_queue(self) -> None:
        """Puts the queue in order after its requests' priorities have changed."""
        self.waiting.sort(key=lambda r: r.queue_key)

    def take(self, r: SimulatedRequest, blocks: int) -> None:
        """Gives a request so many more blocks, which must be there."""
        assert blocks <= self.free_blocks, "blocks are given once"
        self.free_blocks -= blocks
        r.blocks += blocks

    def free(self, r: SimulatedRequest) -> None:
        """Takes all of a request's blocks back."""
        self.free_blocks += r.blocks
        r.blocks = 0

    def remove(self, request_ids: set[str]) -> None:
        """Forgets requests of this engine and frees their blocks. Unknown and held ones stay."""
        for r in self.running:
            if r.request.request_id in request_ids:
                self.free(r)
        self.running = [r for r in self.running if r.request.request_id not in request_ids]
        self.waiting = [r for r in self.waiting if r.request.request_id not in request_ids]
        for request_id in request_ids & self.parked.keys():
            self.free(self.parked.pop(request_id))

    def clear(self) -> None:
        self.waiting, self.running = [], []
        self.parked, self.held = {}, {}
        self.free_blocks = self.capacity_blocks

    def all_requests(self) -> Iterator[SimulatedRequest]:
        yield from self.running
        yield from self.waiting
        yield from self.parked.values()
        yield from self.held.values()

    def check_integrity(self) -> None:
        """Asserts that no block was lost or given twice, and nobody is in two places."""
        used = sum(r.blocks for r in self.all_requests())
        assert used + self.free_blocks == self.capacity_blocks, "KV blocks are conserved"
        assert all(r.blocks == 0 for r in self.waiting), "a queued request holds no blocks"
        assert self.free_places >= 0, "no more run, or will, than the batch takes"
        names = [r.request.request_id for r in self.all_requests()]
        assert len(names) == len(set(names)), "a request is in one place"
