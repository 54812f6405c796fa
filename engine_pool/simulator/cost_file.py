"""The cost file: what was measured of a real engine, for the simulator to compute with.

Written by `python -m engine_pool.calibrate`, read by scenarios (`[costs] file = "costs.json"`). Its
fields are those of the classes below, so what is read back is what was written.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from engine_pool.simulator.costs import CopyCosts, StepCosts

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FORMAT: Final = 1
"""Raise it when a field changes its meaning."""
LEAST_ONE: Final = frozenset(
    {
        "capacity_tokens",
        "block_size_tokens",
        "max_running",
        "max_model_len",
        "full_blocks",
        "kv_token_bytes",
        "cores",
        "threads",
        "points",
    }
)
"""Fields in which 0 is not a number that could have been measured."""

T = TypeVar("T", bound="DataclassInstance")


class CostFileError(ValueError):
    """A cost file that cannot be used; the message names file and field."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the measured engine holds."""

    capacity_tokens: int
    block_size_tokens: int
    max_running: int
    max_model_len: int


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """Where the costs hold: no names, no paths."""

    cores: int
    threads: int
    """Of the engine's forward pass."""
    torch: str
    engine: str
    """Kind, version and device: "vllm 0.32.0 on cpu"."""
    model: str
    """Fingerprint of the weights and their configuration."""


@dataclass(frozen=True, slots=True)
class FitFacts:
    """How well a cost model describes what was measured. Errors are shares of the measured."""

    points: int
    median_error: float
    max_error: float


@dataclass(frozen=True, slots=True)
class MeasuredCosts:
    """A cost file."""

    steps: StepCosts
    copies: CopyCosts | None
    """None: copies were not measured."""
    copy_slowdown: float | None
    """How much longer decode steps take at an end of a copy, as a share; None like copies."""
    engine: EngineFacts
    machine: MachineFacts
    measured_at: str
    """Date and time, UTC, ISO 8601."""
    fits: Mapping[str, FitFacts]
    """By what was fitted: prefill, decode, copies."""
    mixed_step_ratio: float | None = None
    """What a step takes that computes a prompt beside a decoding batch, against prefill and decode
    step one after the other by the fit; None: not measured. The simulator computes the latter."""

    def scenario_section(self) -> dict[str, float]:
        """Returns the fields of a scenario's section [costs] that were measured."""
        steps = {k: v for k, v in asdict(self.steps).items() if k != "time_scale"}
        if self.copy_slowdown is not None:
            steps["copy_slowdown"] = self.copy_slowdown
        copies = self.copies
        if copies is None:
            return steps
        return steps | {
            "copy_base_ms": copies.base_ms,
            "copy_full_blocks": copies.full_blocks,
            "copy_ms_per_token": copies.ms_per_token,
        }


def write_costs(path: Path, costs: MeasuredCosts) -> None:
    """Raises: OSError."""
    path.write_text(json.dumps({"format": FORMAT, **asdict(costs)}, indent=2) + "\n")


def read_costs(path: Path) -> MeasuredCosts:
    """Reads a cost file. Raises: CostFileError naming file and field."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CostFileError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise CostFileError(f"{path}: not JSON: {error}") from error
    try:
        return _costs(_table(found, "the file"))
    except CostFileError as error:
        raise CostFileError(f"{path}: {error}") from None


def _costs(found: Mapping[str, object]) -> MeasuredCosts:
    known = {"format", *(f.name for f in fields(MeasuredCosts))}
    _check_names(found, known, known - {"mixed_step_ratio"}, "")
    if found["format"] != FORMAT:
        raise CostFileError(f"format: {FORMAT} is expected, got {found['format']!r}")
    measured_at = found["measured_at"]
    if not isinstance(measured_at, str):
        raise CostFileError(f"measured_at: a text is expected, got {measured_at!r}")
    copies = found["copies"]
    fits = _table(found["fits"], "fits")
    return MeasuredCosts(
        steps=_read(StepCosts, found["steps"], "steps"),
        copies=None if copies is None else _read(CopyCosts, copies, "copies"),
        copy_slowdown=_number_or_none(found, "copy_slowdown"),
        mixed_step_ratio=_number_or_none(found, "mixed_step_ratio"),
        engine=_read(EngineFacts, found["engine"], "engine"),
        machine=_read(MachineFacts, found["machine"], "machine"),
        measured_at=measured_at,
        fits={name: _read(FitFacts, fit, f"fits.{name}") for name, fit in fits.items()},
    )


def _read(kind: type[T], found: object, where: str) -> T:
    """Makes a value of its fields; those with a default may be left out."""
    table = _table(found, where)
    own = fields(kind)
    needed = {f.name for f in own if f.default is MISSING and f.default_factory is MISSING}
    _check_names(table, {f.name for f in own}, needed, f"{where}.")
    read = {
        f.name: _value(f.type, table[f.name], f"{where}.{f.name}") for f in own if f.name in table
    }
    return kind(**read)


def _check_names(table: Mapping[str, object], known: set[str], needed: set[str], at: str) -> None:
    if unknown := sorted(table.keys() - known):
        raise CostFileError(f"{at}{unknown[0]}: no such field")
    if missing := sorted(needed - table.keys()):
        raise CostFileError(f"{at}{missing[0]}: missing")


def _table(found: object, where: str) -> Mapping[str, object]:
    if not isinstance(found, dict):
        raise CostFileError(f"{where}: an object is expected, got {found!r:.60}")
    return found


def _value(kind: object, found: object, where: str) -> object:
    if kind is str:
        if not isinstance(found, str):
            raise CostFileError(f"{where}: a text is expected, got {found!r}")
        return found
    number = _number(found, where)
    if kind is float:
        return number
    least = int(where.rpartition(".")[2] in LEAST_ONE)
    if number != int(number) or number < least:
        expected = f"a whole number of at least {least}"
        raise CostFileError(f"{where}: {expected} is expected, got {found!r}")
    return int(number)


def _number_or_none(table: Mapping[str, object], name: str) -> float | None:
    return None if table.get(name) is None else _number(table[name], name)


def _number(found: object, where: str) -> float:
    # In Python True is a number, too.
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < math.inf:
        raise CostFileError(f"{where}: a number of at least 0 is expected, got {found!r}")
    return float(found)
