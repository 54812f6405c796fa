"""Which instances should give running requests to which: the lowest freeness to the highest.

Sources are instances with `F < below_steps`, destinations those with `F > above_steps` that have no
queue of their own; the least free is paired with the freest, the second with the second, and so on
(Llumnix, OSDI 2024, section 4.4.3). A pair stays until one side leaves its set, so that small
changes do not turn everything around. A draining instance's F is minus infinity: it is the first
source and never a destination. A round (rebalancing.py) empties those before it pairs the others,
since their requests may go to any open instance with room, between the thresholds too.

Does not choose requests (selection.py), and does not count moves that go on.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine_pool.policy.freeness import freeness_of
from engine_pool.policy.settings import HeadroomRule, RebalanceRule
from engine_pool.policy.standing import Standing
from engine_pool.types import InstanceName

MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True, slots=True)
class Pair:
    source: InstanceName
    destination: InstanceName
    source_steps: float
    """Freeness at the decision; minus infinity for a draining source."""
    destination_steps: float
    """Plus infinity for an idle destination."""
    reason: str


def pair(
    standings: Sequence[Standing],
    rule: RebalanceRule,
    headroom: HeadroomRule,
    before: Mapping[InstanceName, InstanceName] | None = None,
) -> tuple[Pair, ...]:
    """Pairs instances; the same for every order of `standings`. Least free source first.

    `before`: destination by source of the last round; a pair of it stays while both qualify.
    """
    low: list[tuple[float, float, InstanceName]] = []
    high: list[tuple[float, float, InstanceName]] = []
    for s in standings:
        steps = freeness_of(s, headroom)
        if steps < rule.below_steps and not s.is_idle:
            low.append((steps, _order(s, steps), s.instance))
        elif steps > rule.above_steps and s.can_receive:
            high.append((steps, -s.free_tokens, s.instance))
    # Of shortages the larger goes first; of idle instances the larger one.
    low.sort(key=lambda end: (end[1], end[2]))
    high.sort(key=lambda end: (-end[0], end[1], end[2]))
    return tuple(_joined(low, high, before or {}, rule))


def _order(s: Standing, steps: float) -> float:
    """Dividing a shortage by the batch would make a long queue look freer than a short one."""
    return steps * max(1, sum(s.running)) if -math.inf < steps < 0 else steps


def _joined(
    low: Sequence[tuple[float, float, InstanceName]],
    high: Sequence[tuple[float, float, InstanceName]],
    before: Mapping[InstanceName, InstanceName],
    rule: RebalanceRule,
) -> list[Pair]:
    free = {name: steps for steps, _, name in high}
    kept = {name: before[name] for _, _, name in low if name in before and before[name] in free}
    taken = set(kept.values())
    rest = iter([name for _, _, name in high if name not in taken])
    pairs = []
    for steps, _, source in low:
        destination = kept.get(source) or next(rest, None)
        if destination is not None:
            why = _why(source, steps, destination, free[destination], rule)
            pairs.append(Pair(source, destination, steps, free[destination], why))
    return pairs


def _why(
    source: str, source_steps: float, destination: str, steps: float, rule: RebalanceRule
) -> str:
    if math.isinf(source_steps):
        lower = f"{source} drains"
    else:
        lower = f"{source} {in_words(source_steps)} < {rule.below_steps:g}"
    return f"{lower} and {destination} {in_words(steps)} > {rule.above_steps:g}"


def in_words(steps: float) -> str:
    """Writes a freeness as pages do: one decimal under 100, none above, "idle" for plus
    infinity."""
    if math.isinf(steps):
        return "idle" if steps > 0 else f"{MINUS}∞"
    text = f"{steps:.1f}" if abs(steps) < 100 else f"{steps:,.0f}"
    return text.replace("-", MINUS)
