"""Whether an engine makes progress. Health is forward progress, whatever the process says.

An engine with running requests and no finished step for too long is unhealthy. Time is
monotonic seconds, always passed in.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """What is known of an engine's progress between two looks at it."""

    steps_total: int
    since_s: float
    """When it last did a step, or had nothing to do."""


def advance(before: Progress | None, *, steps_total: int, running: int, now_s: float) -> Progress:
    """Takes a new look in."""
    if before is None or steps_total != before.steps_total or running == 0:
        return Progress(steps_total, now_s)
    return before


def stalled_s(progress: Progress, now_s: float) -> float:
    """Returns for how long the engine has had work and done nothing."""
    return max(0.0, now_s - progress.since_s)
