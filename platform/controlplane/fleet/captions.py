"""The one line under an instance's bar: what matters most about it, in words. Pure."""

import math
from typing import Final, Literal

from engine_pool.policy.freeness import Breakdown
from engine_pool.policy.wishes import WantedState
from engine_pool.types import InstanceLoad, InstanceState, InstanceStatus

Tone = Literal["plain", "info", "plan", "warn", "bad"]
SAFE: Final = "safe to stop"
ID_MAX_CHARS: Final = 18
"""Of a request's id within a sentence; the whole one stands where the sentence leads."""
LEAVING: Final = frozenset({"cordoned", "draining", "drained", "stopping", "stopped"})


def short_id(request_id: str) -> str:
    """Leaves out the middle of a long id."""
    if len(request_id) <= ID_MAX_CHARS:
        return request_id
    head = ID_MAX_CHARS // 2 + 3
    return f"{request_id[:head]}…{request_id[-(ID_MAX_CHARS - head - 1) :]}"


def caption_without_load(status: InstanceStatus) -> tuple[str, Tone]:
    """Says what an instance does that has no numbers now."""
    cause = status.cause or status.state.value
    if status.is_crash_looping and status.state is not InstanceState.SERVING:
        # The badge says the rest of it; the end is what is cut where there is little room.
        cause = cause.removeprefix("crash loop: ")
        told = "failures in a row" in cause
        return cause if told else f"{status.failures} failures in a row · {cause}", "bad"
    match status.state:
        case InstanceState.STARTING:
            return cause, "info"
        case InstanceState.LOST:
            return cause, "bad"
        case InstanceState.SERVING:
            return "no report yet", "plain"
        case _:
            return _with_who(cause, status), "plan"


def caption_of(
    status: InstanceStatus,
    load: InstanceLoad,
    usage: Breakdown,
    stuck_s: float,
    preempted: int | None,
) -> tuple[str, Tone]:
    """Says what matters most about an instance that has reported; the first match wins."""
    if status.state is InstanceState.LOST:
        return caption_without_load(status)[0], "bad"
    if stuck_s:
        return f"no step for {stuck_s:.0f} s, {len(load.running)} running", "bad"
    if status.state is InstanceState.DRAINING:
        return _draining(status, len(load.running) + len(load.waiting))
    if status.state is InstanceState.DRAINED:
        return _drained(status)
    if status.state is InstanceState.CORDONED and status.wanted_by:
        return f"takes no new requests{wanted_by(status)}", "plan"
    if status.state.value in LEAVING:
        return _with_who(status.cause or status.state.value, status), "plan"
    if load.capacity_tokens <= 0:
        return "reports no KV cache", "bad"
    used = f"{_percent(load.used_tokens, load.capacity_tokens)} used"
    if math.isfinite(usage.virtual_tokens):
        used += f", {_percent(usage.virtual_tokens, load.capacity_tokens)} virtual"
    if preempted:
        # First, since the end is what is cut where there is little room.
        return f"{preempted} preempted /min · {used}", "warn"
    return f"{used} · {short_of(load.used_tokens, load.capacity_tokens)}", "plain"


def wanted_by(status: InstanceStatus) -> str:
    """Says whose wish it is, as the end of a caption; empty when nobody's."""
    return f" · wanted by {status.wanted_by}" if status.wanted_by else ""


def _with_who(cause: str, status: InstanceStatus) -> str:
    """Adds whose wish it is, unless the cause says it."""
    return cause if f"by {status.wanted_by}" in cause else cause + wanted_by(status)


def _draining(status: InstanceStatus, left: int) -> tuple[str, Tone]:
    progress = status.drain
    if progress is not None and progress.obstacle and left:
        return f"{left} left · cannot move: {progress.obstacle}", "warn"
    if progress is None:
        return f"{left} left", "plan"
    if not left:
        return "empty, being verified", "plan"
    lasts = f" · about {short_time(progress.estimate_s)}" if progress.estimate_s else ""
    return f"{left} left{lasts} · {_afterwards(status)}", "plan"


def _drained(status: InstanceStatus) -> tuple[str, Tone]:
    if status.drain is None or status.drain.verified_unix_s is None:
        return _with_who(status.cause or "drained", status), "plan"
    if status.wanted == WantedState.DRAINED:
        return f"{SAFE}{wanted_by(status)}", "plan"
    return f"verified empty, {_afterwards(status)}", "plan"


def _afterwards(status: InstanceStatus) -> str:
    """Says what comes when it is empty."""
    match status.wanted:
        case WantedState.DRAINED:
            return "then safe to stop"
        case WantedState.STOPPED:
            return "then it stops"
        case _:
            return "then it starts anew"


def short_time(seconds: float) -> str:
    """Returns "8 s", "3 min" or "2 h"; at least a second."""
    if seconds < 100:
        return f"{max(1.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"


def _percent(part: float, whole: int) -> str:
    return f"{100 * part / whole:.0f} %"


def short_of(part: int, whole: int) -> str:
    """Returns "10.6 of 13.6 k": both numbers in the unit of the larger one."""
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if whole >= size:
            digits = 1 if whole < 100 * size else 0
            return f"{part / size:.{digits}f} of {whole / size:.{digits}f} {unit}"
    return f"{part} of {whole}"
