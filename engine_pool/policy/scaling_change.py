"""Which instance comes or goes, once scaling.py has found that one should; and what forbids it."""

import math
from collections.abc import Sequence
from dataclasses import replace

from engine_pool.policy.pairing import in_words
from engine_pool.policy.scaling_facts import Barrier, Picture, ScalingDecision, Signal
from engine_pool.policy.settings import HeadroomRule, ScalingRule
from engine_pool.policy.standing import Standing
from engine_pool.policy.virtual_usage import virtual_tokens


def grow(
    picture: Picture, rule: ScalingRule, words: str, signal: Signal, add: int = 1
) -> ScalingDecision:
    """Takes back a drain, wakes what sleeps, or adds instances, whichever costs least."""
    undrainable = [s for s in picture.leaving if s.instance in picture.undrainable]
    if undrainable:
        # The one with most to move is the furthest from its end.
        best = max(undrainable, key=lambda s: (s.batch, s.instance))
        why = f"{words}: {best.instance} need not start, it only stops draining"
        return ScalingDecision(why, undrain=best.instance, signal=signal)
    count, most = picture.count, rule.max_instances - picture.away - picture.failing
    if picture.failing and not picture.serving:
        why = f"but {picture.failing} fail again and again, and another would, too"
        return refuse(f"{words}, {why}", signal, Barrier.FAILING)
    if count >= most:
        why = f"but {count} instances are the most{_why_less(picture)}"
        return refuse(f"{words}, {why}", signal, Barrier.MOST)
    if picture.asleep:
        wake = picture.asleep[0]
        return ScalingDecision(
            f"{words}: {count} -> {count + 1}, {wake} starts again", wake=wake, signal=signal
        )
    add = min(add, most - count)
    beside = " (one fails again and again)" if picture.failing else ""
    return ScalingDecision(f"{words}: {count} -> {count + add}{beside}", add=add, signal=signal)


def shrink(
    picture: Picture, rule: ScalingRule, headroom: HeadroomRule, words: str, signal: Signal
) -> ScalingDecision:
    """Drains the instance with the fewest requests, if the others can go on without it.

    Under an order (the schedule's most, the pool's) they must: then only what is not known, or not
    there yet, forbids it.
    """
    serving = picture.serving
    is_ordered = signal in (Signal.BOUNDS, Signal.SCHEDULE)
    if picture.silent:
        why = f"but {picture.silent} instances have no fresh report"
        return refuse(f"{words}, {why}", signal, Barrier.SILENT)
    if not is_ordered and picture.count <= max(1, rule.min_instances):
        # Where a pool rests: nothing that anybody must be told of.
        return stay(f"{words}, but {picture.count} instances are the least", signal=signal)
    if picture.starting_tokens:
        return refuse(f"{words}, but one starts", signal, Barrier.STARTING)
    if len(serving) < 2:
        return stay(f"{words}, but only {len(serving)} serves", signal=signal)
    least = _least_busy(serving)
    if not is_ordered:
        after = average_without(least, picture, headroom)
        if not after >= rule.survivors_steps:
            why = f"refused: without {least.instance} the average would be {in_words(after)}"
            return refuse(f"{words}, {why} < {rule.survivors_steps:g}", signal, Barrier.SURVIVORS)
    moves = f"{least.instance} has the fewest requests ({least.batch + least.waiting})"
    why = f"{words}: {len(serving)} -> {len(serving) - 1}, {moves}"
    return ScalingDecision(why, drain=least.instance, signal=signal)


def is_spare(picture: Picture, rule: ScalingRule, headroom: HeadroomRule) -> bool:
    """Says whether the others could carry the load of the one with the fewest requests."""
    serving = picture.serving
    if not serving:
        return False
    return average_without(_least_busy(serving), picture, headroom) >= rule.survivors_steps


def _least_busy(serving: Sequence[Standing]) -> Standing:
    """Returns the one with the fewest requests; of equals the last, so that what stays are the
    first numbers."""
    fewest = min(s.batch + s.waiting for s in serving)
    return max((s for s in serving if s.batch + s.waiting == fewest), key=lambda s: s.instance)


def average_without(least: Standing, picture: Picture, headroom: HeadroomRule) -> float:
    """Returns the average once everything that leaves, also by drains that go on, is elsewhere."""
    rest = [s for s in picture.serving if s is not least]
    leaving = [*picture.leaving, least]
    requests = sum(s.batch + s.waiting for s in (*rest, *leaving))
    free = sum(s.capacity_tokens - virtual_tokens(s, headroom) for s in rest)
    free -= sum(sum(s.queued_tokens) - s.head_tokens for s in rest)
    free -= sum(s.used_tokens + sum(s.queued_tokens) for s in leaving)
    return free / requests if requests else math.inf


def stay(words: str, *, signal: Signal = Signal.FREENESS, is_hold: bool = False) -> ScalingDecision:
    return ScalingDecision(words, signal=signal, is_hold=is_hold)


def refuse(words: str, signal: Signal, barrier: Barrier) -> ScalingDecision:
    return replace(stay(words, signal=signal), barrier=barrier)


def _why_less(picture: Picture) -> str:
    parts = []
    if picture.away:
        parts.append(f"{picture.away} cordoned or drained by people")
    if picture.failing:
        parts.append(f"{picture.failing} in a crash loop")
    return f" beside {' and '.join(parts)}" if parts else ""
