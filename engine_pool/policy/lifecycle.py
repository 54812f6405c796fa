"""An instance's states and what moves it between them. One table; an illegal move is a bug and
raises.

Decides no drain and no restart; says only what follows from what happened, and how long a restart
waits. The split of state and trigger follows Ray Serve.
"""

from enum import StrEnum
from typing import Final

from engine_pool.types import InstanceState as S


class Trigger(StrEnum):
    """What happened to an instance, or was asked of it."""

    START = "start"
    READY = "ready"
    FAILED = "failed"
    """It died, could not start, does not answer or makes no progress."""
    CORDON = "cordon"
    UNCORDON = "uncordon"
    """It serves again, whatever it did."""
    DRAIN = "drain"
    EMPTY = "empty"
    """Proven empty while draining."""
    STOP = "stop"
    EXITED = "exited"
    """Its process is gone, as it was told."""


class IllegalTransition(Exception):
    """A trigger that cannot happen in this state: a bug in whoever drives the instance."""

    def __init__(self, state: S, trigger: Trigger) -> None:
        super().__init__(f"{trigger.value} cannot happen to an instance that is {state.value}")


TRANSITIONS: Final[dict[S, dict[Trigger, S]]] = {
    S.STARTING: {Trigger.READY: S.SERVING, Trigger.FAILED: S.LOST, Trigger.STOP: S.STOPPING},
    S.SERVING: {
        Trigger.CORDON: S.CORDONED,
        Trigger.DRAIN: S.DRAINING,
        Trigger.FAILED: S.LOST,
        Trigger.STOP: S.STOPPING,
    },
    S.CORDONED: {
        Trigger.UNCORDON: S.SERVING,
        Trigger.DRAIN: S.DRAINING,
        Trigger.FAILED: S.LOST,
        Trigger.STOP: S.STOPPING,
    },
    S.DRAINING: {
        Trigger.EMPTY: S.DRAINED,
        Trigger.CORDON: S.CORDONED,
        Trigger.UNCORDON: S.SERVING,
        Trigger.FAILED: S.LOST,
        Trigger.STOP: S.STOPPING,
    },
    S.DRAINED: {
        # Something came to it all the same.
        Trigger.DRAIN: S.DRAINING,
        Trigger.CORDON: S.CORDONED,
        Trigger.UNCORDON: S.SERVING,
        Trigger.FAILED: S.LOST,
        Trigger.STOP: S.STOPPING,
    },
    # An instance that dies while it stops has stopped.
    S.STOPPING: {Trigger.EXITED: S.STOPPED, Trigger.FAILED: S.STOPPED},
    S.STOPPED: {Trigger.START: S.STARTING},
    S.LOST: {Trigger.START: S.STARTING, Trigger.STOP: S.STOPPED},
}


def next_state(state: S, trigger: Trigger) -> S:
    """Looks the transition up. Raises: IllegalTransition."""
    try:
        return TRANSITIONS[state][trigger]
    except KeyError:
        raise IllegalTransition(state, trigger) from None


STABLE_AFTER_S = 60.0
"""Serving this long ends a series of failures: the next one is a first one again."""


def failures_in_a_row(before: int, served_s: float) -> int:
    """Counts a failure in, after `served_s` seconds of serving (0: it never came up)."""
    return 1 if served_s >= STABLE_AFTER_S else before + 1


def restart_delay_s(failures: int, first_s: float, longest_s: float) -> float:
    """Returns the wait before the restart after the n-th failure in a row, n from 1: doubles
    each time."""
    assert failures >= 1, "there is no restart without a failure"
    # Beyond 2^30 the doubling only overflows; the longest wait is reached long before.
    return min(longest_s, first_s * 2.0 ** min(failures - 1, 30))
