"""Why the rebalancer does nothing, or what it thinks of an instance, in words with the numbers.

Decides nothing: the round (policy/rebalancing.py) does, by the same comparisons.
"""

import math
import time
from collections.abc import Sequence

from engine_pool.policy.freeness import freeness_of
from engine_pool.policy.pairing import in_words
from engine_pool.policy.settings import HeadroomRule, RebalanceRule
from engine_pool.policy.standing import Standing
from engine_pool.rebalancing_facts import Pause


def why_nothing(standings: Sequence[Standing], rule: RebalanceRule, headroom: HeadroomRule) -> str:
    """Says why a round has no pair."""
    if not standings:
        return f"no instance has a report younger than {rule.report_max_age_s:g} s"
    if len(standings) == 1:
        return f"only {standings[0].instance} has a fresh report: there is nowhere to move to"
    steps, least = min(
        ((freeness_of(s, headroom), s.instance) for s in standings if not s.is_idle),
        default=(math.inf, ""),
    )
    if math.isinf(steps) and steps > 0:
        return "all instances are idle"
    if steps >= rule.below_steps:
        return f"the least free, {least}, is at {in_words(steps)}: not under {rule.below_steps:g}"
    return (
        f"{least} {in_words(steps)} < {rule.below_steps:g}, but no open instance without a queue "
        f"is over {rule.above_steps:g}"
    )


def thinks_of(
    steps: float,
    rule: RebalanceRule,
    *,
    is_draining: bool = False,
    queued: int = 0,
    is_open: bool = True,
) -> str:
    """Says what the rebalancer does with an instance.

    `steps`: its freeness, plus infinity when idle; `queued`: who waits there; `is_open`: it takes
    requests.
    """
    if is_draining:
        return "gives its requests away: it drains"
    number = in_words(steps)
    if steps < rule.below_steps:
        return f"gives requests away: {number} is under {rule.below_steps:g}"
    if steps <= rule.above_steps:
        return f"leaves it alone: {number} is between {rule.below_steps:g} and {rule.above_steps:g}"
    over = "it is idle" if math.isinf(steps) else f"{number} is over {rule.above_steps:g}"
    if not is_open:
        return f"leaves it alone: {over}, and it takes no requests"
    if queued:
        return f"leaves it alone: {over}, and {queued} wait there"
    return f"leaves it alone and may send it requests: {over}"


def pause_in_words(pause: Pause, *, with_reason: bool = True) -> str:
    """Says who paused it and until when."""
    until = "until it is resumed"
    if pause.until_unix_s is not None:
        # With its zone: engines, pool and readers need not share one.
        until = f"until {time.strftime('%H:%M UTC', time.gmtime(pause.until_unix_s))}"
    reason = f": {pause.reason}" if pause.reason and with_reason else ""
    return f"paused by {pause.by} {until}{reason}"
