"""The chart of a pool's scaling: points, marks and words, from its stored checks. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from controlplane.scaling.models import DecisionKind, ScalingDecision
from web.move_units import plural, steps
from web.scaling_words import key_of, row_of

SPANS: Final = {"1h": timedelta(hours=1), "24h": timedelta(hours=24)}
SPAN_WORDS: Final = {"1h": "1 h", "24h": "24 h"}
SPAN_DEFAULT: Final = "1h"
GAP_S: Final = 150.0
"""Checks leave a row a minute at least; two that are further apart have no line between them."""
POINTS_MAX: Final = 300
"""Two to three pixels each."""
MARKS_MAX: Final = 60
"""Newest ones; more could not be told apart."""
TABLE_ROWS: Final = 14
MARKED: Final = (
    DecisionKind.GROW,
    DecisionKind.SHRINK,
    DecisionKind.UNDRAIN,
    DecisionKind.REFUSED,
)


class Point(NamedTuple):
    at: datetime
    average: float | None
    """None: nothing ran, or nobody knew."""
    wanted: int
    serving: int


class Chart(NamedTuple):
    data: dict[str, Any]
    """For the script."""
    words: str
    rows: list[tuple[str, ...]]
    columns: tuple[str, ...] = ("At, UTC", "Average freeness", "Wanted", "Serving")


def chart_of(
    rows: Sequence[ScalingDecision],
    now: Point | None,
    band: tuple[float, float],
    start: datetime,
    end: datetime,
) -> Chart:
    """Returns the chart. `rows`: of the span, in any order; `now`: the newest point."""
    ordered = sorted(rows, key=lambda row: (row.at, row.tick))
    points = thinned([*map(_point, ordered), *([now] if now is not None else [])])
    marks = [row for row in ordered if row.kind in MARKED][-MARKS_MAX:]
    gapped = with_gaps(points)
    data = {
        "at": [_iso(at) for at, _ in gapped],
        "average": [p and p.average for _, p in gapped],
        "wanted": [p and p.wanted for _, p in gapped],
        "serving": [p and p.serving for _, p in gapped],
        "band": list(band),
        "range": [_iso(start), _iso(end)],
        "marks": [
            {
                "at": _iso(row.at),
                "kind": row.kind
                if row.is_applied or row.kind == DecisionKind.REFUSED
                else "advice",
                "words": f"{row_of(row).word} {row_of(row).change}",
                "key": key_of(row),
            }
            for row in marks
        ],
    }
    return Chart(data, words(points, len(marks)), table(points))


def thinned(points: Sequence[Point]) -> list[Point]:
    """Returns fewer points, the last of each part; where the numbers of instances change, all."""
    each = max(1, -(-len(points) // POINTS_MAX))
    kept = []
    for number, point in enumerate(points):
        before = points[number - 1] if number else None
        has_changed = before is None or (before.wanted, before.serving) != point[2:]
        if has_changed or number % each == 0 or number == len(points) - 1:
            kept.append(point)
    return kept


def with_gaps(points: Sequence[Point]) -> list[tuple[datetime, Point | None]]:
    """Returns times with their points, None where nobody checked for long."""
    each_s = GAP_S
    if len(points) > 1:
        # Thinned points are further apart than checks.
        span_s = (points[-1].at - points[0].at).total_seconds()
        each_s = max(GAP_S, 3 * span_s / POINTS_MAX)
    found: list[tuple[datetime, Point | None]] = []
    for point in points:
        if found and (point.at - found[-1][0]).total_seconds() > each_s:
            found.append((found[-1][0] + timedelta(seconds=1), None))
        found.append((point.at, point))
    return found


def words(points: Sequence[Point], marks: int) -> str:
    """Says the chart."""
    if not points:
        return "No check in this time."
    averages = [p.average for p in points if p.average is not None]
    told = "Nothing ran"
    if averages:
        told = f"Average freeness from {steps(min(averages))} to {steps(max(averages))}"
        told += f", last {steps(averages[-1])}"
    wanted = [p.wanted for p in points]
    counts = plural(wanted[-1], "instance")
    if min(wanted) != max(wanted):
        counts = f"{min(wanted)} to {max(wanted)} instances, now {wanted[-1]}"
    return f"{told}; {counts} wanted; {plural(marks, 'decision')} marked."


def table(points: Sequence[Point]) -> list[tuple[str, ...]]:
    """Returns some of the points as words, newest first."""
    last = len(points) - 1
    picked = list(range(last + 1))
    if last >= TABLE_ROWS:
        picked = sorted({round(i * last / (TABLE_ROWS - 1)) for i in range(TABLE_ROWS)})
    return [
        (f"{points[i].at:%Y-%m-%d %H:%M:%S}", steps(points[i].average), str(points[i].wanted),
         str(points[i].serving))
        for i in reversed(picked)
    ]  # fmt: skip


def _point(row: ScalingDecision) -> Point:
    wanted = row.instances_after if row.is_applied else row.instances_before
    return Point(row.at, row.average_steps, wanted, row.serving)


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds").removesuffix("+00:00")
