"""The drawings of a move: where everything stands, and what is not drawn."""

from dataclasses import replace
from itertools import pairwise

import pytest

from migration.report import MoveReport, MoveState, StageReport
from tests.web import moves
from web import gantt, gaps, move_spans
from web.gantt import Bar, Plot, nice_step

MOVE = moves.committed()
EVERY = list(moves.every_kind())


def bars_of(plot: Plot, place: int) -> dict[str, Bar]:
    return {bar.title.partition(" · ")[0]: bar for bar in plot.lanes[place].bars}


@pytest.mark.parametrize("report", EVERY, ids=lambda r: f"{r.migration_id}-{r.state}-{r.seq}")
def test_every_report_can_be_drawn_inside_its_plot(report: MoveReport) -> None:
    for plot in (gantt.overview(report), gantt.enlarged(report)):
        for lane in plot.lanes if plot else ():
            for bar in lane.bars:
                assert 0 <= bar.x <= 100
                assert bar.width > 0
                assert bar.x + bar.width <= 100 + gantt.BAR_MIN
            assert all(0 <= dot.x <= 100 for dot in lane.dots)
    gaps.gap_plot(report)


def test_places_are_times() -> None:
    plot = gantt.overview(MOVE)
    end_ms = move_spans.lasts_ms(MOVE) * 1.02
    copy = bars_of(plot, 1)["Copy 1"]
    assert copy.x == pytest.approx(100 * 6 / end_ms, abs=0.01)
    assert copy.width == pytest.approx(100 * 335 / end_ms, abs=0.02)
    assert plot.pause is not None
    assert plot.pause.x == pytest.approx(100 * 363 / end_ms, abs=0.01)
    assert plot.pause.text == "9 ms"


def test_lanes_stand_below_each_other() -> None:
    plot = gantt.overview(MOVE)
    assert [y for y, _ in plot.rows] == [24, 56, 88, 120, 152]
    assert plot.height == 184


def test_a_label_stands_inside_only_if_it_fits() -> None:
    plot = gantt.overview(MOVE)
    for lane in plot.lanes:
        for bar in lane.bars:
            if bar.anchor == "in":
                assert gantt.label_px(bar.label) <= bar.width * gantt.PLOT_MIN_PX / 100
    second = bars_of(plot, 1)["Copy 2"]
    assert (second.label, second.anchor) == ("2", "after")


def test_labels_beside_bars_cover_no_bar_and_no_other_label() -> None:
    for report in EVERY:
        for lane in gantt.overview(report).lanes:
            spans = []
            for bar in lane.bars:
                spans.append((bar.x, bar.x + bar.width))
                wide = 100 * gantt.label_px(bar.label) / gantt.PLOT_MIN_PX
                if bar.anchor == "after":
                    spans.append((bar.x + bar.width, bar.x + bar.width + wide))
                elif bar.anchor == "before":
                    spans.append((bar.x - wide, bar.x))
            spans.sort()
            # Bars of the least width may touch the next one.
            assert all(b[0] >= a[1] - gantt.BAR_MIN - 0.01 for a, b in pairwise(spans))


def test_the_axis_of_a_move_that_goes_on_doubles_when_it_is_full() -> None:
    widths = [
        gantt.overview(moves.going_on(at)).lanes[0].bars[0].width
        for at in (10.0, 49.0, 51.0, 180.0)
    ]
    assert widths == pytest.approx([100 * 10 / 50, 100 * 49 / 50, 51.0, 90.0], abs=0.02)


def test_a_clock_that_was_set_back_turns_no_drawing_around() -> None:
    report = moves.going_on(365.0)
    plot = gantt.enlarged(replace(report, at_unix_s=report.started_unix_s - 60))
    assert plot is not None
    assert len(plot.ticks) > 1
    assert gantt.overview(replace(report, at_unix_s=0.0)).lanes[0].bars[0].width > 60


def test_bars_of_a_move_that_goes_on_end_where_the_report_ends() -> None:
    report = moves.going_on(80.0)
    plot = gantt.overview(report)
    source = plot.lanes[0].bars[0]
    assert source.x + source.width == pytest.approx(80.0, abs=0.1)
    assert plot.lanes[3].bars[0].kind == "reserved"
    assert plot.pause is None
    assert gantt.enlarged(report) is None


def test_a_copy_that_goes_on_has_no_rate() -> None:
    (bar,) = gantt.overview(moves.going_on(100.0)).lanes[1].bars
    assert "GB/s" not in bar.title
    assert "going on" in bar.title
    done = bars_of(gantt.overview(MOVE), 1)["Copy 1"]
    assert done.title.endswith("335 ms · 1.41 GB/s")


def test_a_dot_a_token_from_the_start_on() -> None:
    dots = gantt.overview(MOVE).lanes[4].dots
    assert sum(d.kind == "source" for d in dots) == sum(t >= 0 for t in MOVE.source_token_ms)
    last = [d for d in dots if d.kind == "source"][-1]
    assert last.title.startswith("token 211: ")
    assert next(d for d in dots if d.kind == "destination").title.startswith("token 212: ")


def test_token_times_that_were_not_kept_are_not_drawn_as_silence() -> None:
    times = tuple(1000.0 + 20 * i for i in range(24))
    report = replace(moves.going_on(1500.0), source_token_ms=times)
    (bar,) = gantt.overview(report).lanes[4].bars
    assert bar.kind == "untold"
    assert bar.label == "only the last 24 times are kept"


def test_the_enlarged_pause_has_a_token_on_either_side() -> None:
    plot = gantt.enlarged(MOVE)
    assert plot is not None
    assert plot.pause is not None
    assert plot.pause.width > 10
    kinds = {dot.kind for dot in plot.lanes[3].dots}
    assert kinds == {"source", "destination"}
    assert plot.lanes[0].bars[0].label == "step for token 211"
    assert plot.lanes[2].bars[0].label == "step for token 212"
    assert [bar.kind for bar in plot.lanes[1].bars][-2:] == ["last", "commit"]


def test_an_aborted_move_ends_with_a_cross_and_goes_on_at_its_source() -> None:
    plot = gantt.overview(moves.aborted())
    cross = plot.lanes[1].bars[-1]
    assert cross.label.startswith("✕")
    assert "12 free blocks" in cross.title
    assert plot.lanes[0].bars[-1].label == "goes on"
    assert all(bar.kind != "destination" for bar in plot.lanes[3].bars)


def test_a_queued_move_has_no_copy_and_no_pause_to_enlarge() -> None:
    plot = gantt.overview(moves.queued())
    assert plot.lanes[1].bars == ()
    assert plot.lanes[0].bars[0].kind == "queued"
    assert plot.pause is None
    assert gantt.enlarged(moves.queued()) is None


def test_the_handshake_is_from_question_to_answer() -> None:
    lane = gantt.overview(MOVE).lanes[2]
    assert [bar.kind for bar in lane.bars] == ["handshake", "handshake", "commit"]
    asked = gantt.overview(moves.going_on(3.0)).lanes[2].bars
    assert [bar.label for bar in asked] == ["reserve, no answer yet"]


def test_the_longest_gap_is_the_moves() -> None:
    plot = gaps.gap_plot(MOVE)
    assert plot is not None
    assert len(plot.bars) == len(MOVE.source_token_ms) + len(MOVE.destination_token_ms) - 1
    assert [bar.kind for bar in plot.bars].count("move") == 1
    assert plot.longest is not None
    assert plot.longest.text == "token 212: 29.8 ms"
    assert max(plot.bars, key=lambda bar: bar.height).kind == "move"
    assert plot.lines[0].text == "0"


def test_gaps_need_two_tokens_and_clocks_that_agree() -> None:
    assert gaps.gap_plot(moves.bare(MoveState.COPYING)) is None
    assert gaps.gap_plot(replace(MOVE, destination_token_ms=(10.0,))) is None


@pytest.mark.parametrize(
    ("at_least", "step"),
    [(0.3, 0.5), (1.0, 1.0), (1.2, 2.0), (4.4, 5.0), (42.0, 50.0), (99.0, 100.0)],
)
def test_steps_of_an_axis_are_round(at_least: float, step: float) -> None:
    assert nice_step(at_least) == pytest.approx(step)


def test_a_long_move_of_many_copies_stays_readable() -> None:
    stages = tuple(StageReport(i, i == 9, 1000.0 * i, 900.0, 500, 10**9) for i in range(1, 10))
    report = replace(MOVE, stages=stages, paused_ms=9000.0, committed_ms=9950.0, ended_ms=9950.0)
    plot = gantt.overview(report)
    assert len(plot.ticks) <= gantt.TICKS_MAX + 1
    assert all(bar.label for bar in plot.lanes[1].bars)
