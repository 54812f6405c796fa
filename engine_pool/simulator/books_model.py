"""Who is where in an engine of a simulated run, and who holds how many blocks: sums, kept as it
goes.

Invariant between two steps: a decoding request of n tokens holds the blocks of n tokens; during a
step those of n + 1 (`grow` takes them). A parked request counts as running until it is released; a
held one has only its blocks.
"""

from bisect import insort
from dataclasses import dataclass
from typing import NamedTuple

from engine_pool.policy.standing import Standing
from engine_pool.simulator.batch import Batch
from engine_pool.simulator.sim_request import Place, SimRequest
from engine_pool.types import InstanceName


class Candidate(NamedTuple):
    """A request as the policy's `Movable`."""

    rank: int
    kv_tokens: int
    need_tokens: int
    can_move: bool
    name: str
    request: SimRequest


@dataclass(frozen=True, slots=True)
class Parked:
    request: SimRequest
    blocks: int
    """0: it was taken out of the queue."""


class EngineBooks:
    """Books of one engine; knows no time."""

    def __init__(
        self,
        name: str,
        *,
        capacity_tokens: int,
        block_size_tokens: int,
        max_running: int,
        watermark: float,
    ) -> None:
        size = block_size_tokens
        blocks = capacity_tokens // size
        self.name = InstanceName(name)
        self.standing = Standing(self.name, blocks * size, size, max_running)
        self.batch = Batch(size)
        self.waiting: list[tuple[tuple[int, int], SimRequest]] = []
        """In the order in which they will run."""
        self.prefilling: list[SimRequest] = []
        self.joining: list[SimRequest] = []
        """With blocks; they join the batch between two steps."""
        self.parked: dict[int, Parked] = {}
        self.held_blocks: dict[int, int] = {}
        """Kept for requests that come by a move, by request."""
        self.may_admit = False
        """Something changed since the head of the line did not fit."""
        self._block_tokens = size
        self._watermark_tokens = int(blocks * watermark) * size
        self._kept_places = 0
        """Of the batch, for held requests."""

    # Looking

    def tokens_of(self, r: SimRequest) -> int:
        """Returns prompt and output so far."""
        return self.batch.tokens_of(r) if r.place is Place.DECODING else r.tokens

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._block_tokens)

    def demand_tokens(self, r: SimRequest) -> int:
        """Returns what a queued request needs to begin, its next token included."""
        return (r.tokens // self._block_tokens + 1) * self._block_tokens

    def has_room(self, tokens: int) -> bool:
        """Says whether somebody who comes gets so many tokens of KV."""
        return tokens <= self.standing.free_tokens - self._watermark_tokens

    @property
    def has_place(self) -> bool:
        """Whether the batch takes one more."""
        s = self.standing
        return sum(s.running) + self._kept_places < s.max_running

    @property
    def blocked_tokens(self) -> int:
        """Demand of a head of the line that has no room here; else 0."""
        head = self.standing.head_tokens
        return 0 if self.has_room(head) else head

    @property
    def is_empty(self) -> bool:
        return self.standing.is_idle and not self.held_blocks and not self.parked

    def candidates(self) -> list[Candidate]:
        """Lists its requests for the choice of one that moves, as of the step that goes on."""
        size, steps = self._block_tokens, self.batch.steps
        if self.prefilling:
            # The batch stands still: nobody in it has the block of the next token yet.
            steps -= 1
        found = []
        for r in self.batch.members.values():
            held = ((r.offset + steps) // size + 1) * size
            found.append(Candidate(r.rank, held, held + size, not r.is_moving, r.request_id, r))
        for _, r in self.waiting:
            need = self.demand_tokens(r) + size
            found.append(Candidate(r.rank, 0, need, not r.is_moving, r.request_id, r))
        return found

    # The queue

    def put_in_queue(self, r: SimRequest) -> bool:
        """Says whether it is the head of the line."""
        r.instance, r.place, r.blocks = self.name, Place.QUEUED, 0
        self._count_queued(r, 1)
        insort(self.waiting, (r.key, r))
        is_head = self.waiting[0][1] is r
        if is_head:
            self.may_admit = True
            self._set_head()
        return is_head

    def admit(self, max_prefill_tokens: int) -> list[SimRequest]:
        """Takes requests from the head of the line, as many as have room and fit one step."""
        admitted: list[SimRequest] = []
        if not self.may_admit:
            return admitted
        prompt_tokens = 0
        while self.waiting:
            r = self.waiting[0][1]
            need = self.demand_tokens(r)
            if not self.has_place or not self.has_room(need):
                self.may_admit = False
                break
            if admitted and prompt_tokens + r.tokens > max_prefill_tokens:
                break
            del self.waiting[0]
            self._count_queued(r, -1)
            self.standing.head_tokens = 0
            r.place, r.blocks = Place.PREFILLING, need // self._block_tokens
            self._count_running(r, 1, r.blocks)
            prompt_tokens += r.tokens
            admitted.append(r)
        self._set_head()
        return admitted

    # Steps

    def growth_tokens(self) -> int:
        """Returns what the next step needs at its start."""
        return self.batch.growth[self.batch.steps % self._block_tokens] * self._block_tokens

    def grow(self) -> None:
        """Gives out the blocks of the step that begins; they must be there."""
        self._take_growth(self.batch.steps, self.batch.steps + 1)

    def complete_steps(self, steps: int) -> None:
        """Completes so many steps and begins the one after them."""
        batch = self.batch
        first_step = batch.steps + 1
        batch.steps += steps
        batch.tokens += steps * len(batch.members)
        self._take_growth(first_step, first_step + steps)

    def end_step(self) -> None:
        """Completes a step; none begins."""
        self.batch.steps += 1
        self.batch.tokens += len(self.batch.members)

    def steps_with_room(self, steps: int) -> int:
        """Returns how many steps, at most `steps`, have all their blocks; the first has them."""
        batch, size = self.batch, self._block_tokens
        free_blocks = self.standing.free_tokens // size
        if free_blocks >= len(batch.members) * (steps // size + 1):
            return steps
        for ahead in range(1, steps):
            free_blocks -= batch.growth[(batch.steps + ahead) % size]
            if free_blocks < 0:
                return ahead
        return steps

    def _take_growth(self, first_step: int, end_step: int) -> None:
        """Gives out the blocks that these steps need at their starts. The simulator's innermost
        loop."""
        size, growth = self._block_tokens, self.batch.growth
        blocks = 0
        for step in range(first_step, end_step):
            blocks += growth[step % size]
        if not blocks:
            return
        s = self.standing
        s.used_tokens += blocks * size
        for rank, count in enumerate(self.batch.ranks):
            if not count:
                continue
            if count == len(self.batch.members):
                s.running_tokens[rank] += blocks * size
                return
            growth = self.batch.growth_by_rank[rank]
            of_rank = sum([growth[step % size] for step in range(first_step, end_step)])
            s.running_tokens[rank] += of_rank * size

    # Requests that leave the batch, or come back

    def leave_running(self, r: SimRequest) -> None:
        """Frees the blocks of a request that is in no batch any more."""
        self._count_running(r, -1, self.blocks_for(r.tokens))
        self.may_admit = True

    def put_aside(self, r: SimRequest) -> None:
        """Parks a request of batch or queue."""
        if r.place is Place.QUEUED:
            self.waiting.remove((r.key, r))
            self._count_queued(r, -1)
            self._set_head()
            self.may_admit = True
        else:
            self.batch.leave(r)
            r.blocks = self.blocks_for(r.tokens)
        r.place = Place.PARKED
        self.parked[r.index] = Parked(r, r.blocks)

    def put_back(self, r: SimRequest) -> None:
        if self.parked.pop(r.index).blocks:
            r.place = Place.JOINING
            self.joining.append(r)
        else:
            self.put_in_queue(r)

    def forget_parked(self, r: SimRequest) -> None:
        blocks = self.parked.pop(r.index).blocks
        if blocks:
            self._count_running(r, -1, blocks)
            self.may_admit = True

    # Room for requests that come by a move

    def keep_room(self, r: SimRequest, blocks: int) -> bool:
        """Raises what is held for a request to so many blocks; says whether that was possible."""
        has = self.held_blocks.get(r.index, 0)
        more = max(0, blocks - has)
        more_tokens = more * self._block_tokens
        if more and not has:
            if not (self.has_place and self.has_room(more_tokens)):
                return False
            self._kept_places += 1
        elif more_tokens > self.standing.free_tokens:
            return False
        self.held_blocks[r.index] = has + more
        self.standing.used_tokens += more_tokens
        return True

    def free_room(self, r: SimRequest) -> None:
        blocks = self.held_blocks.pop(r.index)
        self._kept_places -= blocks > 0
        self.standing.used_tokens -= blocks * self._block_tokens
        self.may_admit = True

    def can_take_over(self, r: SimRequest) -> bool:
        """Says whether a held request has all its blocks: it may have grown by one since."""
        if not r.blocks:
            return True
        more = self.blocks_for(r.tokens) - self.held_blocks[r.index]
        return more * self._block_tokens <= self.standing.free_tokens

    def take_over(self, r: SimRequest) -> bool:
        """Makes a held request this engine's own; says whether it brought blocks."""
        self.free_room(r)
        if not r.blocks:
            self.put_in_queue(r)
            return False
        # What was reserved beyond its tokens is free again.
        r.instance, r.place, r.blocks = self.name, Place.JOINING, self.blocks_for(r.tokens)
        self._count_running(r, 1, r.blocks)
        self.joining.append(r)
        return True

    # Counting

    def _count_running(self, r: SimRequest, by: int, blocks: int) -> None:
        s, tokens = self.standing, by * blocks * self._block_tokens
        s.running[r.rank] += by
        s.running_tokens[r.rank] += tokens
        s.used_tokens += tokens

    def _count_queued(self, r: SimRequest, by: int) -> None:
        self.standing.queued[r.rank] += by
        self.standing.queued_tokens[r.rank] += by * self.demand_tokens(r)

    def _set_head(self) -> None:
        self.standing.head_tokens = self.demand_tokens(self.waiting[0][1]) if self.waiting else 0

    def check_integrity(self) -> None:
        """Asserts that the sums are those of the requests that are here, and that no block was
        given twice."""
        s, size = self.standing, self._block_tokens
        recount = Standing(s.instance, s.capacity_tokens, size, s.max_running)
        steps = self.batch.steps
        # While prompts are computed the batch stands still, between two steps.
        ahead = 0 if self.prefilling else 1
        members = self.batch.members.values()
        decoding = [(r, self.blocks_for(r.offset + steps + ahead)) for r in members]
        others = [(r, r.blocks) for r in (*self.prefilling, *self.joining)]
        aside = [(p.request, p.blocks) for p in self.parked.values() if p.blocks]
        for r, blocks in (*decoding, *others, *aside):
            recount.running[r.rank] += 1
            recount.running_tokens[r.rank] += blocks * size
        for _, r in self.waiting:
            recount.queued[r.rank] += 1
            recount.queued_tokens[r.rank] += self.demand_tokens(r)
        held_tokens = sum(self.held_blocks.values()) * size
        recount.used_tokens = sum(recount.running_tokens) + held_tokens
        recount.head_tokens = self.demand_tokens(self.waiting[0][1]) if self.waiting else 0
        recount.is_open, recount.is_draining = s.is_open, s.is_draining
        assert s == recount, f"{self.name}: {s} is not {recount}"
        assert 0 <= s.used_tokens <= s.capacity_tokens, f"{self.name}: {s.used_tokens} tokens used"
        assert self.batch.tokens == sum(self.batch.tokens_of(r) for r, _ in decoding)
        assert self._kept_places == sum(blocks > 0 for blocks in self.held_blocks.values())
