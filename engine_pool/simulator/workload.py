"""Workloads: who comes when, with how many tokens. They depend on their seed and on nothing else,
so that two policies can be compared on the very same requests.

Lengths as in Llumnix's evaluation (OSDI 2024): rank k of 1..2*mean-1 with probability ~ k^-a,
scaled to the mean, rounded up, capped. Input and output are drawn independently. Arrivals are an
open loop: Poisson, or Gamma with a coefficient of variation.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from engine_pool.simulator.sim_request import Arrival
from engine_pool.simulator.trace import TraceRow
from engine_pool.types import PriorityClass


@dataclass(frozen=True, slots=True)
class LengthMix:
    """A power law of token counts."""

    mean_tokens: int
    exponent: float


MIXES = {"S": LengthMix(128, 2.0), "M": LengthMix(256, 1.5), "L": LengthMix(512, 1.15)}
"""Short, medium and long (Llumnix, table 1)."""
CAP_TOKENS = 6144
"""The longest input and output of the paper."""


def draw_lengths(mix: LengthMix, count: int, cap_tokens: int, random: Random) -> list[int]:
    """Draws `count` lengths whose mean before the cap is the mix's."""
    ranks = range(1, 2 * mix.mean_tokens)
    weights = list(accumulate(k**-mix.exponent for k in ranks))
    drawn = random.choices(ranks, cum_weights=weights, k=count)
    factor = mix.mean_tokens * count / sum(drawn)
    return [min(cap_tokens, math.ceil(k * factor)) for k in drawn]


def draw_arrivals(rate_per_s: float, cv: float, count: int, random: Random) -> list[float]:
    """Draws `count` arrival times in seconds. `cv`: of the gaps; 1 is Poisson, 0 an even beat."""
    if cv == 0:
        return [(i + 1) / rate_per_s for i in range(count)]
    if cv == 1:
        gaps = (random.expovariate(rate_per_s) for _ in range(count))
    else:
        shape, scale_s = 1 / cv**2, cv**2 / rate_per_s
        gaps = (random.gammavariate(shape, scale_s) for _ in range(count))
    return list(accumulate(gaps))


def draw_classes(high_share: float, count: int, random: Random) -> list[PriorityClass]:
    return [
        PriorityClass.HIGH if random.random() < high_share else PriorityClass.NORMAL
        for _ in range(count)
    ]


def stream(seed: int, what: str) -> Random:
    """Returns a random stream of its own for each thing that is drawn, so that changing one (the
    rate, say) leaves the others as they were."""
    return Random(f"{seed}/{what}")


@dataclass(frozen=True, slots=True)
class DrawnWorkload:
    """Requests of drawn lengths."""

    requests: int
    rate_per_s: float
    cv: float
    input_mix: LengthMix
    output_mix: LengthMix
    input_cap_tokens: int
    output_cap_tokens: int
    high_share: float


def draw(workload: DrawnWorkload, seed: int) -> list[Arrival]:
    """Draws the whole workload, in order of arrival."""
    n = workload.requests
    inputs = draw_lengths(workload.input_mix, n, workload.input_cap_tokens, stream(seed, "inputs"))
    outputs = draw_lengths(
        workload.output_mix, n, workload.output_cap_tokens, stream(seed, "outputs")
    )
    arrivals = draw_arrivals(workload.rate_per_s, workload.cv, n, stream(seed, "arrivals"))
    classes = draw_classes(workload.high_share, n, stream(seed, "classes"))
    return [Arrival(*row) for row in zip(range(n), arrivals, inputs, outputs, classes, strict=True)]


def replay(
    rows: Sequence[TraceRow],
    *,
    rate_per_s: float | None,
    input_cap_tokens: int,
    output_cap_tokens: int,
    high_share: float,
    seed: int,
) -> list[Arrival]:
    """Makes requests of a trace's rows, in order of time. With a rate the gaps are stretched so
    that it is their mean; without, time passes as it was recorded."""
    ordered = sorted(rows, key=lambda row: row.at_s)
    start_s, recorded_s = ordered[0].at_s, ordered[-1].at_s - ordered[0].at_s
    stretch = 1.0
    if rate_per_s is not None and recorded_s > 0:
        stretch = (len(ordered) - 1) / rate_per_s / recorded_s
    classes = draw_classes(high_share, len(ordered), stream(seed, "classes"))
    return [
        Arrival(
            index=i,
            arrival_s=(row.at_s - start_s) * stretch,
            prompt_tokens=min(row.prompt_tokens, input_cap_tokens),
            output_tokens=min(row.output_tokens, output_cap_tokens),
            priority_class=classes[i],
        )
        for i, row in enumerate(ordered)
    ]
