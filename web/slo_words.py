"""How an SLO stands, in words, bars and tones. Pure."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from controlplane.fleet.tiles import DASH
from controlplane.gateway.models import RequestRecord
from controlplane.tenants.selectors import Target
from controlplane.usage.sums import SloState
from web.drawing import SPARK_POINTS, spark_path
from web.ledger_words import lasts, percent
from web.move_units import MINUS, plural

TOO_FEW: Final = "too few to say"
BURN_WARN: Final = 6.0
BURN_BAD: Final = 14.4
"""Burn rates of multi-window alerts: 2 % of a 28-day budget in an hour, 5 % in six hours."""
BUDGET_LOW: Final = 0.25
PARTS: Final = (
    ("queued", "queue", "queue_ms"),
    ("prefill", "prefill", "prefill_ms"),
    ("decode", "decode", "decode_ms"),
    ("move", "moves", "migration_ms"),
)


class Row(NamedTuple):
    """One tenant in one class."""

    state: SloState
    target: str
    standing: str
    """In a word."""
    standing_tone: str
    attainment: str
    attainment_tone: str
    budget: str
    budget_percent: float
    budget_tone: str
    burn_1h: str
    burn_1h_tone: str
    burn_6h: str
    burn_6h_tone: str
    spark: str
    trend: str
    """The sparkline in words."""


class Segment(NamedTuple):
    kind: str
    x: float
    width: float
    title: str


class Slow(NamedTuple):
    """One slow request as a stacked bar, on the scale of the slowest."""

    record: RequestRecord
    segments: tuple[Segment, ...]
    missed: str


def row_of(state: SloState) -> Row:
    burn_1h, burn_6h = state.burn_1h, state.burn_6h
    standing, tone = standing_of(state)
    return Row(
        state=state,
        target=target_words(state.target),
        standing=standing,
        standing_tone=tone,
        attainment=TOO_FEW if state.attainment is None else percent(state.attainment),
        attainment_tone=_attainment_tone(state),
        budget=DASH if state.budget_left is None else percent(state.budget_left),
        budget_percent=round(100 * min(1.0, max(0.0, state.budget_left or 0.0)), 1),
        budget_tone=budget_tone(state.budget_left),
        burn_1h=_burn(burn_1h),
        burn_1h_tone=burn_tone(burn_1h, burn_6h),
        burn_6h=_burn(burn_6h),
        burn_6h_tone=burn_tone(burn_6h, burn_1h),
        spark=spark_path([p.attainment for p in state.series][-SPARK_POINTS:]),
        trend=_trend(state),
    )


def standing_of(state: SloState) -> tuple[str, str]:
    """Returns how it stands in a word, and its tone."""
    if state.alert == "page":
        return "Burns fast", "bad"
    if state.budget_left is not None and state.budget_left <= 0:
        return "Spent", "bad"
    if state.alert:
        return "Burns", "warn"
    return ("Few", "few") if state.attainment is None else ("Kept", "")


def in_order(states: Sequence[SloState]) -> list[SloState]:
    """Puts first what needs somebody: alerts, then the smallest budget left, then by name."""
    return sorted(states, key=_urgency)


def sentence(states: Sequence[SloState]) -> str:
    """Says whether the word is kept, for the page's first line."""
    if not states:
        return "No target is set."
    burning = [s for s in states if s.alert]
    spent = [s for s in states if s.budget_left is not None and s.budget_left <= 0]
    judged = sum(s.attainment is not None for s in states)
    if burning:
        first = in_order(burning)[0]
        more = f" and {len(burning) - 1} more" if len(burning) > 1 else ""
        words = "too fast" if any(s.alert == "page" for s in burning) else "faster than it may"
        return f"{first.tenant}, {first.priority_class}{more}: the budget burns {words}."
    if spent:
        verb = "is" if len(spent) == 1 else "are"
        return f"{len(spent)} of {plural(len(states), 'budget')} {verb} spent; none burns fast now."
    if not judged:
        return f"{plural(len(states), 'target')}, and too few requests to say of any."
    return f"All {judged} with enough requests are within their budget."


def target_words(target: Target) -> str:
    told = [
        f"{name} {lasts(value)}"
        for name, value in (("TTFT", target.ttft_ms), ("TPOT", target.tpot_ms))
        if value is not None
    ]
    return ", ".join(told) or "none"


def burn_tone(burn: float | None, other: float | None) -> str:
    """Returns `bad` over 14.4 when the other window is so too, `warn` over 6."""
    if burn is None:
        return ""
    if burn > BURN_BAD and (other or 0.0) > BURN_BAD:
        return "bad"
    return "warn" if burn > BURN_WARN else ""


def budget_tone(left: float | None) -> str:
    if left is None:
        return ""
    return "bad" if left <= 0 else "warn" if left < BUDGET_LOW else ""


def slow_rows(records: Sequence[RequestRecord]) -> list[Slow]:
    """Returns the requests, slowest first, their bars on one scale."""
    longest = max((r.duration_ms for r in records), default=0.0) or 1.0
    found = sorted(records, key=lambda r: -r.duration_ms)
    return [Slow(r, _segments(r, longest), _missed(r)) for r in found]


def _segments(record: RequestRecord, longest_ms: float) -> tuple[Segment, ...]:
    x, found = 0.0, []
    known = [(k, n, getattr(record, f)) for k, n, f in PARTS]
    if record.queue_ms is None and record.ttft_ms is not None:
        known[0] = ("queued", "queue and prefill", record.ttft_ms)
        known[1] = ("prefill", "prefill", None)
    for kind, name, took_ms in known:
        if took_ms:
            width = round(100 * took_ms / longest_ms, 2)
            found.append(Segment(kind, round(x, 2), width, f"{name} {lasts(took_ms)}"))
            x += width
    return tuple(found)


def _missed(record: RequestRecord) -> str:
    told = []
    if record.is_ttft_met is False:
        told.append(f"TTFT {lasts(record.ttft_ms)} of {lasts(record.ttft_target_ms)}")
    if record.is_tpot_met is False:
        told.append(f"TPOT {lasts(record.tpot_ms)} of {lasts(record.tpot_target_ms)}")
    return ", ".join(told) or DASH


def _attainment_tone(state: SloState) -> str:
    if state.attainment is None:
        return "few"
    return "" if state.attainment >= state.objective else "bad"


def _burn(burn: float | None) -> str:
    if burn is None:
        return DASH
    return f"{burn:,.{1 if burn < 99.95 else 0}f}".replace("-", MINUS)


def _trend(state: SloState) -> str:
    known = [p.attainment for p in state.series if p.attainment is not None]
    if not known:
        return "no trend: too few requests"
    return f"attainment between {percent(min(known))} and {percent(max(known))}"


def _urgency(state: SloState) -> tuple[int, float, str, int]:
    rank = {"page": 0, "ticket": 1}.get(state.alert, 2)
    left = 2.0 if state.budget_left is None else state.budget_left
    return rank, left, state.tenant, state.priority_class.rank
