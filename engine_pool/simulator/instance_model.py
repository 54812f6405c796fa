"""An instance of a simulated pool: its engine, its life, and what decisions see of it."""

from collections.abc import Collection
from dataclasses import replace

from engine_pool.policy.standing import Standing, add_queued
from engine_pool.simulator.engine_model import Engine
from engine_pool.types import InstanceState

_SPREAD = 0.618033988749895
"""Golden ratio: spreads the reports of any number of instances over the interval."""


class Instance:
    """`seen` is what a decision may use: the last report, with what was sent since."""

    def __init__(
        self, engine: Engine, number: int, *, started_s: float, report_interval_s: float
    ) -> None:
        self.engine = engine
        self.state = InstanceState.STARTING
        self.started_s = started_s
        self.stopped_s: float | None = None
        self.moves = 0
        """That come or go now."""
        self._interval_s = report_interval_s
        self._next_report_s = started_s + (number * _SPREAD % 1) * report_interval_s
        self.seen = engine.standing if report_interval_s == 0 else _copy(engine.standing)
        self.seen_held: Collection[int] = ()
        """Requests that it keeps room for, as of the last report."""
        self.reported_s = started_s
        """When it took the last report."""
        self.set_state(InstanceState.STARTING)

    def touch(self, now_s: float) -> None:
        """Brings engine and reports up to now. Comes before every change of the engine."""
        if self._interval_s and now_s >= self._next_report_s:
            self._report(now_s)
        self.engine.touch(now_s)
        if not self._interval_s:
            self.reported_s = now_s
            self.seen_held = self.engine.held_blocks

    def _report(self, now_s: float) -> None:
        """Takes the last of the reports that are due; nobody looked at the others."""
        missed = int((now_s - self._next_report_s) / self._interval_s)
        due_s = min(now_s, self._next_report_s + missed * self._interval_s)
        self.engine.touch(due_s)
        now, seen = self.engine.standing, self.seen
        seen.used_tokens = now.used_tokens
        seen.running[:] = now.running
        seen.running_tokens[:] = now.running_tokens
        seen.queued[:] = now.queued
        seen.queued_tokens[:] = now.queued_tokens
        seen.head_tokens = now.head_tokens
        self.seen_held = tuple(self.engine.held_blocks)
        self.reported_s = due_s
        self._next_report_s = due_s + self._interval_s

    def note_sent(self, rank: int, demand_tokens: int) -> None:
        """Enters a request into the ledger, until a report shows it."""
        if self._interval_s:
            add_queued(self.seen, rank, demand_tokens)

    def set_state(self, state: InstanceState) -> None:
        """The pool knows its own states: they are in no report."""
        self.state = state
        for s in (self.engine.standing, self.seen):
            s.is_open = state is InstanceState.SERVING
            s.is_draining = state is InstanceState.DRAINING

    @property
    def is_in_pool(self) -> bool:
        """Whether it serves or drains."""
        return self.state in (InstanceState.SERVING, InstanceState.DRAINING)

    def seconds_until(self, end_s: float) -> float:
        """Returns for how long it has been paid by then, its start and its drain included."""
        stopped_s = end_s if self.stopped_s is None else min(self.stopped_s, end_s)
        return max(0.0, stopped_s - self.started_s)


def _copy(s: Standing) -> Standing:
    return replace(
        s,
        running=list(s.running),
        running_tokens=list(s.running_tokens),
        queued=list(s.queued),
        queued_tokens=list(s.queued_tokens),
    )
