"""Fits the coefficients of the cost models to what was measured. Pure.

The models are sums of non-negative costs, so this is least squares with non-negative coefficients:
with three of them every subset can be tried. Relative errors count, for a step of 5 ms is as good a
measurement as a prefill of 5 s. On a shared machine some measurements take much too long; they get
less weight with each round (Huber's weights).
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from engine_pool.simulator.cost_file import FitFacts
from engine_pool.simulator.costs import CopyCosts, StepCosts

ROUNDS: Final = 30
"""Of weighing: the weights stand still after about ten."""
HUBER: Final = 1.345
"""Residuals beyond so many deviations are weighed down: 95 % efficient for normal ones."""
LEAST_DEVIATION: Final = 1e-3
"""Of relative residuals: a fit this good needs no weighing."""
NORMAL_MAD: Final = 0.6745
"""Median absolute deviation of a normal distribution with deviation 1."""
SINGULAR: Final = 1e-10
"""A pivot this small, against entries of about 1, is rounding."""


class FitError(ValueError):
    """Measurements that do not determine the coefficients; the message says of what."""


@dataclass(frozen=True, slots=True)
class PrefillPoint:
    """Whole prompts that were computed at once."""

    prompt_tokens: tuple[int, ...]
    ms: float
    steps: int = 1
    """In how many steps: a long prompt is cut where a step's budget ends."""


@dataclass(frozen=True, slots=True)
class DecodePoint:
    """One step that gave each sequence a token."""

    sequences: int
    kv_tokens: int
    ms: float


@dataclass(frozen=True, slots=True)
class CopyPoint:
    """Blocks that went from one engine's memory to another's."""

    blocks: int
    ms: float


@dataclass(frozen=True, slots=True)
class Fit:
    """Coefficients in the order of the columns, and how well they fit."""

    coefficients: tuple[float, ...]
    facts: FitFacts


def fit_steps(
    prefills: Sequence[PrefillPoint], decodes: Sequence[DecodePoint]
) -> tuple[StepCosts, dict[str, FitFacts]]:
    """Returns the costs of steps and how well they fit. Raises: FitError."""
    prefill = fit("prefill", [_prefill_row(p) for p in prefills], [p.ms for p in prefills])
    decode = fit(
        "decode",
        [(1.0, float(p.sequences), float(p.kv_tokens)) for p in decodes],
        [p.ms for p in decodes],
    )
    costs = StepCosts(
        prefill_base_ms=prefill.coefficients[0],
        prefill_ms_per_token=prefill.coefficients[1],
        prefill_ms_per_square_token=prefill.coefficients[2],
        decode_base_ms=decode.coefficients[0],
        decode_ms_per_sequence=decode.coefficients[1],
        decode_ms_per_kv_token=decode.coefficients[2],
    )
    return costs, {"prefill": prefill.facts, "decode": decode.facts}


def _prefill_row(p: PrefillPoint) -> tuple[float, ...]:
    n = p.prompt_tokens
    return float(p.steps), float(sum(n)), float(sum(x * x for x in n))


def fit_copies(
    points: Sequence[CopyPoint], block_size_tokens: int, kv_token_bytes: int
) -> tuple[CopyCosts, FitFacts]:
    """Returns the costs of copies and how well they fit. Raises: FitError."""
    rows = [(1.0, float(p.blocks * block_size_tokens)) for p in points]
    found = fit("copies", rows, [p.ms for p in points])
    costs = CopyCosts(
        base_ms=found.coefficients[0],
        # Measured from one block on: what the smallest copy costs, every copy does.
        full_blocks=1,
        ms_per_token=found.coefficients[1],
        block_size_tokens=block_size_tokens,
        kv_token_bytes=kv_token_bytes,
    )
    return costs, found.facts


def fit(what: str, rows: Sequence[Sequence[float]], measured: Sequence[float]) -> Fit:
    """Fits `measured` = `rows` times coefficients, none of them negative.

    Raises: FitError, with `what` in its message, when there are too few different rows or a
    measurement is not a positive number.
    """
    columns = len(rows[0]) if rows else 0
    if len({tuple(row) for row in rows}) <= columns:
        raise FitError(
            f"{what}: {len(rows)} measurements are too few; needed are more than {columns} "
            "of different sizes"
        )
    if bad := [ms for ms in measured if not (math.isfinite(ms) and ms > 0)]:
        raise FitError(f"{what}: a time of {bad[0]!r} ms cannot have been measured")
    scales = [max(row[j] for row in rows) or 1.0 for j in range(columns)]
    # Relative residuals: each row is divided by what was measured, which becomes 1.
    scaled = [
        [x / scale / ms for x, scale in zip(row, scales, strict=True)]
        for row, ms in zip(rows, measured, strict=True)
    ]
    level = statistics.median(measured)
    scaled = [[x * level for x in row] for row in scaled]
    weights = [1.0] * len(rows)
    solution: list[float] = []
    for _ in range(ROUNDS):
        last, solution = solution, _non_negative(what, scaled, weights)
        if last == solution:
            break
        weights = _weights([1.0 - _dot(row, solution) for row in scaled])
    errors = [abs(1.0 - _dot(row, solution)) for row in scaled]
    return Fit(
        tuple(x * level / scale for x, scale in zip(solution, scales, strict=True)),
        FitFacts(len(rows), statistics.median(errors), max(errors)),
    )


def _weights(residuals: Sequence[float]) -> list[float]:
    deviation = max(LEAST_DEVIATION, statistics.median(map(abs, residuals)) / NORMAL_MAD)
    return [min(1.0, HUBER * deviation / max(abs(r), 1e-12)) for r in residuals]


def _non_negative(
    what: str, rows: Sequence[Sequence[float]], weights: Sequence[float]
) -> list[float]:
    """Returns the best coefficients for targets of 1 among those of which none is negative."""
    columns = len(rows[0])
    best, least = None, math.inf
    for count in range(columns, 0, -1):
        for used in combinations(range(columns), count):
            part = _solve(rows, weights, used)
            if part is None:
                if count == columns:
                    raise FitError(f"{what}: the sizes that were measured do not tell costs apart")
                continue
            if min(part) < 0:
                continue
            whole = [0.0] * columns
            for j, x in zip(used, part, strict=True):
                whole[j] = x
            loss = sum(
                w * (1.0 - _dot(row, whole)) ** 2 for w, row in zip(weights, rows, strict=True)
            )
            if loss < least:
                best, least = whole, loss
    assert best is not None, "one positive column alone has a positive coefficient"
    return best


def _solve(
    rows: Sequence[Sequence[float]], weights: Sequence[float], used: Sequence[int]
) -> list[float] | None:
    """Returns the weighted least squares solution over some columns, None when they depend on
    each other."""
    size = len(used)
    lines = [
        [sum(w * r[i] * r[j] for w, r in zip(weights, rows, strict=True)) for j in used]
        + [sum(w * r[i] for w, r in zip(weights, rows, strict=True))]
        for i in used
    ]
    # Scaled to ones on the diagonal, so that "too small a pivot" means the same everywhere.
    norms = [math.sqrt(lines[i][i]) or 1.0 for i in range(size)]
    for i in range(size):
        lines[i] = [x / norms[i] / (norms[j] if j < size else 1.0) for j, x in enumerate(lines[i])]
    for i in range(size):
        pivot = max(range(i, size), key=lambda k: abs(lines[k][i]))
        if abs(lines[pivot][i]) < SINGULAR:
            return None
        lines[i], lines[pivot] = lines[pivot], lines[i]
        for k in range(size):
            if k != i:
                factor = lines[k][i] / lines[i][i]
                lines[k] = [a - factor * b for a, b in zip(lines[k], lines[i], strict=True)]
    return [lines[i][size] / lines[i][i] / norms[i] for i in range(size)]


def _dot(row: Sequence[float], coefficients: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(row, coefficients, strict=True))
