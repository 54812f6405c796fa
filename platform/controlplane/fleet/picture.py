"""What the pages show of each instance now: immutable rows, made from the live view. Pure.

States, captions and tones are decided here once, for the first paint, the socket and the API alike;
the browser only draws. A value that nobody reported is None and is shown as a dash, never as 0.
Virtual usage and freeness are the policy's own, the same numbers that dispatch compares.
"""

import math
import re
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

from controlplane.fleet.captions import Tone, caption_of, caption_without_load
from engine_pool.policy.freeness import Breakdown, breakdown
from engine_pool.policy.settings import HeadroomRule
from engine_pool.types import (
    FleetEvent,
    InstanceLoad,
    InstanceState,
    InstanceStatus,
    PriorityClass,
)

CLASSES: Final = (PriorityClass.HIGH, PriorityClass.NORMAL, PriorityClass.LOW)

STALE_AFTER_S: Final = 5.0
"""A report older than this is not trusted: fifty times the report interval."""
NO_PROGRESS_AFTER_S: Final = 15.0
"""Running requests and no step for so long is a fault; a prefill's longest step stays far below."""
SHORT_BELOW_STEPS: Final = 48
"""Paper.md: 3 blocks of 16 tokens, under which an instance is short of room."""
Band = tuple[float, float]
"""Average freeness in which a pool has the right size."""
BAND_STEPS: Final[Band] = (160, 960)
"""Paper.md: 10 and 60 blocks of 16 tokens; where a pool has none of its own."""
SPARE_ABOVE_STEPS: Final = 3200
"""Where the grid's strongest colour begins: over three times the band's end."""
LEAST_FREE_SHOWN: Final = 6

NO_PROGRESS: Final = "no_progress"
CRASH_LOOP: Final = "crash_loop"
FAILING: Final = (InstanceState.LOST.value, NO_PROGRESS, CRASH_LOOP)
"""States of an instance that should work and does not."""
NOT_REPORTING: Final = (InstanceState.STARTING, InstanceState.STOPPED)
Freeness = float | Literal["idle", "draining"] | None


class InstanceRow(NamedTuple):
    """One instance as a row. The fields' order is the socket's (web/messages.py)."""

    node: str
    state: str
    """An InstanceState, `no_progress` or `crash_loop`."""
    cause: str
    since_unix_s: float
    at_unix_s: float | None
    """Time of its last report; None: it never reported."""
    capacity_tokens: int | None
    used_tokens: int | None
    virtual_tokens: int | None
    """None also for a draining instance, whose virtual usage is infinite."""
    bar: tuple[int, ...]
    """Per mille of the capacity: running high, normal, low; headroom of each; queued."""
    freeness: Freeness
    """Decode steps the batch can still take; `idle` without a batch, `draining` is -infinity."""
    running: int | None
    waiting: int | None
    step_ms: float | None
    preemptions_per_min: int | None
    caption: str
    tone: Tone
    restarts: int
    moves_in: int = 0
    """Requests that came here in the last five minutes, and (next field) that left."""
    moves_out: int = 0
    wanted: str = "serving"
    """What it shall do (policy.wishes.WantedState), its node's wish included."""
    wanted_by: str = ""


class GridCell(NamedTuple):
    """One instance as a cell, for pools too large for rows."""

    node: str
    state: str
    level: str
    """short, low, band, high, spare, or none when there is no number to trust."""


class EventRow(NamedTuple):
    at_unix_s: float
    kind: str
    headline: str
    detail: str
    instance: str
    severity: str
    link: str = ""
    """Where more of it stands; empty when nowhere."""


class Progress(NamedTuple):
    """What the past says about an instance; `history.py` keeps it."""

    last_step_unix_s: float
    """When a step was last seen, or when there was last nothing to run."""
    preemptions_per_min: int


def instance_row(
    status: InstanceStatus,
    load: InstanceLoad | None,
    progress: Progress | None,
    now_unix_s: float,
    headroom: HeadroomRule | None = None,
) -> InstanceRow:
    """Describes one instance. A report of an earlier incarnation does not count. `headroom`: the
    pool's; None: the default."""
    if load is not None and load.incarnation != status.incarnation:
        load = None
    if load is None or status.state in NOT_REPORTING:
        caption, tone = caption_without_load(status)
        at_unix_s = None if load is None else round(load.at_unix_s, 2)
        return InstanceRow(
            node=status.node, state=shown_state(status), cause=status.cause,
            since_unix_s=round(status.since_unix_s, 2), at_unix_s=at_unix_s,
            capacity_tokens=None, used_tokens=None, virtual_tokens=None, bar=(),
            freeness=None, running=None, waiting=None, step_ms=None,
            preemptions_per_min=None, caption=caption, tone=tone, restarts=status.restarts,
            wanted=status.wanted, wanted_by=status.wanted_by,
        )  # fmt: skip
    usage = breakdown(load, status.state, headroom)
    stuck_s = _stuck_s(status, load, progress, now_unix_s)
    preempted = progress.preemptions_per_min if progress else None
    caption, tone = caption_of(status, load, usage, stuck_s, preempted)
    return InstanceRow(
        node=status.node,
        state=NO_PROGRESS if stuck_s else shown_state(status),
        cause=status.cause,
        since_unix_s=round(status.since_unix_s, 2),
        at_unix_s=round(load.at_unix_s, 2),
        capacity_tokens=load.capacity_tokens,
        used_tokens=load.used_tokens,
        virtual_tokens=_finite(usage.virtual_tokens),
        bar=_bar(usage),
        freeness=_shown_freeness(usage),
        running=len(load.running),
        waiting=len(load.waiting),
        step_ms=None if load.step_ms is None else _rounded(load.step_ms),
        preemptions_per_min=preempted,
        caption=caption,
        tone=tone,
        restarts=status.restarts,
        wanted=status.wanted,
        wanted_by=status.wanted_by,
    )


def shown_state(status: InstanceStatus) -> str:
    """Returns the state as pages and API name it: one that dies again and again has its own."""
    is_down = status.state in (InstanceState.LOST, InstanceState.STARTING)
    return CRASH_LOOP if is_down and status.is_crash_looping else status.state.value


def grid_cell(row: InstanceRow, now_unix_s: float, band: Band = BAND_STEPS) -> GridCell:
    """Reduces a row to what a cell can show. `band`: of the pool's scaling."""
    return GridCell(row.node, row.state, freeness_level(row, now_unix_s, band))


def is_stale(row: InstanceRow, now_unix_s: float) -> bool:
    """Says whether the row's numbers are too old to be trusted. Without numbers: no."""
    return row.at_unix_s is not None and now_unix_s - row.at_unix_s > STALE_AFTER_S


def freeness_level(row: InstanceRow, now_unix_s: float, band: Band = BAND_STEPS) -> str:
    """Puts the freeness into one of five steps, `none` when it is absent or stale."""
    value = row.freeness
    if value is None or value == "draining" or is_stale(row, now_unix_s):
        return "none"
    if value == "idle" or value > max(SPARE_ABOVE_STEPS, band[1]):
        return "spare"
    if value < min(SHORT_BELOW_STEPS, band[0]):
        return "short"
    if value < band[0]:
        return "low"
    return "band" if value <= band[1] else "high"


def least_free(rows: dict[str, InstanceRow]) -> dict[str, InstanceRow]:
    """Returns the rows with the smallest finite freeness, least free first."""
    numbers = {n: r.freeness for n, r in rows.items() if isinstance(r.freeness, float)}
    names = sorted(numbers, key=lambda name: numbers[name])[:LEAST_FREE_SHOWN]
    return {name: rows[name] for name in names}


def leaving_note(rows: Iterable[InstanceRow]) -> str:
    """Returns what the strip says of drains that go on; empty without one."""
    going = [row for row in rows if row.state == InstanceState.DRAINING.value]
    if not going:
        return ""
    left = sum((row.running or 0) + (row.waiting or 0) for row in going)
    drains = "1 drain goes on" if len(going) == 1 else f"{len(going)} drains go on"
    return f"{drains}, {left} request{'' if left == 1 else 's'} left."


def event_rows(events: Iterable[FleetEvent]) -> dict[str, EventRow]:
    """Returns events by a key that is the same at every look, in the order given."""
    rows = (
        EventRow(
            round(e.at_unix_s, 3), e.kind, e.headline, e.detail, e.instance, e.severity, e.link
        )
        for e in events
    )
    return {event_key(row): row for row in rows}


def event_key(row: EventRow) -> str:
    """Names an event; the same in the store's list and in the database's."""
    return f"{row.at_unix_s:.3f}/{row.kind}/{row.instance}"


def in_order(rows: dict[str, InstanceRow]) -> dict[str, InstanceRow]:
    """Sorts by node, then name; digits count as numbers, so that i-2 stands before i-10."""
    return dict(sorted(rows.items(), key=lambda item: (natural(item[1].node), natural(item[0]))))


def natural(name: str) -> list[tuple[bool, int, str]]:
    """Returns a key by which digits count as numbers."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part)
            for part in re.split(r"(\d+)", name) if part]  # fmt: skip


def _finite(tokens: float) -> int | None:
    return round(tokens) if math.isfinite(tokens) else None


def _shown_freeness(usage: Breakdown) -> Freeness:
    if usage.freeness_or_none is not None:
        return _rounded(usage.freeness_or_none)
    return "idle" if usage.freeness_steps > 0 else "draining"


def _rounded(value: float) -> float:
    """Keeps what a page shows: one decimal under 100, none above."""
    return round(value, 1) if abs(value) < 100 else float(round(value))


def _bar(usage: Breakdown) -> tuple[int, ...]:
    tokens = (
        *(usage.used_by_class.get(c, 0) for c in CLASSES),
        *(usage.headroom_by_class.get(c, 0) for c in CLASSES),
        usage.queued_tokens,
    )
    scale = 1000 / usage.capacity_tokens if usage.capacity_tokens > 0 else 0.0
    return tuple(round(scale * part) for part in tokens)


def _stuck_s(
    status: InstanceStatus, load: InstanceLoad, progress: Progress | None, now_unix_s: float
) -> float:
    """Returns for how long running requests got no step, in seconds; 0 while all is well."""
    works = status.state in (InstanceState.SERVING, InstanceState.CORDONED, InstanceState.DRAINING)
    if not works or not load.running or progress is None:
        return 0.0
    # By the report's own time: who does not report is silent, and may step well.
    stuck_s = min(now_unix_s, load.at_unix_s) - progress.last_step_unix_s
    return stuck_s if stuck_s > NO_PROGRESS_AFTER_S else 0.0
