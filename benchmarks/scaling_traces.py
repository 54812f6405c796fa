"""Loads that go up and down: requests a second as a function of time, and requests drawn from it.

Rates are in units of what one instance serves well, times in parts of the trace's length, so that
the same shapes fit the simulator and a small real installation.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from engine_pool.simulator.sim_request import Arrival


@dataclass(frozen=True, slots=True)
class Trace:
    name: str
    rate: Callable[[float], float]
    """Load at a part of its length (0 to 1), in instances' worth."""
    silent: tuple[float, float] | None = None
    """From when to when an instance's reports are no numbers."""


def _spike(at: float) -> float:
    return 3.2 if 0.3 <= at < 0.5 else 0.6


def _step(at: float) -> float:
    return 2.6 if at >= 0.35 else 0.8


def _zero(at: float) -> float:
    return 0.0 if 0.35 <= at < 0.7 else 1.6


def _flat(at: float) -> float:
    return 2.0


def _sawtooth(at: float) -> float:
    return 0.4 + 2.6 * math.modf(at * 4)[0]


def _nan(at: float) -> float:
    return 2.6 if at >= 0.6 else 1.6


TRACES: Final = (
    Trace("spike", _spike),
    Trace("step", _step),
    Trace("zero", _zero),
    Trace("flat", _flat),
    Trace("sawtooth", _sawtooth),
    Trace("nan", _nan, silent=(0.25, 0.85)),
)
"""At most 3.2 instances' worth: four are the most that a scaled pool may have."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How a trace is made to fit a pool."""

    length_s: float
    instance_per_s: float
    """Requests a second that one instance serves well."""
    prompt_tokens: int
    output_tokens: int
    """Means; drawn from half to one and a half of it, evenly."""


def arrivals_of(trace: Trace, sizes: Sizes, seed: int) -> list[Arrival]:
    """Draws a trace's requests: a Poisson process whose rate follows it (thinning)."""
    random = Random(f"{seed}/{trace.name}")
    highest = max(trace.rate(n / 1000) for n in range(1000)) * sizes.instance_per_s
    found: list[Arrival] = []
    at_s = 0.0
    while (at_s := at_s + random.expovariate(highest)) < sizes.length_s:
        if random.random() * highest < trace.rate(at_s / sizes.length_s) * sizes.instance_per_s:
            prompt, output = (
                max(2, round(mean * random.uniform(0.5, 1.5)))
                for mean in (sizes.prompt_tokens, sizes.output_tokens)
            )
            found.append(Arrival(len(found), at_s, prompt, output))
    return found
