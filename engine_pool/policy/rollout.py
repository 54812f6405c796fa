"""Which instance of a pool gets new engine settings next, so that no stream is cut meanwhile.

One after the other, and only while all others serve: the one that is replaced is drained, ended and
started anew with the settings of now. Where nobody else serves, an extra instance comes first and
takes its requests. Settings with which an engine cannot start stop the rollout at the first
instance. Instances of which somebody wants something else are left alone: they get the settings
when they start next.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine_pool.types import CRASH_LOOP_FAILURES, InstanceName, InstanceState


@dataclass(frozen=True, slots=True)
class Member:
    """One instance as a rollout sees it."""

    instance: InstanceName
    state: InstanceState
    is_outdated: bool
    """It runs with other engine settings than the pool has now."""
    is_free: bool = True
    """It shall serve: nobody wants anything else of it."""
    is_extra: bool = False
    """It is there for the rollout only."""
    is_being_replaced: bool = False
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Rollout:
    """What to do now."""

    replace: InstanceName | None = None
    """Goes on until it is up to date; None: nobody now."""
    needs_extra: bool = False
    why: str = ""
    """What it waits for, or why it stands still; empty when there is nothing to say."""
    is_paused: bool = False
    """The new settings do not work: somebody has to look."""


def next_rollout(members: Sequence[Member]) -> Rollout:
    """Returns what a rollout does now; the same for every order of `members`."""
    free = sorted((m for m in members if m.is_free), key=lambda m: m.instance)
    outdated = [m for m in free if m.is_outdated and not m.is_extra]
    if not outdated:
        return Rollout()
    regular = [m for m in free if not m.is_extra]
    needs_extra = len(regular) == 1
    broken = next(
        (m for m in free if not m.is_outdated and m.failures >= CRASH_LOOP_FAILURES), None
    )
    if broken is not None:
        why = f"{broken.instance} does not start with the new settings ({broken.failures} failures)"
        return Rollout(None, needs_extra, why, is_paused=True)
    begun = next((m for m in outdated if m.is_being_replaced), None)
    if begun is not None:
        return Rollout(begun.instance, needs_extra, f"{begun.instance} is replaced")
    candidate = outdated[0]
    others = [m for m in free if m is not candidate]
    waits = [m for m in others if m.state is not InstanceState.SERVING]
    if waits:
        words = ", ".join(f"{m.instance} is {m.state.value}" for m in waits)
        return Rollout(None, needs_extra, f"waits: {words}")
    if not others:
        return Rollout(None, needs_extra, "waits for an extra instance, since only one serves")
    return Rollout(candidate.instance, needs_extra, f"{candidate.instance} is next")
