"""The panel of an instance that leaves, and what its page offers to do, in words. Pure."""

from dataclasses import dataclass
from typing import Final

from controlplane.fleet.captions import short_time
from controlplane.fleet.drain_words import deadline_words, plural, wanted_words
from controlplane.fleet.tiles import DASH, number
from controlplane.fleet.wish_selectors import InstanceDrain, LeftRequest
from engine_pool.policy.wishes import WantedState
from engine_pool.types import InstanceState
from web.drain_dialog import release_verb

LEFT_IN_PANEL: Final = 12
"""Requests that the panel lists; the page's table below has all."""
_LEAVE: Final = ("Draining", "Verified empty")
_STEPS: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "drained": (_LEAVE, ("draining", "drained")),
    "stopped": (
        (*_LEAVE, "Stopping", "Stopped"), ("draining", "drained", "stopping", "stopped"),
    ),
    "renewed": (
        (*_LEAVE, "Stopping", "Starting", "Serving"),
        ("draining", "drained", "stopping", "starting", "serving"),
    ),
}  # fmt: skip
"""Words of the steps, and the state in which each is under way."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step on the way. `at`: done, now or ahead."""

    word: str
    at: str


@dataclass(frozen=True, slots=True)
class Panel:
    """How far an instance is that leaves."""

    title: str
    wanted: str
    is_safe: bool
    verified_unix_s: float | None
    why_not_safe: str
    obstacle: str
    steps: tuple[Step, ...]
    facts: tuple[tuple[str, str], ...]
    last_move_unix_s: float | None
    left: tuple[LeftRequest, ...]
    left_out: int


@dataclass(frozen=True, slots=True)
class Action:
    """One button of the page."""

    action: str
    label: str


def panel_of(drain: InstanceDrain, now_unix_s: float) -> Panel | None:
    """Describes a drain; None for an instance that nothing leaves."""
    if not drain.is_leaving:
        return None
    kind = drain.wish.wanted.value if not _renews(drain) else "renewed"
    left = drain.left if drain.state == InstanceState.DRAINING.value else ()
    return Panel(
        title={"drained": "Drain", "stopped": "Stop", "renewed": "Restart"}[kind],
        wanted=wanted_words(drain),
        is_safe=drain.is_safe,
        verified_unix_s=drain.verified_unix_s,
        why_not_safe="" if kind == "renewed" else drain.why_not_safe,
        obstacle=drain.progress.obstacle if drain.progress and drain.left_total else "",
        steps=_steps(kind, drain.state, is_safe=drain.is_safe),
        facts=_facts(drain, now_unix_s),
        last_move_unix_s=drain.last_move_unix_s,
        left=left[:LEFT_IN_PANEL],
        left_out=max(0, (drain.left_total or 0) - LEFT_IN_PANEL) if left else 0,
    )


def actions_of(drain: InstanceDrain) -> list[Action]:
    """Returns what can be wanted of an instance now, the most usual first."""
    own, wanted = drain.own, drain.wish.wanted
    held = drain.of_node is not None and own is None
    found = []
    if own is not None:
        found.append(
            Action("release", release_verb(own).replace(" the restart of", " the restart"))
        )
    if wanted is WantedState.SERVING:
        found.append(Action("cordon", "Cordon"))
    if wanted in (WantedState.SERVING, WantedState.CORDONED) or held:
        found.append(Action("drain", "Drain"))
    if wanted in (WantedState.SERVING, WantedState.CORDONED) and not drain.is_renewing:
        found.append(Action("restart", "Restart"))
    if wanted is not WantedState.STOPPED:
        found.append(Action("stop", "Stop"))
    return found


def notes_of(drain: InstanceDrain) -> list[str]:
    """Returns what else is worth knowing about what is wanted of it."""
    found = []
    if not drain.is_leaving and (said := wanted_words(drain)):
        found.append(said)
    if drain.is_outdated:
        found.append("Its engine runs with other settings than the pool has now.")
    return found


def _renews(drain: InstanceDrain) -> bool:
    return drain.is_renewing and drain.wish.wanted in (WantedState.SERVING, WantedState.CORDONED)


def _steps(kind: str, state: str, *, is_safe: bool) -> tuple[Step, ...]:
    words, states = _STEPS[kind]
    # An instance that has not begun, or is lost, is at none of them.
    here = states.index(state) if state in states else -1
    if kind == "renewed" and state == InstanceState.SERVING.value:
        # It serves with the old engine still: nothing has begun.
        here = -1
    last = len(states) - 1

    def at(i: int) -> str:
        # "Verified empty" is done when the page says that it is safe, not a moment before.
        is_reached = is_safe if state == InstanceState.DRAINED.value else i == last
        if i < here or (i == here and is_reached):
            return "done"
        return "now" if i == here else "ahead"

    return tuple(Step(word, at(i)) for i, word in enumerate(words))


def _facts(drain: InstanceDrain, now_unix_s: float) -> tuple[tuple[str, str], ...]:
    progress = drain.progress
    if progress is None:
        return (("Left", number(drain.left_total)), ("Deadline", deadline_words(drain, now_unix_s)))
    left = drain.left_total if drain.left_total is not None else progress.left
    lasts = progress.verified_unix_s or now_unix_s
    rate = f"{drain.rate_per_s:.2g} /s" if drain.rate_per_s is not None else DASH
    estimate = "about " + short_time(progress.estimate_s) if progress.estimate_s else DASH
    return (
        ("Left", f"{left:,} of {progress.requests_at_start:,}"),
        ("Moving", f"{progress.moving:,}"),
        ("Moved", f"{progress.moved:,}"),
        ("Ended here", f"{progress.ended:,}"),
        ("Took so far" if not progress.verified_unix_s else "Took",
         short_time(max(0.0, lasts - progress.begun_unix_s))),
        ("Rate", rate),
        ("Estimate", DASH if not left else estimate),
        ("Deadline", deadline_words(drain, now_unix_s)),
    )  # fmt: skip


def node_sentence(instances: int, safe: int, left: int | None) -> str:
    """Says how a node is."""
    if not instances:
        return "No instance is here."
    said = f"{plural(instances, 'instance')}"
    if safe:
        said += f", {safe} safe to stop"
    return said + (f", {plural(left, 'request')}." if left is not None else ".")
