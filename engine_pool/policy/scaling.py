"""How many instances there should be: the pool's average freeness is kept inside a band.

Under the band for a while: a drain is taken back, or an instance is added. Over it for a while: the
instance with the fewest running requests is drained, which moves them away (Llumnix, OSDI 2024,
section 4.4.3). The average is taken over the pool as a whole, free tokens of all by requests of
all, so that one idle instance does not hide fifteen full ones; an instance that starts counts with
its memory, so that one shortage is not answered twice. Before a drain it is checked that those who
stay can carry the load. "For a while" is elapsed time, and begins anew when the average returns.

Time is monotonic seconds, always passed in.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from engine_pool.policy.pairing import in_words
from engine_pool.policy.settings import HeadroomRule, ScalingRule
from engine_pool.policy.standing import Standing
from engine_pool.policy.virtual_usage import virtual_tokens
from engine_pool.types import InstanceName


@dataclass(frozen=True, slots=True)
class ScalingState:
    """What is remembered between two checks."""

    under_since_s: float | None = None
    over_since_s: float | None = None


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    add: int
    """Instances to start."""
    drain: InstanceName | None
    undrain: InstanceName | None
    average_steps: float | None
    """Average freeness; plus infinity when nothing runs, None without a report."""
    reason: str

    @property
    def is_change(self) -> bool:
        return self.add > 0 or self.drain is not None or self.undrain is not None


def decide(
    standings: Sequence[Standing],
    *,
    starting_tokens: Sequence[int],
    silent: int,
    rule: ScalingRule,
    headroom: HeadroomRule,
    state: ScalingState,
    now_s: float,
) -> tuple[ScalingDecision, ScalingState]:
    """Decides one check. `standings`: fresh reports of serving and draining instances;
    `starting_tokens`: the capacity of each instance that starts; `silent`: how many instances are
    there without a fresh report. Nothing changes on the strength of a part of the picture."""
    if silent:
        return _stay(None, f"{silent} instances have no fresh report"), state
    serving = sorted((s for s in standings if s.is_open), key=lambda s: s.instance)
    count = len(serving) + len(starting_tokens)
    average: float | None = None
    if serving:
        average = average_steps(serving, starting_tokens, headroom)
        state = _remember(average, rule, state, now_s)
    if count < rule.min_instances:
        words = f"{count} < {rule.min_instances}, the least"
        found = _undrain(standings, average, words)
        return found or _add(rule.min_instances - count, average, words), state
    if average is None:
        return _stay(None, "no report of a serving instance"), state
    if state.under_since_s is not None:
        return _when_under(standings, average, count, rule, state, now_s)
    if state.over_since_s is not None:
        return _when_over(standings, starting_tokens, average, rule, headroom, state, now_s)
    words = f"average {in_words(average)} in {rule.low_steps:g}-{rule.high_steps:g}"
    return _stay(average, words), state


def average_steps(
    serving: Sequence[Standing], starting_tokens: Sequence[int], headroom: HeadroomRule
) -> float:
    """Returns free tokens of all by running requests of all; plus infinity when nothing runs."""
    running = sum(s.batch for s in serving)
    free = sum(s.capacity_tokens - virtual_tokens(s, headroom) for s in serving)
    # What waits behind the heads will run as well: a long queue is not a full pool of one head.
    free -= sum(sum(s.queued_tokens) - s.head_tokens for s in serving)
    requests = running + sum(s.waiting for s in serving)
    return (free + sum(starting_tokens)) / requests if requests else math.inf


def _remember(average: float, rule: ScalingRule, state: ScalingState, now_s: float) -> ScalingState:
    if average < rule.low_steps:
        since_s = now_s if state.under_since_s is None else state.under_since_s
        return ScalingState(under_since_s=since_s)
    if average > rule.high_steps:
        since_s = now_s if state.over_since_s is None else state.over_since_s
        return ScalingState(over_since_s=since_s)
    return ScalingState()


def _when_under(
    standings: Sequence[Standing],
    average: float,
    count: int,
    rule: ScalingRule,
    state: ScalingState,
    now_s: float,
) -> tuple[ScalingDecision, ScalingState]:
    assert state.under_since_s is not None, "asked by the caller"
    waited_s = now_s - state.under_since_s
    words = f"average {in_words(average)} < {rule.low_steps:g} for {waited_s:.0f} s"
    if waited_s < rule.grow_after_s:
        return _stay(average, f"{words}, at least {rule.grow_after_s:g} s"), state
    if (found := _undrain(standings, average, words)) is not None:
        return found, state
    if count >= rule.max_instances:
        return _stay(average, f"{words}, but {count} instances are the most"), state
    return _add(1, average, f"{words}: {count} -> {count + 1}"), state


def _undrain(
    standings: Sequence[Standing], average: float | None, words: str
) -> ScalingDecision | None:
    draining = [s for s in standings if s.is_draining]
    if not draining:
        return None
    # The one with most to move is the furthest from its end.
    best = max(draining, key=lambda s: (s.batch, s.instance))
    why = f"{words}: {best.instance} need not start, it only stops draining"
    return ScalingDecision(0, None, best.instance, average, why)


def _when_over(
    standings: Sequence[Standing],
    starting_tokens: Sequence[int],
    average: float,
    rule: ScalingRule,
    headroom: HeadroomRule,
    state: ScalingState,
    now_s: float,
) -> tuple[ScalingDecision, ScalingState]:
    assert state.over_since_s is not None, "asked by the caller"
    waited_s = now_s - state.over_since_s
    words = f"average {in_words(average)} > {rule.high_steps:g} for {waited_s:.0f} s"
    if waited_s < rule.shrink_after_s:
        return _stay(average, f"{words}, at least {rule.shrink_after_s:g} s"), state
    serving = [s for s in standings if s.is_open]
    if starting_tokens or len(serving) <= rule.min_instances:
        why = "one starts" if starting_tokens else f"{len(serving)} instances are the least"
        return _stay(average, f"{words}, but {why}"), state
    least = min(serving, key=lambda s: (s.batch + s.waiting, s.instance))
    after = _average_without(least, standings, headroom)
    if after < rule.low_steps:
        why = f"refused: without {least.instance} the average would be {in_words(after)}"
        return _stay(average, f"{words}, {why} < {rule.low_steps:g}"), state
    moves = f"{least.instance} has the fewest requests ({least.batch + least.waiting})"
    why = f"{words}: {len(serving)} -> {len(serving) - 1}, {moves}"
    return ScalingDecision(0, least.instance, None, average, why), ScalingState()


def _average_without(
    least: Standing, standings: Sequence[Standing], headroom: HeadroomRule
) -> float:
    """Returns the average once everything that leaves, also by drains that go on, is elsewhere."""
    rest = [s for s in standings if s.is_open and s is not least]
    leaving = [s for s in standings if s.is_draining or s is least]
    requests = sum(s.batch + s.waiting for s in (*rest, *leaving))
    free = sum(s.capacity_tokens - virtual_tokens(s, headroom) for s in rest)
    free -= sum(sum(s.queued_tokens) - s.head_tokens for s in rest)
    free -= sum(s.used_tokens + sum(s.queued_tokens) for s in leaving)
    return free / requests if requests else math.inf


def _add(count: int, average: float | None, reason: str) -> ScalingDecision:
    return ScalingDecision(count, None, None, average, reason)


def _stay(average: float | None, reason: str) -> ScalingDecision:
    return ScalingDecision(0, None, None, average, reason)
