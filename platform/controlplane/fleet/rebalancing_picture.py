"""What pages and API say of the rebalancer: from its last report and the operators' pause. Pure."""

import math
from typing import Final, NamedTuple

from controlplane.fleet.picture import InstanceRow, is_stale
from engine_pool.policy.settings import RebalanceRule
from engine_pool.rebalancing_facts import RebalancerReport, RebalancerState, RebalancingFacts
from engine_pool.rebalancing_words import pause_in_words, thinks_of

SILENT_AFTER_S: Final = 5.0
"""The pool process tells once a second what it does; five missing reports are no hiccup."""
SILENT: Final = "silent"
"""The pool process says nothing, so nobody knows."""
_SWITCHED: Final = (RebalancerState.OFF, RebalancerState.FORBIDDEN)


class RebalancingRow(NamedTuple):
    """The rebalancer now. The fields' order is the socket's (web/messages.py)."""

    state: str
    """A RebalancerState, or `silent`."""
    line: str
    below_steps: float
    above_steps: float


def rebalancing_row(
    facts: RebalancingFacts, rule: RebalanceRule, now_unix_s: float
) -> RebalancingRow:
    """Describes it. Thresholds are those that the pool process works with, once it has told."""
    state, why = state_of(facts, now_unix_s)
    report = facts.report
    below = rule.below_steps if report is None else report.below_steps
    above = rule.above_steps if report is None else report.above_steps
    match state:
        case RebalancerState.ON:
            line = f"Automatic moves from under {below:g} to over {above:g} steps{_lately(report)}"
        case RebalancerState.PAUSED if facts.pause is not None:
            line = f"Automatic moves are {pause_in_words(facts.pause, with_reason=False)}"
        case _:
            line = f"No automatic moves: {why}"
    return RebalancingRow(state, line, below, above)


def state_of(facts: RebalancingFacts, now_unix_s: float) -> tuple[str, str]:
    """Returns the state, and why it is not on; a pause counts at once, its end as well."""
    report = facts.report
    is_fresh = report is not None and now_unix_s - report.at_unix_s <= SILENT_AFTER_S
    if report is not None and is_fresh and report.state in _SWITCHED:
        return report.state.value, report.why
    if facts.pause is not None and facts.pause.holds(now_unix_s):
        return RebalancerState.PAUSED.value, pause_in_words(facts.pause)
    if report is None:
        return SILENT, "the pool process has not said anything yet"
    if not is_fresh:
        age_s = now_unix_s - report.at_unix_s
        return SILENT, f"the pool process has not said anything for {age_s:.0f} s"
    return RebalancerState.ON.value, report.why if report.state is RebalancerState.ON else ""


def strip_note(row: RebalancingRow, facts: RebalancingFacts) -> str:
    """Returns what the strip says about a pause; empty without one."""
    if row.state != RebalancerState.PAUSED.value or facts.pause is None:
        return ""
    return f"Automatic moves are {pause_in_words(facts.pause)}."


def thinks_of_row(row: InstanceRow, now: RebalancingRow, now_unix_s: float) -> str:
    """Says what the rebalancer does with an instance, as the end of a sentence."""
    if now.state != RebalancerState.ON.value:
        word = {SILENT: "silent", RebalancerState.FORBIDDEN.value: "not allowed to move anything"}
        return f"the rebalancer is {word.get(now.state, now.state)}"
    if row.freeness is None or is_stale(row, now_unix_s):
        return "the rebalancer leaves it alone: there is no fresh report"
    is_draining = row.freeness == "draining"
    steps = row.freeness if isinstance(row.freeness, float) else math.inf
    said = thinks_of(
        steps,
        RebalanceRule(below_steps=now.below_steps, above_steps=now.above_steps),
        is_draining=is_draining,
        queued=row.waiting or 0,
        is_open=row.state == "serving",
    )
    return f"the rebalancer {said}"


def _lately(report: RebalancerReport | None) -> str:
    if report is None:
        return ""
    refused = sum(report.refused_lately.values())
    more = f", {refused} refused" if refused else ""
    return f"; {report.started_lately} in {report.minutes:g} min{more}"
