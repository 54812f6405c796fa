"""What came of a what-if run, in words and numbers. Pure."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from controlplane.fleet.tiles import DASH, number
from web.move_units import plural
from web.whatif_facts import changes

Report = Mapping[str, Any]
SAME_SHARE: Final = 0.05
"""Two values nearer than this are called about the same: other seeds differ by far more."""
CHANGES_NAMED: Final = 3


class Tile(NamedTuple):
    label: str
    value: str
    unit: str
    context: str


class ClassRow(NamedTuple):
    """One class of one side."""

    name: str
    side: str
    cells: tuple[str, ...]


CLASS_COLUMNS: Final = (
    ("Requests", "requests"),
    ("First token, mean", "prefill_mean_ms"),
    ("First token, P99", "prefill_p99_ms"),
    ("Request, mean", "request_mean_ms"),
    ("Request, P99", "request_p99_ms"),
    ("A token, mean", "decode_mean_ms"),
    ("A token, P99", "decode_p99_ms"),
    ("Preempted", "preempted_share"),
    ("Moved", "requests_moved"),
)
"""Heading, and the key in the simulator's report."""


def duration(value_ms: float | None) -> str:
    """Returns "38.2 ms", "1.93 s" or "250 s"."""
    if value_ms is None:
        return DASH
    return f"{number(value_ms)} ms" if value_ms < 1000 else f"{number(value_ms / 1000)} s"


def percent(share: float | None) -> str:
    return DASH if share is None else f"{number(share * 100)} %"


def sentence(report: Report, baseline: Report | None, label: str) -> str:
    """Says the result in one sentence or two, with numbers."""
    summary = report["summary"]
    if baseline is None:
        return (
            f"The first token comes after {duration(summary['prefill_mean_ms'])} on average and "
            f"{duration(summary['prefill_p99_ms'])} at P99; {_events(report)}."
        )
    other = baseline["summary"]
    first = _moved_from(other["prefill_p99_ms"], summary["prefill_p99_ms"], label)
    mean = _moved_from(other["request_mean_ms"], summary["request_mean_ms"], label)
    return (
        f"{_because(changes(report['scenario'], baseline['scenario']))} the P99 time to first "
        f"token {first}. A whole request's mean time {mean}; {_events(report)}."
    )


def tiles(report: Report, baseline: Report | None, label: str) -> list[Tile]:
    """Returns the eight numbers of a run, each with the other side's in its context."""
    summary, moves = report["summary"], report["moves"]
    other = None if baseline is None else baseline["summary"]

    def told(name: str, key: str, show: Callable[[float | None], str], alone: str) -> Tile:
        value, _, unit = show(summary[key]).partition(" ")
        context = alone if other is None else f"{label}: {show(other[key])}"
        return Tile(name, value, unit, context)

    committed = number(moves["committed"])
    move_words = f"{number(moves['started'])} began"
    if baseline is not None:
        move_words = f"{label}: {number(baseline['moves']['committed'])}"
    return [
        told("First token, P99", "prefill_p99_ms", duration, "99 of 100 are faster"),
        told("First token, mean", "prefill_mean_ms", duration, "queue and prefill"),
        told("Request, mean", "request_mean_ms", duration, "arrival to last token"),
        told("A token, mean", "decode_mean_ms", duration, "after the first"),
        told("Preemptions", "preemptions", number, "tokens computed again"),
        told("Fragmentation", "fragmentation", percent, "free, but no use to a waiting one"),
        Tile("Moves", committed, "", move_words),
        told("Instances, mean", "instances_mean", _rounded, "until the last arrival"),
    ]


def class_rows(report: Report, baseline: Report | None, label: str) -> list[ClassRow]:
    """Returns a row a class and side."""
    sides = [("What if", report)] + ([(label.capitalize(), baseline)] if baseline else [])
    names = list(dict.fromkeys(name for _, side in sides for name in side["by_class"]))
    rows = []
    for name in names:
        for side, told in sides:
            numbers = told["by_class"].get(name)
            if numbers is not None:
                rows.append(
                    ClassRow(name, side, tuple(_cell(k, numbers[k]) for _, k in CLASS_COLUMNS))
                )
    return rows


def move_facts(report: Report, baseline: Report | None, label: str) -> list[tuple[str, str, str]]:
    """Returns what the moves did, a row a fact; the last is the other side's, "" without one."""
    mine, other = report["moves"], None if baseline is None else baseline["moves"]

    def row(name: str, show: Callable[[Report], str]) -> tuple[str, str, str]:
        return name, show(mine), "" if other is None else show(other)

    return [
        row("Committed", lambda m: number(m["committed"])),
        row("Of these while queued", lambda m: number(m["committed_queued"])),
        row("Aborted", lambda m: _aborted(m["aborted"])),
        row("Reader waited, mean", lambda m: duration(m["downtime_mean_ms"])),
        row("Reader waited, P99", lambda m: duration(m["downtime_p99_ms"])),
        row("Copies of a move, mean", lambda m: number(m["copies_mean"])),
    ]


def remaining(progress: float, elapsed_s: float) -> str:
    """Estimates what is left of a run, "" while there is nothing to go by."""
    if progress < 0.02 or elapsed_s < 1:
        return ""
    left_s = elapsed_s * (1 - progress) / progress
    return "about a second left" if left_s < 1.5 else f"about {number(round(left_s))} s left"


def _because(changed: list[str]) -> str:
    if not changed:
        return "With the same pool and rules"
    if len(changed) > CHANGES_NAMED:
        more = len(changed) - CHANGES_NAMED
        return f"With {', '.join(changed[:CHANGES_NAMED])} and {plural(more, 'more change')}"
    return f"With {' and '.join(changed)}"


def _moved_from(before: float | None, now: float | None, label: str) -> str:
    if before is None or now is None:
        return f"is {duration(now)}"
    if abs(now - before) <= SAME_SHARE * before:
        return f"stays at about {duration(now)} ({label}: {duration(before)})"
    verb = "falls" if now < before else "rises"
    return f"{verb} from {duration(before)} to {duration(now)}"


def _events(report: Report) -> str:
    moves, preemptions = report["moves"]["committed"], report["summary"]["preemptions"]
    moved = f"{plural(moves, 'move')}" if moves else "nothing moves"
    lost = f"{plural(preemptions, 'preemption')}" if preemptions else "nothing is preempted"
    return f"{moved}, {lost}"


def _aborted(reasons: Mapping[str, int]) -> str:
    if not reasons:
        return "0"
    return ", ".join(f"{code.replace('_', ' ')}: {number(n)}" for code, n in reasons.items())


def _rounded(value: float | None) -> str:
    return number(None if value is None else round(value, 2))


def _cell(key: str, value: float | None) -> str:
    if key.endswith("_ms"):
        return duration(value)
    return percent(value) if key.endswith("_share") else number(value)
