"""How many instances there should be: the pool's average freeness is kept inside a band.

Under the band for a while: a drain is taken back, or an instance is added. Over it for a while: the
instance with the fewest running requests is drained, which moves them away (Llumnix, OSDI 2024,
section 4.4.3). The average is taken over the pool as a whole, free tokens of all by requests of
all, so that one idle instance does not hide fifteen full ones; an instance that starts counts with
its memory, so that one shortage is not answered twice. Before a drain it is checked that those who
stay can carry the load. "For a while" is elapsed time, and begins anew when the average returns.

Beside the band: bounds, of the pool or of its schedule; the share of requests within their TTFT
target; to zero when nothing has run for long, and back when somebody asks. Reports that are missing
never shrink a pool, and hold it for a bounded time only.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from engine_pool.policy.pairing import in_words
from engine_pool.policy.scaling_change import grow, is_spare, refuse, shrink, stay
from engine_pool.policy.scaling_facts import (
    Barrier,
    Picture,
    ScalingDecision,
    ScalingState,
    Signal,
)
from engine_pool.policy.settings import HeadroomRule, ScalingRule
from engine_pool.policy.standing import Standing
from engine_pool.policy.virtual_usage import virtual_tokens

Checked = tuple[ScalingDecision, ScalingState]


def decide(
    picture: Picture,
    *,
    rule: ScalingRule,
    headroom: HeadroomRule,
    state: ScalingState,
    now_s: float,
) -> Checked:
    """Decides one check. Whoever acts on it remembers `state.after(decision)`."""
    state = state.settled(now_s)
    if picture.silent:
        since_s = now_s if state.silent_since_s is None else state.silent_since_s
        state = replace(state, silent_since_s=since_s)
        if now_s - since_s < rule.silent_hold_s:
            words = f"{picture.silent} instances have no fresh report"
            return stay(words, is_hold=True), state
    else:
        state = replace(state, silent_since_s=None)
    average: float | None = None
    if picture.serving:
        average = average_steps(picture.serving, picture.starting_tokens, headroom)
        if math.isnan(average):
            return stay("the average is no number", is_hold=True), state
    state = _remember(picture, average, rule, headroom, state, now_s)
    decision = _decide(picture, average, rule, headroom, state, now_s)
    return replace(decision, average_steps=average), state


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


def _remember(
    picture: Picture,
    average: float | None,
    rule: ScalingRule,
    headroom: HeadroomRule,
    state: ScalingState,
    now_s: float,
) -> ScalingState:
    """Returns since when what counts by its length has been so."""

    def since(is_so: bool, before_s: float | None) -> float | None:
        return (now_s if before_s is None else before_s) if is_so else None

    if picture.starting_tokens:
        state = replace(state, starting_s=now_s)
    is_idle = picture.is_idle and not picture.is_demanded
    state = replace(state, idle_since_s=since(is_idle, state.idle_since_s))
    attained, floor = picture.attainment, rule.ttft_attainment_floor
    is_missed = attained is not None and floor is not None and attained.share < floor
    state = replace(state, ttft_under_since_s=since(is_missed, state.ttft_under_since_s))
    if average is None:
        return state
    return replace(
        state,
        under_since_s=since(average < rule.low_steps, state.under_since_s),
        over_since_s=since(average > rule.high_steps, state.over_since_s),
        spare_since_s=since(
            average > rule.high_steps and is_spare(picture, rule, headroom), state.spare_since_s
        ),
    )


def _decide(
    picture: Picture,
    average: float | None,
    rule: ScalingRule,
    headroom: HeadroomRule,
    state: ScalingState,
    now_s: float,
) -> ScalingDecision:
    bounds = Signal.SCHEDULE if rule.window else Signal.BOUNDS
    whose = f" (window {rule.window})" if rule.window else ""
    count = picture.count
    if count < rule.min_instances:
        words = f"{count} < {rule.min_instances}, the least{whose}"
        return grow(picture, rule, words, bounds, rule.min_instances - count)
    if count > rule.max_instances:
        words = f"{count} > {rule.max_instances}, the most{whose}"
        return shrink(picture, rule, headroom, words, bounds)
    if picture.is_demanded and count == 0:
        return grow(picture, rule, "requests wait and there is no instance", Signal.DEMAND)
    if count == 0:
        return stay("no instance is wanted, and nobody asks for one")
    if average is None:
        return stay("no report of a serving instance", is_hold=not picture.starting_tokens)
    if state.under_since_s is not None:
        return _when_under(picture, average, rule, state, now_s)
    if state.ttft_under_since_s is not None and state.over_since_s is None:
        return _when_late(picture, rule, state, now_s)
    if (decision := _to_zero(picture, rule, state, now_s)) is not None:
        return decision
    if state.over_since_s is not None:
        return _when_over(picture, average, rule, headroom, state, now_s)
    return stay(f"average {in_words(average)} in {rule.low_steps:g}-{rule.high_steps:g}")


def _when_under(
    picture: Picture, average: float, rule: ScalingRule, state: ScalingState, now_s: float
) -> ScalingDecision:
    assert state.under_since_s is not None, "asked by the caller"
    waited_s = now_s - state.under_since_s
    words = f"average {in_words(average)} < {rule.low_steps:g} for {waited_s:.0f} s"
    if waited_s < rule.grow_after_s:
        return stay(f"{words}, at least {rule.grow_after_s:g} s")
    if (left_s := _cooling_s(state.grown_s, rule.grow_cooldown_s, now_s)) > 0:
        why = f"but the last growth cools down for {left_s:.0f} s"
        return refuse(f"{words}, {why}", Signal.FREENESS, Barrier.COOL_DOWN)
    return grow(picture, rule, words, Signal.FREENESS)


def _when_late(
    picture: Picture, rule: ScalingRule, state: ScalingState, now_s: float
) -> ScalingDecision:
    """Too many first tokens are late, though the average is not over the band."""
    attained, floor = picture.attainment, rule.ttft_attainment_floor
    assert attained is not None, "asked by the caller"
    assert floor is not None, "asked by the caller"
    assert state.ttft_under_since_s is not None, "asked by the caller"
    waited_s = now_s - state.ttft_under_since_s
    share = f"{attained.share:.1%} of {attained.requests} requests within their TTFT"
    words = f"{share} < {floor:.1%} for {waited_s:.0f} s"
    if waited_s < rule.grow_after_s:
        return stay(f"{words}, at least {rule.grow_after_s:g} s", signal=Signal.TTFT)
    if picture.starting_tokens:
        return refuse(f"{words}, but one starts", Signal.TTFT, Barrier.STARTING)
    if (left_s := _cooling_s(state.grown_s, rule.grow_cooldown_s, now_s)) > 0:
        why = f"but the last growth cools down for {left_s:.0f} s"
        return refuse(f"{words}, {why}", Signal.TTFT, Barrier.COOL_DOWN)
    return grow(picture, rule, words, Signal.TTFT)


def _to_zero(
    picture: Picture, rule: ScalingRule, state: ScalingState, now_s: float
) -> ScalingDecision | None:
    """Drains the last instance of a pool that may be empty and has been idle for long."""
    if rule.zero_after_s is None or rule.min_instances > 0 or state.idle_since_s is None:
        return None
    if picture.count != 1 or not picture.serving:
        return None
    waited_s = now_s - state.idle_since_s
    if waited_s < rule.zero_after_s:
        return stay(f"idle for {waited_s:.0f} s, to zero after {rule.zero_after_s:g} s")
    last = picture.serving[0].instance
    return ScalingDecision(f"idle for {waited_s:.0f} s: 1 -> 0", drain=last, signal=Signal.IDLE)


def _when_over(
    picture: Picture,
    average: float,
    rule: ScalingRule,
    headroom: HeadroomRule,
    state: ScalingState,
    now_s: float,
) -> ScalingDecision:
    assert state.over_since_s is not None, "asked by the caller"
    waited_s = now_s - state.over_since_s
    words = f"average {in_words(average)} > {rule.high_steps:g} for {waited_s:.0f} s"
    if waited_s < rule.shrink_after_s:
        return stay(f"{words}, at least {rule.shrink_after_s:g} s")
    if state.ttft_under_since_s is not None:
        attained = picture.attainment
        share = f"{attained.share:.1%}" if attained is not None else "too small a share"
        why = f"but {share} of the requests are within their TTFT"
        return refuse(f"{words}, {why}", Signal.TTFT, Barrier.ATTAINMENT)
    changed_s = max((s for s in (state.grown_s, state.shrunk_s) if s is not None), default=None)
    if state.spare_since_s is not None and now_s - state.spare_since_s < rule.shrink_after_s:
        # A dip of the load is no reason: what is left must have been enough all the time.
        spare_s = now_s - state.spare_since_s
        return stay(f"{words}, of which the others were enough for {spare_s:.0f} s")
    left_s = _cooling_s(changed_s, rule.shrink_cooldown_s, now_s)
    # At the least there is nothing to wait for.
    if left_s > 0 and picture.count > max(1, rule.min_instances):
        why = f"but the last change cools down for {left_s:.0f} s"
        return refuse(f"{words}, {why}", Signal.FREENESS, Barrier.COOL_DOWN)
    return shrink(picture, rule, headroom, words, Signal.FREENESS)


def _cooling_s(changed_s: float | None, cooldown_s: float, now_s: float) -> float:
    return 0.0 if changed_s is None else changed_s + cooldown_s - now_s
