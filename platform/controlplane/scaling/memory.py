"""The loop's memory between two checks, as a row keeps it.

What cannot be read is forgotten: the times begin anew, which delays a decision and makes none.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from engine_pool.policy.scaling_facts import ScalingState


@dataclass(frozen=True, slots=True)
class Memory:
    state: ScalingState = field(default_factory=ScalingState)
    said: str = ""
    """What the last row that was no heartbeat was about, so that it is not said again."""
    said_s: float = 0.0
    """When that was so last."""
    told_s: float = 0.0
    """When the last row of any kind was written."""


def memory_of(values: Any) -> Memory:
    """Reads a row's memory."""
    if not isinstance(values, Mapping):
        return Memory()
    times = {f.name: _number(values.get(f.name)) for f in fields(ScalingState)}
    said = values.get("said")
    return Memory(
        ScalingState(**times),
        said if isinstance(said, str) else "",
        _number(values.get("said_s")) or 0.0,
        _number(values.get("told_s")) or 0.0,
    )


def as_json(memory: Memory) -> dict[str, float | str | None]:
    """Returns what `memory_of` reads."""
    said = {"said": memory.said, "said_s": memory.said_s, "told_s": memory.told_s}
    return asdict(memory.state) | said


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None
