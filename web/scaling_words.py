"""Why there are this many instances, in words and numbers. Pure."""

from datetime import datetime
from typing import Final, NamedTuple

from controlplane.fleet.models import Pool, ScalingMode
from controlplane.fleet.tiles import DASH
from controlplane.scaling.live import OnItsWay, Seen
from controlplane.scaling.models import DecisionKind, ScalingDecision, ScalingWindow
from controlplane.scaling.schedule import Bounds
from controlplane.scaling.selectors import ScalingNow
from web.ledger_words import percent
from web.move_units import plural, steps

ARROW: Final = "→"
RANGE: Final = "–"  # noqa: RUF001
DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
COMES: Final = ("starting", "loading", "ready")
GOES: Final = ("requests leave", "empty", "ends")
_DID: Final = {
    DecisionKind.GROW: "Grew",
    DecisionKind.SHRINK: "Shrank",
    DecisionKind.UNDRAIN: "Took a drain back",
    DecisionKind.REFUSED: "Refused",
    DecisionKind.HOLD: "Held still",
    DecisionKind.HEARTBEAT: "No change",
}
WOULD: Final = {
    DecisionKind.GROW: "Would grow",
    DecisionKind.SHRINK: "Would shrink",
    DecisionKind.UNDRAIN: "Would take a drain back",
}
_ICONS: Final = {
    DecisionKind.GROW: "up",
    DecisionKind.SHRINK: "down",
    DecisionKind.UNDRAIN: "up",
    DecisionKind.REFUSED: "cross",
    DecisionKind.HOLD: "warn",
    DecisionKind.HEARTBEAT: "check",
}
SIGNALS: Final = {
    "freeness": "freeness",
    "ttft": "first tokens",
    "schedule": "schedule",
    "demand": "demand",
    "idle": "idleness",
    "bounds": "bounds",
}


class Tile(NamedTuple):
    label: str
    value: str
    unit: str
    context: str
    tone: str = "plain"
    href: str = ""


class DecisionRow(NamedTuple):
    """One decision in a list."""

    key: str
    """In its address."""
    at: datetime
    word: str
    icon: str
    kind: str
    change: str
    reason: str
    signal: str
    effect: str


class WayRow(NamedTuple):
    """An instance that comes or goes."""

    instance: str
    node: str
    state: str
    since_unix_s: float
    words: str
    pips: list[tuple[str, str]]
    """(done, now or ahead; its word) a step."""


class WindowRow(NamedTuple):
    window: ScalingWindow
    days: str
    hours: str
    bounds: str
    is_in_force: bool


def key_of(row: ScalingDecision) -> str:
    """Returns a decision's name in addresses."""
    return f"{row.pool}-{row.tick}"


def tick_of(key: str) -> tuple[str, int] | None:
    """Returns pool and check of a decision's name; None for what is no such name."""
    pool, _, tick = key.rpartition("-")
    is_number = tick.isascii() and tick.isdigit() and len(tick) <= 18
    return (pool, int(tick)) if pool and is_number else None


def is_change(row: ScalingDecision) -> bool:
    return row.kind in WOULD


def row_of(row: ScalingDecision) -> DecisionRow:
    kind = DecisionKind(row.kind)
    is_advice = is_change(row) and not row.is_applied
    change = str(row.instances_before)
    if row.instances_after != row.instances_before:
        change = f"{row.instances_before} {ARROW} {row.instances_after}"
    return DecisionRow(
        key=key_of(row),
        at=row.at,
        word=WOULD[kind] if is_advice else _DID[kind],
        icon=_ICONS[kind],
        kind=kind.value,
        change=change,
        reason=reason_words(row.reason),
        signal=SIGNALS.get(row.signal, row.signal),
        effect="applied" if row.is_applied else "advice only" if is_advice else DASH,
    )


def sentence(now: ScalingNow, seen: Seen | None, pool: Pool, still: str, at: datetime) -> str:
    """Says why there are so many. `still`: what keeps the loop from checking, empty: nothing."""
    count = plural(now_wanted(seen, pool), "instance")
    if not pool.is_enabled:
        return "The pool is off: it has no instance until somebody switches it on."
    if now.mode is ScalingMode.OFF:
        return f"{count}, as people have set it: scaling is off, so nothing changes by itself."
    if now.is_late:
        since = "so far" if now.checked_at is None else f"for {_ago(now.checked_at, at)}"
        return f"{count}, and nobody has checked {since}. {still}".rstrip()
    last = now.last_change
    if now.mode is ScalingMode.ADVISE:
        advice = ""
        if last is not None and not last.is_applied:
            advice = f" {_ago(last.at, at)} ago it would have made it {last.instances_after}:"
            advice += f" {ended(reason_words(last.reason))}"
        return f"{count}, as people have set it: scaling only advises.{advice}"
    if last is None or not last.is_applied:
        return f"{count}: no check has changed it so far. {due(now, seen, pool, at)}"
    ago = _ago(last.at, at)
    why = ended(reason_words(last.reason))
    return f"{count}, since {ago} ago: {why} {due(now, seen, pool, at)}"


def now_wanted(seen: Seen | None, pool: Pool) -> int:
    return pool.instances if seen is None else seen.wanted


def due(now: ScalingNow, seen: Seen | None, pool: Pool, at: datetime) -> str:
    """Says what the next check would look at."""
    if seen is None:
        return "What it does now cannot be seen here."
    band = band_words(pool)
    average = steps(seen.average_steps)
    if seen.is_idle and now.idle_since is not None:
        idle = f"Nothing has run for {_ago(now.idle_since, at)}"
        if pool.zero_after_s is not None:
            return f"{idle}; after {_for(pool.zero_after_s)} it goes to zero."
        return f"{idle}."
    if seen.is_idle:
        return "Nothing runs."
    if seen.average_steps is None:
        return "No instance serves." if not seen.serving else "Nobody tells the average."
    if now.under_since is not None:
        waited = f"{_ago(now.under_since, at)} of {_for(pool.grow_after_s)}"
        return f"Its average of {average} is under the band {band}, for {waited}."
    if now.over_since is not None:
        waited = f"{_ago(now.over_since, at)} of {_for(pool.shrink_after_s)}"
        return f"Its average of {average} is over the band {band}, for {waited}."
    return f"Its average of {average} lies in the band {band}."


def band_words(pool: Pool) -> str:
    return f"{steps_plain(pool.band_low_steps)}{RANGE}{steps_plain(pool.band_high_steps)}"


def steps_plain(value: float) -> str:
    return f"{value:,.10g}"


def tiles(now: ScalingNow, seen: Seen | None, pool: Pool, held: int, at: datetime) -> list[Tile]:
    """Returns the page's tiles."""
    return [
        Tile("Wanted", str(now_wanted(seen, pool)), "", bounds_words(now.bounds)),
        _serving(seen),
        _average(now, seen, pool, at),
        _patience(now, pool, at),
        _check(now, at),
        Tile(
            "Requests held", str(held), "", "wait for the first instance"
            if held else "for a first instance", "warn" if held else "plain",
        ),
    ]  # fmt: skip


def bounds_words(bounds: Bounds) -> str:
    whose = f"window {bounds.window}" if bounds.window else "the pool's bounds"
    return f"{bounds.min_instances} to {bounds.max_instances}, {whose}"


def _serving(seen: Seen | None) -> Tile:
    if seen is None:
        return Tile("Serving", DASH, "", "no picture of the pool")
    parts = [
        f"{count} {word}"
        for count, word in (
            (seen.failing, "failing"),
            (seen.silent, "without a report"),
            (seen.starting, "starting"),
            (seen.draining, "draining"),
            (seen.away, "taken away by people"),
        )
        if count
    ]
    tone = "bad" if seen.failing else "warn" if seen.silent else "plain"
    unit = f"of {seen.wanted}"
    return Tile("Serving", str(seen.serving), unit, ", ".join(parts) or "all as wanted", tone)


def _average(now: ScalingNow, seen: Seen | None, pool: Pool, at: datetime) -> Tile:
    band = f"band {band_words(pool)}"
    if seen is None or (seen.average_steps is None and not seen.is_idle):
        return Tile("Average freeness", DASH, "", f"{band}; nobody reports")
    if seen.is_idle:
        return Tile("Average freeness", "idle", "", f"{band}; nothing runs")
    where = "in"
    if seen.average_steps is not None and seen.average_steps < pool.band_low_steps:
        where = "under"
    elif seen.average_steps is not None and seen.average_steps > pool.band_high_steps:
        where = "over"
    tone = "warn" if where == "under" else "plain"
    return Tile("Average freeness", steps(seen.average_steps), "steps", f"{where} the {band}", tone)


def _patience(now: ScalingNow, pool: Pool, at: datetime) -> Tile:
    """For how long the average has been outside the band, and what it waits for."""
    if now.is_late or now.mode is ScalingMode.OFF:
        return Tile("Outside the band", DASH, "", "nobody checks")
    for since, word, after_s, blocked in (
        (now.under_since, "Under the band", pool.grow_after_s, now.grow_blocked_until),
        (now.over_since, "Over the band", pool.shrink_after_s, now.shrink_blocked_until),
    ):
        if since is not None:
            rest = f", pauses {_ago(at, blocked)}" if blocked else ""
            return Tile(word, _ago(since, at), "", f"acts after {_for(after_s)}{rest}")
    paused = now.shrink_blocked_until
    rest = f"no shrinking for {_ago(at, paused)}" if paused else "no pause"
    return Tile("Outside the band", DASH, "", rest)


def _check(now: ScalingNow, at: datetime) -> Tile:
    if now.mode is ScalingMode.OFF:
        return Tile("Next check", DASH, "", "scaling is off")
    if now.checked_at is None or now.next_check_at is None:
        return Tile("Next check", DASH, "", "none so far", "warn" if now.is_late else "plain")
    context = f"last one {_ago(now.checked_at, at)} ago"
    if now.is_late:
        return Tile("Next check", "late", "", context, "bad")
    return Tile("Next check", _ago(at, now.next_check_at), "", context)


def way_row(one: OnItsWay) -> WayRow:
    words = COMES if one.state == "starting" else GOES
    pips = [
        ("done" if number < one.step else "now" if number == one.step else "ahead", word)
        for number, word in enumerate(words)
    ]
    return WayRow(one.instance, one.node, one.state, one.since_unix_s, one.words, pips)


def window_row(window: ScalingWindow, bounds: Bounds) -> WindowRow:
    least, most = window.min_instances, window.max_instances
    return WindowRow(
        window,
        days=days_words(window.weekdays),
        hours=hours_words(window),
        bounds=f"{least} to {most}" if most is not None else f"{least} and more",
        is_in_force=window.is_enabled and bounds.window == window.name,
    )


def days_words(weekdays: int) -> str:
    """Returns "every day", the first and the last of days in a row, or their names."""
    days = [number for number in range(7) if weekdays >> number & 1]
    if len(days) == 7:
        return "every day"
    if len(days) > 2 and days == list(range(days[0], days[-1] + 1)):
        return f"{DAYS[days[0]]}{RANGE}{DAYS[days[-1]]}"
    return ", ".join(DAYS[number] for number in days) or "no day"


def hours_words(window: ScalingWindow) -> str:
    begins, ends = f"{window.begins:%H:%M}", f"{window.ends:%H:%M}"
    if window.begins == window.ends:
        return f"{begins}, a whole day, {window.timezone}"
    night = ", into the next day" if window.ends < window.begins else ""
    return f"{begins}{RANGE}{ends}{night}, {window.timezone}"


def decision_tiles(row: ScalingDecision) -> list[Tile]:
    """Returns the numbers that a decision looked at."""
    average = "idle" if row.is_idle else steps(row.average_steps)
    band = f"band {steps_plain(row.low_steps)}{RANGE}{steps_plain(row.high_steps)}"
    counts = ", ".join(
        f"{count} {word}"
        for count, word in ((row.starting, "starting"), (row.draining, "draining"))
        if count
    )
    change = row_of(row).change
    return [
        Tile("Instances wanted", change, "", f"followed {SIGNALS.get(row.signal, row.signal)}"),
        Tile("Average freeness", average, "steps" if row.average_steps is not None else "", band),
        Tile("Serving", str(row.serving), "", counts or "none starts or drains"),
        Tile("Without a report", str(row.silent), "", "of those that should serve",
             "warn" if row.silent else "plain"),
        Tile("First tokens in time", percent(row.ttft_attainment), "",
             "of the last minutes" if row.ttft_attainment is not None else "did not count"),
        Tile("Mode", row.mode, "", row_of(row).effect.replace(DASH, "nothing to apply")),
    ]  # fmt: skip


def title_of(row: ScalingDecision) -> str:
    told = row_of(row)
    count = told.change
    if row.instances_after == row.instances_before:
        count = plural(row.instances_before, "instance")
    return f"{told.word}: {count}{row.instance and f', {row.instance}'}"


def reason_words(reason: str) -> str:
    """Returns a decision's reason as pages write it."""
    return reason.replace("->", ARROW)


def as_sentence(text: str) -> str:
    """Returns a reason with a capital, unless it begins with a name, and its full stop."""
    first = text.partition(" ")[0]
    return ended(text[:1].upper() + text[1:] if first.isalpha() else text)


def ended(text: str) -> str:
    """Returns a sentence with its full stop."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _ago(since: datetime, until: datetime) -> str:
    """Returns a time between two moments in whole seconds at least, "0 s" for one that is over."""
    return _for(max(0.0, (until - since).total_seconds()))


def _for(seconds: float) -> str:
    if 0 < seconds < 0.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        minutes, rest = divmod(whole, 60)
        return f"{minutes} min {rest} s" if rest and minutes < 10 else f"{minutes} min"
    return f"{whole / 3600:.1f} h"
