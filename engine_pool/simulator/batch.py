"""The requests that decode together on one engine: sums that make a step cost the same for any
number of them.

All requests get one token a step, so a request's length is the number of steps plus an offset that
never changes. Hence one counter a remainder of the block size says how many blocks the next step
needs, and a heap by step number says who finishes when.
"""

from heapq import heappop, heappush

from engine_pool.policy.standing import CLASSES
from engine_pool.simulator.sim_request import Place, SimRequest


class Batch:
    """Changed only between two steps. A request of n tokens holds the blocks of n tokens there,
    and those of n + 1 tokens during the step."""

    __slots__ = (
        "_block_tokens",
        "_finishes",
        "growth",
        "growth_by_rank",
        "members",
        "ranks",
        "steps",
        "tokens",
    )

    def __init__(self, block_size_tokens: int) -> None:
        self._block_tokens = block_size_tokens
        self.steps = 0
        """Decode steps that are complete."""
        self.tokens = 0
        """Of all members together."""
        self.members: dict[int, SimRequest] = {}
        self.growth = [0] * block_size_tokens
        """Blocks that the steps of each remainder need at their start."""
        self.ranks = [0] * len(CLASSES)
        """Members of each class."""
        self.growth_by_rank = [[0] * block_size_tokens for _ in CLASSES]
        self._finishes: list[tuple[int, int, SimRequest]] = []

    def tokens_of(self, r: SimRequest) -> int:
        return r.offset + self.steps

    def join(self, r: SimRequest) -> None:
        r.place = Place.DECODING
        r.blocks = 0
        r.offset = r.tokens - self.steps
        r.finish_step = r.total_tokens - r.offset
        bucket = -r.offset % self._block_tokens
        self.growth[bucket] += 1
        self.growth_by_rank[r.rank][bucket] += 1
        self.ranks[r.rank] += 1
        self.tokens += r.tokens
        self.members[r.index] = r
        heappush(self._finishes, (r.finish_step, r.index, r))

    def leave(self, r: SimRequest) -> None:
        """Takes a request out with the tokens it has; the caller says where to."""
        r.tokens = r.offset + self.steps
        bucket = -r.offset % self._block_tokens
        self.growth[bucket] -= 1
        self.growth_by_rank[r.rank][bucket] -= 1
        self.ranks[r.rank] -= 1
        self.tokens -= r.tokens
        del self.members[r.index]

    def next_finish_step(self) -> int:
        """Returns the step after which the next member is finished. There must be a member."""
        finishes = self._finishes
        while True:
            step, index, r = finishes[0]
            # Who left, or left and came back, has an entry that is not true any more.
            if self.members.get(index) is r and r.finish_step == step:
                return step
            heappop(finishes)

    def pop_finished(self) -> list[SimRequest]:
        """Takes out whoever has all its tokens."""
        finished: list[SimRequest] = []
        while self.members and self.next_finish_step() == self.steps:
            r = heappop(self._finishes)[2]
            self.leave(r)
            finished.append(r)
        return finished
