"""The numbers of the whole pool: each tile's value, unit and line of context. Pure.

The texts are made here, once for page and socket, so that a tile, its row and the API agree.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from controlplane.fleet.captions import Tone, short_of
from controlplane.fleet.live_moves import MoveCounts
from controlplane.fleet.picture import FAILING, InstanceRow, is_stale

RATE_WINDOW_S: Final = 10.0
LATENCY_WINDOW_S: Final = 60.0
DASH: Final = "–"  # noqa: RUF001
SPARK_POINTS: Final = 40


class TileRow(NamedTuple):
    """One tile. The fields' order is the socket's (web/messages.py)."""

    value: str
    unit: str
    context: str
    tone: Tone
    spark: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Latency:
    """Time to the first token over the last minute, in ms; None: nothing was measured in it."""

    p50_ms: float | None = None
    p90_ms: float | None = None
    p99_ms: float | None = None
    requests: int = 0


@dataclass(frozen=True, slots=True)
class Totals:
    """The pool's numbers. None: nobody reports it now."""

    desired: int
    serving: int
    starting: int
    failing: int
    leaving: int
    reporting: int
    running: int | None
    waiting: int | None
    requests_per_s: float | None
    output_tokens_per_s: float | None
    prompt_tokens_per_s: float | None
    used_tokens: int | None
    virtual_tokens: int | None
    capacity_tokens: int | None
    ttft: Latency
    moves: MoveCounts = field(default_factory=MoveCounts)
    at_gateway: int = 0
    """Requests that wait in this web process for room (late binding)."""
    held: int = 0
    """Requests that wait in this web process for the pool's first instance."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What the history, the gateway and the moves gave, rates all a second."""

    requests: float | None
    output_tokens: float | None
    prompt_tokens: float | None
    ttft: Latency
    moves: MoveCounts = field(default_factory=MoveCounts)
    at_gateway: int = 0
    held: int = 0


def totals_of(
    rows: Mapping[str, InstanceRow], rates: Rates, desired: int, now_unix_s: float
) -> Totals:
    """Adds up the rows; stale and absent reports count in no sum."""
    fresh = [r for r in rows.values() if r.running is not None and not is_stale(r, now_unix_s)]
    states = [r.state for r in rows.values()]
    reports = bool(fresh)
    return Totals(
        desired=desired,
        serving=states.count("serving"),
        starting=states.count("starting"),
        failing=sum(map(states.count, FAILING)),
        leaving=len(states) - sum(map(states.count, ("serving", "starting", *FAILING))),
        reporting=len(fresh),
        running=sum(r.running or 0 for r in fresh) if reports else None,
        waiting=sum(r.waiting or 0 for r in fresh) if reports else None,
        requests_per_s=rates.requests if reports else None,
        output_tokens_per_s=rates.output_tokens if reports else None,
        prompt_tokens_per_s=rates.prompt_tokens if reports else None,
        used_tokens=sum(r.used_tokens or 0 for r in fresh) if reports else None,
        # A draining instance's usage is infinite by rule; here its real one counts.
        virtual_tokens=(
            sum((r.virtual_tokens or r.used_tokens or 0) for r in fresh) if reports else None
        ),
        capacity_tokens=sum(r.capacity_tokens or 0 for r in fresh) if reports else None,
        ttft=rates.ttft,
        moves=rates.moves,
        at_gateway=rates.at_gateway,
        held=rates.held,
    )


def tile_rows(totals: Totals, sparks: Mapping[str, Sequence[float | None]]) -> dict[str, TileRow]:
    """Returns the tiles by key, in the order of the page."""
    tiles = {
        "serving": _serving(totals),
        "running": TileRow(number(totals.running), "", _waiting(totals), "plain"),
        "requests": TileRow(number(totals.requests_per_s), "/s", "ended, all instances", "plain"),
        "ttft": _ttft(totals.ttft),
        "output": TileRow(
            number(totals.output_tokens_per_s), "/s",
            f"and {number(totals.prompt_tokens_per_s)} prompt tokens /s", "plain",
        ),
        "kv": _kv(totals),
        "moves": _moves(totals.moves),
    }  # fmt: skip
    return {key: row._replace(spark=tuple(sparks.get(key, ()))) for key, row in tiles.items()}


def held_words(held: int) -> str:
    """Says how many requests wait for a pool at zero; nothing for none."""
    if not held:
        return ""
    return f"{held:,} request{' waits' if held == 1 else 's wait'} for the pool's first instance"


def spark_values(totals: Totals) -> dict[str, float | None]:
    """Returns what each tile's line gets as its next point."""
    used, capacity = totals.used_tokens, totals.capacity_tokens
    return {
        "serving": totals.serving,
        "running": totals.running,
        "requests": totals.requests_per_s,
        "ttft": totals.ttft.p99_ms,
        "output": totals.output_tokens_per_s,
        "kv": round(100 * used / capacity, 1) if used is not None and capacity else None,
        "moves": totals.moves.committed,
    }


def number(value: float | None) -> str:
    """Returns three significant digits with separators, a dash for None."""
    if value is None:
        return DASH
    size = abs(value)
    digits = 0 if size >= 100 or value == int(value) else 1 if size >= 10 else 2
    text = f"{value:,.{digits}f}"
    return text.replace("-", "−")  # noqa: RUF001


def _serving(totals: Totals) -> TileRow:
    parts = [
        f"{count} {word}"
        for count, word in (
            (totals.failing, "failing"),
            (totals.starting, "starting"),
            (totals.leaving, "on their way out"),
        )
        if count
    ]
    tone: Tone = "bad" if totals.failing else "plain"
    if totals.held:
        return TileRow(str(totals.serving), f"of {totals.desired}", held_words(totals.held), "warn")
    context = ", ".join(parts) or ("all as wanted" if totals.desired else "none wanted")
    if not parts and totals.serving < totals.desired:
        context, tone = f"{totals.desired - totals.serving} missing", "warn"
    return TileRow(str(totals.serving), f"of {totals.desired}", context, tone)


def _waiting(totals: Totals) -> str:
    here = f", {totals.at_gateway:,} at the gateway" if totals.at_gateway else ""
    return ("no report" if totals.waiting is None else f"{totals.waiting:,} waiting") + here


def _ttft(ttft: Latency) -> TileRow:
    if ttft.p99_ms is None:
        return TileRow(DASH, "ms", "no request in the last minute", "plain")
    context = f"p50 {number(ttft.p50_ms)}, p90 {number(ttft.p90_ms)}"
    return TileRow(number(ttft.p99_ms), "ms", context, "plain")


def _kv(totals: Totals) -> TileRow:
    used, capacity = totals.used_tokens, totals.capacity_tokens
    if used is None or not capacity:
        return TileRow(DASH, "%", "no report", "plain")
    virtual = 100 * (totals.virtual_tokens or 0) / capacity
    context = f"{virtual:.0f} % virtual, {short_of(used, capacity)} tokens"
    return TileRow(f"{100 * used / capacity:.0f}", "%", context, "plain")


def _moves(moves: MoveCounts) -> TileRow:
    parts = [f"{moves.going_on} now"] if moves.going_on else []
    if moves.aborted:
        parts.append(f"{moves.aborted} aborted")
    if moves.waits_ms:
        # Of a few values the largest is all that can be said of the tail.
        parts.append(f"longest wait {moves.waits_ms[-1]:.0f} ms")
    return TileRow(number(moves.committed), "", ", ".join(parts) or "none under way", "plain")
