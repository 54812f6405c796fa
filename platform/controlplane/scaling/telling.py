"""Which checks become rows: changes, refusals and holds when they are new, and a heartbeat."""

import math
from dataclasses import dataclass, replace
from typing import Final

from controlplane.fleet.models import Pool
from controlplane.scaling.memory import Memory
from controlplane.scaling.models import DecisionKind, ScalingDecision, ScalingState
from engine_pool.policy.scaling_facts import Picture
from engine_pool.policy.scaling_facts import ScalingDecision as Decision
from engine_pool.policy.settings import ScalingRule

HEARTBEAT_S: Final = 60.0
"""After so long without a row there is one that says that nothing was to be done."""
FORGET_SAID_S: Final = 60.0
"""What was told and has not been so for this long is told again when it comes back: a pool at the
edge of its band would write a row at every other check."""


@dataclass(frozen=True, slots=True)
class Telling:
    """A check that has been decided."""

    decision: Decision
    picture: Picture
    rule: ScalingRule
    instance: str
    is_acting: bool


def what_to_tell(
    telling: Telling, memory: Memory, now_s: float
) -> tuple[DecisionKind | None, Memory]:
    """Returns which row the check is worth, None for none, and what is remembered of it."""
    kind = kind_of(telling.decision)
    is_done = telling.decision.is_change and telling.is_acting
    if kind is not DecisionKind.HEARTBEAT:
        said = _subject(kind, telling)
        is_new = said != memory.said or is_done
        # A change is done once; the same one again is another.
        memory = replace(memory, said="" if is_done else said, said_s=now_s)
        if is_new:
            return kind, replace(memory, told_s=now_s)
    elif memory.said and now_s - memory.said_s > FORGET_SAID_S:
        memory = replace(memory, said="")
    # One that lies in the future was told by a clock that has been set back.
    if not 0 <= now_s - memory.told_s < HEARTBEAT_S:
        return DecisionKind.HEARTBEAT, replace(memory, told_s=now_s)
    return None, memory


def kind_of(decision: Decision) -> DecisionKind:
    if decision.undrain is not None:
        return DecisionKind.UNDRAIN
    if decision.is_growth:
        return DecisionKind.GROW
    if decision.drain is not None:
        return DecisionKind.SHRINK
    if decision.is_hold:
        return DecisionKind.HOLD
    return DecisionKind.REFUSED if decision.barrier else DecisionKind.HEARTBEAT


def row_of(telling: Telling, kind: DecisionKind, pool: Pool, kept: ScalingState) -> ScalingDecision:
    """Returns the row of a check, not saved yet."""
    decision, picture, rule = telling.decision, telling.picture, telling.rule
    is_told = kind is not DecisionKind.HEARTBEAT
    before = picture.count
    change = decision.add + (decision.undrain is not None) + (decision.wake is not None)
    change -= decision.drain is not None
    average = decision.average_steps
    attained = picture.attainment
    assert kept.checked_at is not None, "set by this check"
    return ScalingDecision(
        pool=pool.name,
        at=kept.checked_at,
        tick=kept.tick,
        fence=kept.fence,
        mode=pool.scaling_mode,
        kind=kind,
        signal=decision.signal.value,
        instance=telling.instance if is_told else "",
        add=decision.add if is_told else 0,
        instances_before=before,
        instances_after=before + change if is_told else before,
        serving=len(picture.serving),
        starting=len(picture.starting_tokens),
        draining=len(picture.leaving),
        silent=picture.silent,
        average_steps=average if average is not None and math.isfinite(average) else None,
        is_idle=picture.is_idle,
        low_steps=rule.low_steps,
        high_steps=rule.high_steps,
        ttft_attainment=None if attained is None else attained.share,
        is_applied=telling.is_acting and decision.is_change and is_told,
        reason=decision.reason,
    )


def _subject(kind: DecisionKind, telling: Telling) -> str:
    decision = telling.decision
    words = (kind.value, decision.signal.value, decision.barrier.value, telling.instance)
    return " ".join(word for word in words if word)
