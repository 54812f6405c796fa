"""A simulated engine's queue: puts what `turns` decides into the books."""

from collections.abc import Callable, Iterable

from engine_pool.policy.urgency import Occupant, Room, Seeker, preempted
from engine_pool.simulator.books import Books, SimulatedRequest
from engine_pool.turns import Turns


class LiveQueue:
    """Owned by the engine's step thread. `clock`: monotonic seconds."""

    def __init__(self, books: Books, turns: Turns, clock: Callable[[], float]) -> None:
        self._books = books
        self._turns = turns
        self._clock = clock
        self.preemptions_total = 0

    def add(self, r: SimulatedRequest) -> None:
        self._turns.arrive(r.request, self._clock())
        r.priority = self._turns.priority(r.request.request_id)
        self._books.enqueue(r)

    def adopted(self, r: SimulatedRequest) -> None:
        """Hears of a request that a move has put into the batch or the queue."""
        self._turns.arrive(r.request, self._clock(), r.output_tokens)
        r.priority = self._turns.priority(r.request.request_id)
        if r.blocks:
            self.admitted(r)
        self._settle(is_changed=True)

    def looked(self, request_id: str) -> None:
        self._turns.look(request_id, self._clock())

    def admitted(self, r: SimulatedRequest) -> None:
        self._turns.admit(r.request.request_id, self._clock())
        r.priority = self._turns.running_priority(r.request.request_id)

    def produced(self, r: SimulatedRequest) -> None:
        self._turns.produce(r.request.request_id, 1)

    def ended(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._turns.end(request_id)
        self._settle()

    def before_step(self) -> None:
        """Raises those who have waited too long and makes room for waiting requests of higher
        classes than running ones."""
        if not self._books.waiting:
            return
        self._turns.age(self._clock())
        self._settle()
        chosen = self._to_preempt()
        for r in [r for r in self._books.running if r.request.request_id in chosen]:
            self.preempt(r, for_class=True)

    def preempt(self, victim: SimulatedRequest, *, for_class: bool = False) -> None:
        """Takes a running request's blocks and queues it again."""
        request_id, now_s = victim.request.request_id, self._clock()
        if for_class:
            self._turns.make_room(request_id, now_s)
        else:
            self._turns.requeue(request_id, now_s)
        self._books.free(victim)
        victim.preemptions += 1
        self.preemptions_total += 1
        self._books.running.remove(victim)
        victim.priority = self._turns.priority(request_id)
        self._books.enqueue(victim)

    def _settle(self, *, is_changed: bool = False) -> None:
        """Puts the queue in order again where turns have changed."""
        changed = self._turns.take_changed()
        for r in self._books.waiting:
            if r.request.request_id in changed:
                r.priority = self._turns.priority(r.request.request_id)
        if changed or is_changed:
            self._books.sort_queue()

    def _to_preempt(self) -> frozenset[str]:
        books, turns, now_s = self._books, self._turns, self._clock()
        queue = (
            Seeker(turns.rank(name), turns.is_raised(name), books.blocks_for(r.tokens + 1))
            for r in books.waiting
            for name in (r.request.request_id,)
        )
        batch = [
            Occupant(
                name,
                turns.counts_as(name),
                r.request.arrival_unix_s,
                r.blocks,
                turns.times(name),
                turns.is_moving(name, now_s),
                turns.is_kept(name),
            )
            for r in sorted(books.running, key=lambda r: r.queue_key)
            for name in (r.request.request_id,)
        ]
        room = Room(books.free_places, books.free_blocks - books.watermark_blocks)
        return frozenset(preempted(queue, batch, room, turns.class_preemptions_max))
