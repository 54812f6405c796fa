"""A vLLM engine's queue: puts what `turns` decides into vLLM's scheduler, between two steps.

With scheduling_policy="priority" vLLM orders its queue, and chooses whom a running request that
lacks blocks preempts, by `Request.priority` (lower is better), then by arrival. So a queued request
has the number of its turn there, and a running one that of its class alone: the last come of the
lowest class goes first. What vLLM does not do is preempt for a request that waits: with the batch
or the memory full of lower classes that is done here, by vLLM's own preemption.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine_pool.policy.urgency import Occupant, Room, Seeker, is_helpless, preempted
from engine_pool.ports import EngineRequest
from engine_pool.turns import Turns
from engine_pool.vllm_prompts import VllmPrompts

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.request import Request


@dataclass(frozen=True, slots=True)
class _Batch:
    """The running requests that could make room."""

    occupants: tuple[Occupant, ...]
    block_ids: frozenset[int]
    """Blocks that nobody but one of them holds."""


class VllmQueue:
    """Step thread only. `clock`: monotonic seconds. Requests that it was not told of (warm-up) are
    vLLM's alone."""

    def __init__(
        self, core: "EngineCore", turns: Turns, clock: Callable[[], float] = time.monotonic
    ) -> None:
        # vLLM's scheduler is its internals: checked at start, not typed here.
        scheduler: Any = core.scheduler
        self._scheduler = scheduler
        self._cache = scheduler.kv_cache_manager
        self._managers = scheduler.kv_cache_manager.coordinator.single_type_managers
        self._turns = turns
        self._clock = clock
        self._prompts = VllmPrompts(core, self._rank_of)
        self._running: dict[str, Request] = {}
        """Of the last look, those that `turns` knows."""

    def arrive(self, own: "Request", wish: EngineRequest) -> None:
        """Gives a request its turn before vLLM queues it."""
        self._turns.arrive(wish, self._clock())
        own.priority = self._turns.priority(wish.request_id)

    def adopted(self, own: "Request", wish: EngineRequest) -> None:
        """Gives a request that a move has put into queue or batch its turn."""
        self._turns.arrive(wish, self._clock(), own.num_output_tokens)
        own.priority = self._turns.priority(wish.request_id)
        if own.num_computed_tokens:
            self._admitted(own)
        self._settle()
        self._sort()

    def looked(self, request_id: str) -> None:
        """Hears that a move is interested in a request."""
        self._turns.look(request_id, self._clock())

    def before_step(self) -> None:
        """Raises those who have waited too long and makes room for waiting requests of higher
        classes than running ones."""
        if self._scheduler.waiting:
            self.look()
            self._turns.age(self._clock())
            self._settle()
            for request_id in self._to_preempt():
                self._preempt(self._running.pop(request_id))
            self._settle()
        self._prompts.share(next(self._ready(), None))

    def look(self) -> None:
        """Sees who was admitted, whom vLLM has preempted, and whom a move has taken out."""
        turns, now_s = self._turns, self._clock()
        running = {r.request_id: r for r in self._scheduler.running if r.request_id in turns}
        gone = [r for request_id, r in self._running.items() if request_id not in running]
        for request_id in running.keys() - self._running.keys():
            self._admitted(running[request_id])
        self._running = running
        for r in gone:
            if r.request_id in turns and _is_preempted(r):
                turns.requeue(r.request_id, now_s)
        self._settle()

    def produced(self, request_id: str, tokens: int) -> None:
        self._turns.produce(request_id, tokens)

    def ended(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._turns.end(request_id)
            self._running.pop(request_id, None)
        self._settle()

    def _admitted(self, own: "Request") -> None:
        self._turns.admit(own.request_id, self._clock())
        own.priority = self._turns.running_priority(own.request_id)
        self._running[own.request_id] = own

    def _settle(self) -> None:
        """Gives queued requests whose turn has changed their new numbers."""
        changed = self._turns.take_changed()
        for request_id in changed:
            own = self._scheduler.requests.get(request_id)
            if own is not None and self._turns.is_queued(request_id):
                own.priority = self._turns.priority(request_id)
        if changed:
            self._sort()

    def _sort(self) -> None:
        # Removing nobody, vLLM's queues rebuild their heaps.
        self._scheduler.waiting.remove_requests(())
        self._scheduler.kv_holding_waiting.remove_requests(())

    def _preempt(self, own: "Request") -> None:
        """As vLLM does it inside a step. The output of a step in flight still counts."""
        scheduler = self._scheduler
        scheduler.running.remove(own)
        scheduler._preempt_request(own, time.monotonic())
        # If it runs again in the very next step, the model runner must take it for a resumed one.
        scheduler.prev_step_scheduled_req_ids.discard(own.request_id)
        self._turns.make_room(own.request_id, self._clock())

    def _to_preempt(self) -> tuple[str, ...]:
        turns = self._turns
        first = next(self._ready(), None)
        if first is None:
            return ()
        rank, is_raised = turns.rank(first.request_id), turns.is_raised(first.request_id)
        lowest = max((turns.counts_as(name) for name in self._running), default=-1)
        if is_helpless(rank, is_raised, lowest):
            return ()  # as ever: not a block is counted
        highest = 0 if is_raised else rank
        batch = self._batch([r for n, r in self._running.items() if turns.counts_as(n) > highest])
        return preempted(
            self._seekers(batch), batch.occupants, self._room(), turns.class_preemptions_max
        )

    def _rank_of(self, request_id: str) -> int:
        return self._turns.counts_as(request_id) if request_id in self._turns else 0

    def _ready(self) -> "Iterator[Request]":
        """Yields the queued requests that vLLM would admit, in its order."""
        for own in self._scheduler.waiting:
            if own.request_id in self._turns and _is_ready(own):
                yield own

    def _seekers(self, batch: _Batch) -> Iterator[Seeker]:
        for own in self._ready():
            name = own.request_id
            needed_blocks = self._needed_blocks(own, batch)
            yield Seeker(self._turns.rank(name), self._turns.is_raised(name), needed_blocks)

    def _batch(self, running: "Sequence[Request]") -> _Batch:
        now_s, turns = self._clock(), self._turns
        occupants, block_ids = [], set[int]()
        for own in running:
            name = own.request_id
            mine = [b.block_id for b in self._blocks(own) if b.ref_cnt == 1 and not b.is_null]
            frees_blocks = len(mine) + self._growth_blocks(own)
            times, is_moving = turns.times(name), turns.is_moving(name, now_s)
            occupants.append(
                Occupant(
                    name,
                    turns.counts_as(name),
                    own.arrival_time,
                    frees_blocks,
                    times,
                    is_moving,
                    turns.is_kept(name),
                )
            )
            block_ids.update(mine)
        return _Batch(tuple(occupants), frozenset(block_ids))

    def _room(self) -> Room:
        """Counts what is free once every running request has the blocks that it needs next."""
        scheduler, cache = self._scheduler, self._cache
        places = scheduler.max_num_active_reqs - len(scheduler.running)
        blocks = cache.block_pool.get_num_free_blocks() - cache.watermark_blocks
        # They come back by themselves, when the step in flight is done.
        blocks += sum(len(freed) for _, freed in scheduler.deferred_frees)
        blocks -= sum(self._growth_blocks(own) for own in scheduler.running)
        return Room(places - len(scheduler.kv_holding_waiting), blocks)

    def _blocks(self, own: "Request") -> "Iterator[KVCacheBlock]":
        for manager in self._managers:
            yield from manager.req_to_blocks.get(own.request_id, ())

    def _growth_blocks(self, own: "Request") -> int:
        """Blocks that a running request lacks for its next token, or for the rest of its prompt."""
        tokens = own.num_tokens + own.num_output_placeholders
        return sum(
            max(0, -(-tokens // m.block_size) - len(m.req_to_blocks.get(own.request_id, ())))
            for m in self._managers
        )

    def _needed_blocks(self, own: "Request", batch: _Batch) -> int:
        """Blocks that a queued request needs besides those of its prefix that others keep."""
        hit, _, _ = self._cache.get_computed_blocks(own)
        kept: int = sum(
            block.ref_cnt > 0 and block.block_id not in batch.block_ids
            for group in hit.blocks
            for block in group
        )
        whole: int = sum(-(-own.num_tokens // m.block_size) for m in self._managers)
        return whole - kept


def _is_preempted(own: "Request") -> bool:
    from vllm.v1.request import RequestStatus

    return own.status == RequestStatus.PREEMPTED


def _is_ready(own: "Request") -> bool:
    """Not while its grammar is compiled, nor while a step in flight still has its output."""
    from vllm.v1.request import RequestStatus

    if own.status not in (RequestStatus.WAITING, RequestStatus.PREEMPTED):
        return False
    return not own.num_stale_output_tokens or own.drop_stale_output
