"""Counts what a rebalancer does, for pages and metrics."""

from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from engine_pool.policy.rebalancing import R, Round
from engine_pool.policy.settings import RebalanceRule
from engine_pool.rebalancing_facts import PairFact, RebalancerReport, RebalancerState

WINDOW_S: Final = 300.0
"""What pages call lately: as long as their counts of moves in and out."""
PAIRS_TOLD: Final = 16
"""Pairs in a report: as many as a page shows at once."""
STARTED: Final = ""
"""Stands for a move that has begun, among the codes of those that have not."""


class Account:
    """One rebalancer's. `clock`: monotonic seconds."""

    def __init__(self, rule: RebalanceRule, clock: Callable[[], float]) -> None:
        self._rule = rule
        self._clock = clock
        self._rounds = 0
        self._round_at_unix_s: float | None = None
        self._round_ms: float | None = None
        self._pairs: tuple[PairFact, ...] = ()
        self._pairs_total = 0
        self._totals: Counter[str] = Counter()
        self._lately: deque[tuple[float, str]] = deque()

    def note_round(self, plan: Round[R], at_unix_s: float, took_s: float) -> None:
        self._rounds += 1
        self._round_at_unix_s = at_unix_s
        self._round_ms = round(took_s * 1000, 3)
        idle = {(i.source, i.destination): i.why for i in plan.idle}
        self._pairs_total = len(plan.pairs)
        self._pairs = tuple(
            PairFact(p.source, p.destination, p.reason, idle.get((p.source, p.destination), ""))
            for p in plan.pairs[:PAIRS_TOLD]
        )

    def note_started(self) -> None:
        self._note(STARTED)

    def note_refused(self, code: str) -> None:
        """Counts a move that was not begun, or was aborted."""
        self._note(code or "unknown")

    def report(self, now_unix_s: float, state: RebalancerState, why: str) -> RebalancerReport:
        """Returns the report of now."""
        self._forget_old()
        lately = Counter(what for _, what in self._lately)
        is_on = state is RebalancerState.ON
        return RebalancerReport(
            at_unix_s=now_unix_s,
            state=state,
            why=why,
            below_steps=self._rule.below_steps,
            above_steps=self._rule.above_steps,
            interval_ms=self._rule.interval_ms,
            moves_per_instance=self._rule.moves_per_instance,
            tokens_per_round=self._rule.tokens_per_round,
            last_round_unix_s=self._round_at_unix_s,
            round_ms=self._round_ms,
            pairs=self._pairs if is_on else (),
            pairs_total=self._pairs_total if is_on else 0,
            rounds_total=self._rounds,
            started_total=self._totals[STARTED],
            refused_total=_refused(self._totals),
            minutes=WINDOW_S / 60,
            started_lately=lately[STARTED],
            refused_lately=_refused(lately),
        )

    def _note(self, what: str) -> None:
        self._totals[what] += 1
        self._lately.append((self._clock(), what))
        self._forget_old()

    def _forget_old(self) -> None:
        too_old_s = self._clock() - WINDOW_S
        while self._lately and self._lately[0][0] < too_old_s:
            self._lately.popleft()


def _refused(counts: Counter[str]) -> dict[str, int]:
    return {code: n for code, n in sorted(counts.items()) if code != STARTED}
