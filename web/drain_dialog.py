"""What the dialogs of an instance or a node say before anybody presses: effect, facts, way back.

Words only: what may be done is the services' to decide, how things are the selectors'.
"""

from dataclasses import dataclass, field
from typing import Final

from controlplane.fleet.captions import short_time
from controlplane.fleet.drain_plan import DrainPlan
from controlplane.fleet.drain_words import plural
from controlplane.fleet.models import Wish
from controlplane.fleet.picture import Band
from controlplane.fleet.wish_rows import wanted_word
from controlplane.fleet.wish_terms import last_words
from web.move_units import steps

OLD_AFTER_S: Final = 2.0
"""Facts older than this are told as such."""
INSTANCE_ACTIONS: Final = ("cordon", "drain", "stop", "restart", "replace", "release")
NODE_ACTIONS: Final = ("cordon", "drain", "stop", "release")
WITH_DEADLINE: Final = ("drain", "stop", "restart", "replace")
"""Actions that let everything leave, so that something may be left at a deadline."""
LEFTOVERS: Final = (
    ("wait", "Keep waiting", "they go on where they are"),
    ("replay", "Replay it on other instances", "from its log, where that is right"),
    ("end", "End it with an error to its reader", ""),
)


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of the box. `tone`: plain or warn."""

    name: str
    words: str
    tone: str = "plain"


@dataclass(frozen=True, slots=True)
class Dialog:
    """One action's dialog."""

    action: str
    name: str
    question: str
    what: str
    verb: str
    undo: str
    facts: list[Fact] = field(default_factory=list)
    has_deadline: bool = False
    last_of: list[str] = field(default_factory=list)
    """Pools that would have no instance left that serves."""

    @property
    def is_grave(self) -> bool:
        """It is confirmed by the name, and its button is red."""
        return bool(self.last_of)


def release_verb(row: Wish | None) -> str:
    """Returns what a release is called, by what was wanted."""
    if row is None:
        return "Release"
    return {
        "cordoned": "Uncordon", "drained": "Undrain", "stopped": "Start",
        "restarted": "Cancel the restart of",
    }.get(wanted_word(row), "Release")  # fmt: skip


def dialog_of(
    action: str,
    name: str,
    plan: DrainPlan,
    row: Wish | None,
    last_of: list[str],
    *,
    band: Band,
    instances: int | None = None,
) -> Dialog:
    """Describes an action. `band`: of the pool's scaling; `instances`: of the node, None for an
    instance."""
    verb = {
        "cordon": "Cordon", "drain": "Drain", "stop": "Stop", "restart": "Restart",
        "replace": "Replace", "release": release_verb(row),
    }[action]  # fmt: skip
    thing = name if instances is None else f"node {name}"
    what = _what(action, name, plan, row, instances)
    if last_of and action != "release":
        # What it does when it is not the last one would not be true.
        what = last_words(last_of, instances or 1)
    return Dialog(
        action=action,
        name=name,
        question=f"{verb} {thing}?",
        what=what,
        verb=f"{verb} {thing}",
        undo=_undo(action),
        facts=[*_wish_facts(row), *(_facts(action, plan, band) if action != "release" else [])],
        has_deadline=action in WITH_DEADLINE,
        last_of=last_of if action != "release" else [],
    )


def _what(action: str, name: str, plan: DrainPlan, row: Wish | None, instances: int | None) -> str:
    it = "It" if instances is None else f"Its {plural(instances, 'instance')}"
    has = _has(plan)
    if action == "release":
        return _release_what(name, row, instances)
    if action == "cordon":
        stays = f" The {has} it has go on there." if has else " Nothing runs there now."
        return f"{it} take{'s' if instances is None else ''} no new requests.{stays}"
    leave = "Nothing runs or waits there now, and nothing new is sent to it."
    if has:
        wait = f"about {plan.wait_ms:.0f} ms" if plan.wait_ms is not None else "a moment"
        leave = (
            f"Its {has} move to other instances. Nothing new is sent to it. Streams go on; each "
            f"reader waits {wait} once."
        )
    after = {
        "drain": "",
        "stop": " Once it is verified empty, its engine is ended, and stays so until you start it.",
        "restart": " Once it is verified empty, its engine is ended and a new one starts.",
        "replace": " Once it is verified empty, its engine is ended and a new one starts.",
    }[action]
    later = "" if instances is None else " Instances that are placed here later are drained too."
    return leave + after + later


def _has(plan: DrainPlan) -> str:
    """Returns "38 running and 9 waiting requests"; empty when there is nothing."""
    if plan.running is None or plan.waiting is None:
        return "requests"
    parts = [f"{plan.running:,} running"] if plan.running else []
    parts += [f"{plan.waiting:,} waiting"] if plan.waiting else []
    many = plan.running + plan.waiting != 1
    return f"{' and '.join(parts)} request{'s' if many else ''}" if parts else ""


def _release_what(name: str, row: Wish | None, instances: int | None) -> str:
    if row is None:
        return f"Nothing is wanted of {name}: there is nothing to release."
    if instances is not None:
        return (
            "Its instances take requests again, but for those of which something is wanted by "
            "themselves. Nothing moves back by itself."
        )
    return {
        "stopped": "A new engine starts, and takes requests when it is ready.",
        "restarted": "The engine that it has goes on. Nothing moves back by itself.",
    }.get(wanted_word(row), "It takes requests again. Nothing moves back by itself.")


def _undo(action: str) -> str:
    return {
        "cordon": "Undo: uncordon it.",
        "drain": "Can be undone at any time.",
        "stop": "Can be undone at any time before the stop; after it, start it again.",
        "restart": "Can be undone until its engine is ended.",
        "replace": "Can be undone until its engine is ended.",
        "release": "Undo: want it again.",
    }[action]


def _wish_facts(row: Wish | None) -> list[Fact]:
    if row is None:
        return []
    why = f': "{row.reason}"' if row.reason else ""
    at = f"{row.since:%Y-%m-%d %H:%M} UTC"
    return [Fact("Wanted now", f"{wanted_word(row)}, by {row.by} since {at}{why}", "warn")]


def _facts(action: str, plan: DrainPlan, band: Band) -> list[Fact]:
    facts: list[Fact] = []
    if action != "cordon":
        facts += [
            Fact("Will move live", _live(plan)),
            Fact("Will move in the queue", _queued(plan)),
            _room(plan, band),
            Fact("Estimate", _estimate(action, plan)),
        ]
    else:
        facts.append(Fact("Others that serve", f"{plan.others:,}"))
    age_s = plan.report_age_s
    is_old = age_s is None or age_s > OLD_AFTER_S
    said = "none: nobody knows what runs there" if age_s is None else f"{max(0.0, age_s):.1f} s old"
    return [*facts, Fact("Report", said, "warn" if is_old else "plain")]


def _live(plan: DrainPlan) -> str:
    if plan.running is None:
        return "not known"
    tokens = f", {plan.kv_tokens:,} tokens of KV cache" if plan.kv_tokens else ""
    return f"{plural(plan.running, 'request')}{tokens}"


def _queued(plan: DrainPlan) -> str:
    if plan.waiting is None:
        return "not known"
    return f"{plural(plan.waiting, 'request')}{', nothing to copy' if plan.waiting else ''}"


def _room(plan: DrainPlan, band: Band) -> Fact:
    if not plan.others:
        return Fact("Room elsewhere", "none: no other instance serves", "warn")
    others = f"the {plan.others} others that serve" if plan.others > 1 else "the other that serves"
    goes = "go" if plan.others > 1 else "goes"
    before = "idle" if plan.freeness_now_steps is None else steps(plan.freeness_now_steps)
    after = "idle" if plan.freeness_after_steps is None else steps(plan.freeness_after_steps)
    low, high = band
    known = f"(band {low:g} to {high:g})"
    is_low = plan.freeness_after_steps is not None and plan.freeness_after_steps < low
    if not plan.has_room:
        needed = "an unknown number of" if plan.kv_tokens is None else f"{plan.kv_tokens:,}"
        said = f"{plan.room_tokens:,} free tokens, {needed} needed: some wait until others end"
        return Fact("Room elsewhere", said, "warn")
    said = f"yes: {others} {goes} from freeness {before} to about {after} {known}"
    return Fact("Room elsewhere", said, "warn" if is_low else "plain")


def _estimate(action: str, plan: DrainPlan) -> str:
    if plan.running == 0:
        said = "at once"
    elif not plan.has_room:
        said = "not known: it takes until others have ended"
    elif plan.estimate_s is None:
        said = "not known: no move has ended here lately"
    else:
        said = f"about {short_time(plan.estimate_s)}, {plan.at_once} moves at a time"
    return f"{said}, and a start" if action in ("restart", "replace") else said
