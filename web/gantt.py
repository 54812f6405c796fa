"""Geometry of one move's drawings: who decoded, what was sent, when the reader got a token. Pure.

Places are percent of the plot's width, so that the browser needs no layout of ours; whether a label
fits inside its bar is judged at the narrowest width at which a plot is shown (below that its box
scrolls). Times are a report's: milliseconds since the move's start.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from migration.report import MoveReport
from web import move_spans
from web.move_spans import Span, elapsed_ms, lasts_ms

PLOT_MIN_PX: Final = 640
PAUSE_MIN_PX: Final = 470
CHAR_PX: Final = 7.3
NARROW_PX: Final = 4.4
WIDE_PX: Final = 11.0
"""Widths of the labels' characters at 11.5 px in the widest fallback font (DejaVu Sans)."""
NARROW: Final = frozenset(" .,·:'()/ijlftrI1")
WIDE: Final = frozenset("mwMW→✕")
LABEL_PAD_PX: Final = 10
BAR_MIN: Final = 0.35
"""Percent: shorter ones are drawn this wide, so that they can be seen."""
LIVE_FROM_MS: Final = 50.0
TICKS_MAX: Final = 10
TICKS_PX: Final = 24
LANE_PX: Final = 32


class Bar(NamedTuple):
    kind: str
    x: float
    width: float
    label: str
    anchor: str
    """`in`, `after` or `before` the bar; empty without a label."""
    title: str

    @property
    def label_x(self) -> float:
        return round(self.x + self.width, 2) if self.anchor == "after" else self.x


class Dot(NamedTuple):
    kind: str
    x: float
    title: str


class Lane(NamedTuple):
    name: str
    bars: tuple[Bar, ...]
    dots: tuple[Dot, ...] = ()


class Tick(NamedTuple):
    x: float
    text: str


class Box(NamedTuple):
    x: float
    width: float
    text: str

    @property
    def middle(self) -> float:
        return round(self.x + self.width / 2, 2)


class Plot(NamedTuple):
    lanes: tuple[Lane, ...]
    ticks: tuple[Tick, ...]
    pause: Box | None
    lane_px: int = LANE_PX

    @property
    def rows(self) -> list[tuple[int, Lane]]:
        """Lanes with where each begins, in px from the top."""
        return [(TICKS_PX + i * self.lane_px, lane) for i, lane in enumerate(self.lanes)]

    @property
    def height(self) -> int:
        return TICKS_PX + len(self.lanes) * self.lane_px


class Axis(NamedTuple):
    start_ms: float
    end_ms: float
    plot_px: int
    """The narrowest width at which it is shown."""

    def x(self, at_ms: float) -> float:
        share = (at_ms - self.start_ms) / (self.end_ms - self.start_ms)
        return round(100 * min(1.0, max(0.0, share)), 2)

    def percent(self, px: float) -> float:
        """Returns what so many px are at the narrowest."""
        return 100 * px / self.plot_px

    def holds(self, at_ms: float) -> bool:
        return self.start_ms <= at_ms <= self.end_ms


def overview(report: MoveReport) -> Plot:
    """Draws the whole move in five lanes. The axis of one that goes on doubles when it is full."""
    axis = Axis(0.0, _axis_end_ms(report), PLOT_MIN_PX)
    untold = move_spans.unknown_tokens(report)
    lanes = (
        Lane(f"Source {report.source}", bars(move_spans.source(report), axis)),
        Lane("Transfer", bars(move_spans.transfer(report), axis)),
        Lane("Handshake", bars(move_spans.handshake(report), axis)),
        Lane(f"Destination {report.destination}", bars(move_spans.destination(report), axis)),
        Lane("Reader's stream", bars(untold, axis), _dots(report, axis)),
    )
    return Plot(lanes, ticks(axis), _pause(report, axis))


def enlarged(report: MoveReport) -> Plot | None:
    """Draws the pause and a token on either side of it; None before there is a pause."""
    window = move_spans.pause_window(report)
    if window is None:
        return None
    axis = Axis(*window, PAUSE_MIN_PX)
    last_stages = [
        *(s for s in move_spans.transfer(report, is_short=True) if s.end_ms >= axis.start_ms),
        *(s for s in move_spans.handshake(report, is_short=True) if s.kind == "commit"),
    ]
    lanes = (
        Lane("Source", bars(move_spans.last_step(report), axis)),
        Lane("Transfer", bars(last_stages, axis)),
        Lane("Destination", bars(move_spans.first_step(report), axis)),
        Lane("Reader", (), _dots(report, axis)),
    )
    return Plot(lanes, ticks(axis), _pause(report, axis))


def ticks(axis: Axis) -> tuple[Tick, ...]:
    """Returns round times inside the axis, ten at most."""
    step = nice_step((axis.end_ms - axis.start_ms) / TICKS_MAX)
    first = -int(-axis.start_ms // step)
    last = int(axis.end_ms // step)
    return tuple(Tick(axis.x(i * step), f"{i * step:,.10g}") for i in range(first, last + 1))


def nice_step(at_least: float) -> float:
    """Returns the smallest of 1, 2, 5 times a power of ten that is not below `at_least` (> 0)."""
    assert at_least > 0, "an axis goes from left to right"
    size = 1.0
    while size > at_least:
        size /= 10
    while size * 10 <= at_least:
        size *= 10
    return next(n * size for n in (1, 2, 5, 10) if n * size >= at_least)


def _axis_end_ms(report: MoveReport) -> float:
    if report.state.is_end:
        return max(lasts_ms(report) * 1.02, 1.0)
    end_ms = LIVE_FROM_MS
    while end_ms < elapsed_ms(report):
        end_ms *= 2
    return end_ms


def bars(spans: Iterable[Span], axis: Axis) -> tuple[Bar, ...]:
    seen = [s for s in spans if s.end_ms >= axis.start_ms and s.start_ms <= axis.end_ms]
    edges = [(axis.x(s.start_ms), axis.x(s.end_ms)) for s in seen]
    bars = []
    taken: list[tuple[float, float]] = list(edges)
    for span, (x, end) in zip(seen, edges, strict=True):
        width = round(max(end - x, BAR_MIN), 2)
        sizes = [(label, axis.percent(label_px(label))) for label in span.labels]
        label, wide, anchor = _labelled(sizes, x, x + width, taken)
        if anchor in ("after", "before"):
            start = x + width if anchor == "after" else x - wide
            taken.append((start, start + wide))
        bars.append(Bar(span.kind, x, width, label, anchor, span.title))
    return tuple(bars)


def _labelled(
    sizes: Sequence[tuple[str, float]], x: float, end: float, taken: Sequence[tuple[float, float]]
) -> tuple[str, float, str]:
    """Chooses the longest label that fits inside, else one beside the bar that covers nothing.

    `sizes`: labels and their widths in percent. Returns label, width and anchor.
    """
    for label, wide in sizes:
        if wide <= end - x:
            return label, wide, "in"
    for label, wide in sizes:
        if end + wide <= 100 and _is_free(end, end + wide, taken):
            return label, wide, "after"
        if x - wide >= 0 and _is_free(x - wide, x, taken):
            return label, wide, "before"
    return "", 0.0, ""


def _is_free(start: float, end: float, taken: Sequence[tuple[float, float]]) -> bool:
    return all(e <= start + 0.01 or s >= end - 0.01 for s, e in taken)


def label_px(label: str) -> float:
    """Returns the most that a label takes, with the room around it."""
    narrow = sum(c in NARROW for c in label)
    wide = sum(c in WIDE for c in label)
    rest = len(label) - narrow - wide
    return narrow * NARROW_PX + wide * WIDE_PX + rest * CHAR_PX + LABEL_PAD_PX


def _dots(report: MoveReport, axis: Axis) -> tuple[Dot, ...]:
    last = report.output_tokens_at_pause
    times = [("source", at) for at in report.source_token_ms]
    times += [("destination", at) for at in report.destination_token_ms]
    first_number = None if last is None else last - len(report.source_token_ms) + 1
    return tuple(
        Dot(kind, axis.x(at), f"{_token(first_number, i)}{at:.1f} ms")
        for i, (kind, at) in enumerate(times)
        if axis.holds(at)
    )


def _token(first_number: int | None, place: int) -> str:
    return "" if first_number is None else f"token {first_number + place}: "


def _pause(report: MoveReport, axis: Axis) -> Box | None:
    if report.paused_ms is None or report.is_queued:
        return None
    end_ms = move_spans.pause_end_ms(report)
    x = axis.x(report.paused_ms)
    text = f"{end_ms - report.paused_ms:.3g} ms"
    return Box(x, round(max(axis.x(end_ms) - x, BAR_MIN), 2), text)
