"""The one line under an instance's bar: what matters most about it, in words. Pure."""

import math
from typing import Final, Literal

from engine_pool.policy.freeness import Breakdown
from engine_pool.types import InstanceLoad, InstanceState, InstanceStatus

Tone = Literal["plain", "info", "plan", "warn", "bad"]
LEAVING: Final = frozenset({"cordoned", "draining", "drained", "stopping", "stopped"})


def caption_without_load(status: InstanceStatus) -> tuple[str, Tone]:
    """Says what an instance does that has no numbers now."""
    cause = status.cause or status.state.value
    match status.state:
        case InstanceState.STARTING:
            return cause, "info"
        case InstanceState.LOST:
            return cause, "bad"
        case InstanceState.SERVING:
            return "no report yet", "plain"
        case _:
            return cause, "plan"


def caption_of(
    status: InstanceStatus,
    load: InstanceLoad,
    usage: Breakdown,
    stuck_s: float,
    preempted: int | None,
) -> tuple[str, Tone]:
    """Says what matters most about an instance that has reported; the first match wins."""
    if status.state is InstanceState.LOST:
        return status.cause or "lost", "bad"
    if stuck_s:
        return f"no step for {stuck_s:.0f} s, {len(load.running)} running", "bad"
    if status.state is InstanceState.DRAINING:
        left = len(load.running) + len(load.waiting)
        return f"{left} left", "plan"
    if status.state.value in LEAVING:
        return status.cause or status.state.value, "plan"
    if load.capacity_tokens <= 0:
        return "reports no KV cache", "bad"
    used = f"{_percent(load.used_tokens, load.capacity_tokens)} used"
    if math.isfinite(usage.virtual_tokens):
        used += f", {_percent(usage.virtual_tokens, load.capacity_tokens)} virtual"
    if preempted:
        return f"{used} · {preempted} preempted /min", "warn"
    return f"{used} · {short_of(load.used_tokens, load.capacity_tokens)}", "plain"


def _percent(part: float, whole: int) -> str:
    return f"{100 * part / whole:.0f} %"


def short_of(part: int, whole: int) -> str:
    """Returns "10.6 of 13.6 k": both numbers in the unit of the larger one."""
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if whole >= size:
            digits = 1 if whole < 100 * size else 0
            return f"{part / size:.{digits}f} of {whole / size:.{digits}f} {unit}"
    return f"{part} of {whole}"
