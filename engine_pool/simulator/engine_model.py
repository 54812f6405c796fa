"""One engine in virtual time: continuous batching as in the paper's engine.

Waiting requests go first: those whose blocks fit above the watermark are admitted, their prompts
are computed in one step that is not chunked and stalls decoding. Else all running requests get one
token a step. When a step's blocks are not there, the last come is preempted: it loses its blocks
and has to compute prompt and output again. Queues are in order of class, then arrival.

Steps are not events. Between two changes the lengths of an engine's steps are known, so it plans
their ends up to the next finish or shortage and catches up when somebody looks (`touch`). The
only event is the end of a plan. What an observer sees is the same as if each step was one.

Changes from outside must come after `touch(now_s)`.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from engine_pool.simulator.books_model import EngineBooks
from engine_pool.simulator.costs import StepCosts
from engine_pool.simulator.sim_request import Place, SimRequest

PLAN_STEPS = 128
"""Longest plan: one that is overtaken by an arrival was made for nothing."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    capacity_tokens: int
    block_size_tokens: int
    max_running: int
    max_prefill_tokens: int
    """Of one prefill step; a longer prompt has a step of its own."""
    watermark: float
    """Share of the capacity that admission leaves free."""
    copy_slowdown: float
    """How much longer decode steps take while the engine takes part in a copy, as a share."""


class Surroundings(Protocol):
    """What an engine tells the world it is in."""

    def wake_at(self, engine: "Engine", at_s: float) -> None:
        """Calls `engine.wake` then, unless `engine.version` has changed by then."""

    def finished(self, r: SimRequest, now_s: float) -> None:
        """`r` has all its tokens and has left the engine."""

    def preempted(self, r: SimRequest, now_s: float) -> None:
        """`r` lost its blocks and is in the queue."""


class Engine(EngineBooks):
    """Its `standing` is exact after every touch."""

    def __init__(
        self, name: str, limits: EngineLimits, costs: StepCosts, around: Surroundings
    ) -> None:
        super().__init__(
            name,
            capacity_tokens=limits.capacity_tokens,
            block_size_tokens=limits.block_size_tokens,
            max_running=limits.max_running,
            watermark=limits.watermark,
        )
        self.version = 0
        """Of the plan."""
        self.preemptions_total = 0
        self._limits = limits
        self._costs = costs
        self._around = around
        self._copies = 0
        self._parks: list[tuple[SimRequest, Callable[[float], None]]] = []
        self._moved_in: list[SimRequest] = []
        """Requests that came by a move and have no token from here yet."""
        self._ends: list[float] = []
        """Ends of the planned steps; empty while it does not decode."""
        self._done = 0
        """How many of them are complete."""
        self._is_between_steps = False

    # Time

    def touch(self, now_s: float) -> None:
        """Completes the steps that are over. The last planned one is completed by its event."""
        ends = self._ends
        if ends and ends[self._done] <= now_s:
            done = bisect_right(ends, now_s, self._done, len(ends) - 1)
            if done > self._done:
                self.complete_steps(done - self._done)
                self._done = done

    def wake(self, now_s: float) -> None:
        """Ends the planned steps, which end now, and begins the next."""
        self._is_between_steps = True
        if self._ends:
            self.complete_steps(len(self._ends) - 1 - self._done)
            self._ends = []
            self.end_step()
        elif self.prefilling:
            self._end_prefill(now_s)
        self._between_steps(now_s)

    def _interrupt(self, now_s: float) -> None:
        """Has a look at everything when the present step ends, at once when there is none."""
        if self._is_between_steps or self.prefilling:
            return
        if not self._ends:
            self._between_steps(now_s)
        elif len(self._ends) > self._done + 1:
            del self._ends[self._done + 1 :]
            self._wake_at(self._ends[-1])

    def _wake_at(self, at_s: float) -> None:
        self.version += 1
        self._around.wake_at(self, at_s)

    # Steps

    def _between_steps(self, now_s: float) -> None:
        self._is_between_steps = True
        for r in self.batch.pop_finished():
            self.leave_running(r)
            self._finish(r, now_s)
        for r in self.joining:
            self.batch.join(r)
        self.joining.clear()
        parks, self._parks = self._parks, []
        for r, parked in parks:
            # Who finished or was preempted since has been told so.
            if r.instance == self.name and r.place is Place.DECODING:
                self.put_aside(r)
                parked(now_s)
        self._begin_step(now_s)
        self._is_between_steps = False

    def _begin_step(self, now_s: float) -> None:
        """Prefill first; else a decode step, which may preempt; else the engine rests."""
        while True:
            admitted = self.admit(self._limits.max_prefill_tokens)
            if admitted:
                self.prefilling = admitted
                took_ms = self._costs.prefill_ms([r.tokens for r in admitted])
                self._wake_at(now_s + took_ms / 1000)
                return
            if not self.batch.members:
                return
            self._make_room(now_s)
            if self.batch.members:
                self.grow()
                self._plan(now_s)
                return

    def _make_room(self, now_s: float) -> None:
        """Preempts the last come, of the lowest class there, until the step's blocks are there."""
        batch = self.batch
        while batch.members and self.growth_tokens() > self.standing.free_tokens:
            last = max(batch.members.values(), key=lambda r: r.key)
            batch.leave(last)
            self.leave_running(last)
            self.put_in_queue(last)
            last.preemptions += 1
            if last.preempted_s is None:
                last.preempted_s = now_s
            self.preemptions_total += 1
            self._around.preempted(last, now_s)

    def _plan(self, now_s: float) -> None:
        """Plans the ends of the steps until something must be decided."""
        batch = self.batch
        members = len(batch.members)
        steps = min(PLAN_STEPS, batch.next_finish_step() - batch.steps)
        if self.may_admit and self.waiting:
            steps = 1
        steps = self.steps_with_room(steps)
        slow = 1 + self._limits.copy_slowdown if self._copies else 1.0
        costs = self._costs
        step_s = costs.decode_ms(members, batch.tokens) * slow / 1000
        longer_s = costs.time_scale * costs.decode_ms_per_kv_token * members * slow / 1000
        ends = []
        end_s = now_s
        for _ in range(steps):
            end_s += step_s
            step_s += longer_s
            ends.append(end_s)
        self._ends = ends
        self._done = 0
        if self._moved_in:
            self._note_first_tokens(ends[0])
        self._wake_at(ends[-1])

    def _note_first_tokens(self, at_s: float) -> None:
        for r in self._moved_in:
            if r.last_token_before_move_s is not None and r.place is Place.DECODING:
                r.downtimes_s.append(at_s - r.last_token_before_move_s)
            r.last_token_before_move_s = None
        self._moved_in.clear()

    def _end_prefill(self, now_s: float) -> None:
        prefilled, self.prefilling = self.prefilling, []
        for r in prefilled:
            r.tokens += 1
            if r.first_token_s is None:
                r.first_token_s = now_s
            if r.preempted_s is not None:
                r.lost_s += now_s - r.preempted_s
                r.preempted_s = None
            if r.tokens == r.total_tokens:
                self.leave_running(r)
                self._finish(r, now_s)
            else:
                self.batch.join(r)

    def _finish(self, r: SimRequest, now_s: float) -> None:
        r.instance, r.place, r.finish_s = None, Place.DONE, now_s
        self._around.finished(r, now_s)

    # What comes from outside

    def enqueue(self, r: SimRequest, now_s: float) -> None:
        if self.put_in_queue(r):
            self._interrupt(now_s)

    def park(self, r: SimRequest, now_s: float, parked: Callable[[float], None]) -> None:
        """Takes a request out of batch or queue between two steps, and calls `parked` then. Never
        if it finishes or is preempted before."""
        if r.place is Place.QUEUED:
            self.put_aside(r)
            self._interrupt(now_s)
            parked(now_s)
        else:
            self._parks.append((r, parked))
            self._interrupt(now_s)

    def unpark(self, r: SimRequest, now_s: float) -> None:
        """Undoes `park`, before or after it was carried out."""
        self._parks = [entry for entry in self._parks if entry[0] is not r]
        if r.index in self.parked:
            self.put_back(r)
            self._interrupt(now_s)

    def release(self, r: SimRequest, now_s: float) -> None:
        """Frees a parked request: it is another engine's now."""
        self.forget_parked(r)
        self._interrupt(now_s)

    def hold(self, r: SimRequest, blocks: int, now_s: float) -> bool:
        """Keeps room for a request that comes, so many blocks in all. Says whether there was."""
        has_room = self.keep_room(r, blocks)
        self._interrupt(now_s)
        return has_room

    def discard(self, r: SimRequest, now_s: float) -> None:
        """Gives up the room of a request that does not come."""
        self.free_room(r)
        self._interrupt(now_s)

    def adopt(self, r: SimRequest, now_s: float) -> None:
        """Takes over a request for which room is held."""
        if self.take_over(r):
            self._moved_in.append(r)
        self._interrupt(now_s)

    def begin_copy(self, now_s: float) -> None:
        self._copies += 1
        self._interrupt(now_s)

    def end_copy(self, now_s: float) -> None:
        self._copies -= 1
        self._interrupt(now_s)

    @property
    def is_copying(self) -> bool:
        return self._copies > 0
