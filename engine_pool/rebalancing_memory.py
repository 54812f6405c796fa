"""What a rebalancer remembers between rounds: moves just asked for, and what did not work lately.

All of it may be lost: a move that goes on stands in the view, and what does not work fails again.
"""

from collections import deque
from collections.abc import Callable, Container
from typing import Final

from engine_pool.policy.rebalancing import Ends
from engine_pool.rebalancing_backoff import LONGEST_S, Backoff
from engine_pool.types import InstanceName
from migration.report import MoveReport, MoveState

ASKED_LIFE_S: Final = 5.0
"""A move that the view does not show so long after it was asked for, or after its source did not
answer, has not begun: engines report its first step at once."""
ENDS_KNOWN: Final = 1000
"""Ended moves that are recognised when they are told of twice."""
OVER: Final = ("request_finished", "client_cancelled")
"""The request has ended: there is nothing to hold back."""
UNREACHED: Final = ("peer_lost", "transfer_failed", "timed_out")
"""The two instances did not reach each other."""
BUSY: Final = ("too_many",)
"""Nothing is wrong with the request: its source has enough moves under way."""


class Memory:
    """One rebalancer's. `clock`: monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.requests: Backoff[str] = Backoff()
        self.pairs: Backoff[Ends] = Backoff()
        self.sources: Backoff[InstanceName] = Backoff()
        """Instances that did not answer, or have enough moves under way."""
        self._asked: dict[str, tuple[MoveReport, float]] = {}
        """By migration id; with the time after which it does not count, infinity before the
        answer."""
        self._ended: deque[str] = deque(maxlen=ENDS_KNOWN)

    def note_asked(self, report: MoveReport) -> None:
        """Counts a move from now on, although no engine has told of it."""
        self._asked[report.migration_id] = (report, float("inf"))

    def asked(self, shown: Container[str]) -> list[MoveReport]:
        """Returns the moves that were asked for and are not among those that the view shows."""
        now_s = self._clock()
        self._asked = {
            migration_id: entry
            for migration_id, entry in self._asked.items()
            if migration_id not in shown and now_s < entry[1]
        }
        return [report for report, _ in self._asked.values()]

    def note_begun(self, report: MoveReport) -> None:
        self._expire(report)
        self.sources.forget(InstanceName(report.source))

    def note_no_answer(self, report: MoveReport) -> None:
        """Its source did not answer: it may have begun all the same."""
        self._expire(report)
        self.sources.note_failure(InstanceName(report.source), self._clock())

    def note_refused(self, report: MoveReport, code: str) -> None:
        """Holds back what a refusal is about. After `note_no_answer` the move still counts."""
        entry = self._asked.get(report.migration_id)
        if entry is not None and entry[1] == float("inf"):
            del self._asked[report.migration_id]
        if code in BUSY:
            self.sources.note_failure(InstanceName(report.source), self._clock())
        elif code not in OVER:
            self.requests.note_failure(report.request_id, self._clock())

    def note_end(self, move: MoveReport) -> bool:
        """Learns from how a move ended; says whether that was news."""
        if not move.state.is_end or move.migration_id in self._ended:
            return False
        self._ended.append(move.migration_id)
        ends = InstanceName(move.source), InstanceName(move.destination)
        now_s = self._clock()
        if move.state is MoveState.COMMITTED:
            self.requests.forget(move.request_id)
            self.pairs.forget(ends)
            return True
        if move.abort_code in UNREACHED:
            self.pairs.note_failure(ends, now_s)
        if move.abort_code == "cancelled":
            # Whoever cancelled it does not want to see it again at once.
            self.requests.note_failure(move.request_id, now_s, LONGEST_S)
        elif move.abort_code not in OVER:
            self.requests.note_failure(move.request_id, now_s)
        return True

    def _expire(self, report: MoveReport) -> None:
        if report.migration_id in self._asked:
            self._asked[report.migration_id] = (report, self._clock() + ASKED_LIFE_S)
