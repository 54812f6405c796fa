"""Moves in flight: rows, counts, events and the topic that carries them."""

import json
from dataclasses import replace

import pytest

from controlplane.fleet import live_moves, tiles
from controlplane.fleet.live_moves import counts_of, merged_events, move_events, move_row, move_rows
from controlplane.fleet.picture import EventRow
from migration.report import MoveReport, MoveState
from tests.web import moves
from tests.web.conftest import FakeView, FakeWatch
from web import messages
from web.live import delta_of, known_topics, snapshot_of, table_of

NOW_S = moves.STARTED_UNIX_S


def test_a_row_says_what_the_move_does() -> None:
    report = moves.going_on(100.0)
    row = move_row(report, report.at_unix_s)
    assert row.line == "Copy 1 · 132 MB sent · 163 blocks left"
    assert (row.source, row.destination, row.took_s, row.tone) == ("i-02", "i-03", None, "plain")


@pytest.mark.parametrize(
    ("report", "pips"),
    [
        (moves.bare(MoveState.ASKED), "naaaa"),
        (moves.going_on(3.0), "naaaa"),
        (moves.going_on(100.0), "dnaaa"),
        (moves.going_on(348.0), "ddnaa"),
        (moves.going_on(365.0), "dddna"),
        (replace(moves.going_on(365.0), state=MoveState.COMMITTING), "ddddn"),
        (moves.committed(), "ddddd"),
        (moves.aborted(), "dxaaa"),
        (moves.queued(), "ddd"),
        (replace(moves.queued(), state=MoveState.ABORTED, paused_ms=None), "xaa"),
    ],
)
def test_steps_are_done_now_or_ahead(report: MoveReport, pips: str) -> None:
    assert move_row(report, report.at_unix_s).pips == pips


@pytest.mark.parametrize("report", list(moves.every_kind()), ids=lambda r: f"{r.state}-{r.seq}")
def test_every_report_has_a_row_that_can_be_sent(report: MoveReport) -> None:
    row = move_row(report, report.at_unix_s)
    assert row.line
    json.dumps(row, allow_nan=False)


def test_an_ended_move_stays_five_seconds_with_its_result() -> None:
    done, gone = moves.committed(), moves.aborted()
    at_s = done.at_unix_s
    assert move_rows([done], at_s + 4.9)["mig-1"].line == "moved, 30 ms"
    assert move_rows([done], at_s + 5.1) == {}
    line = move_row(gone, gone.at_unix_s).line
    assert line == "aborted: i-03 had 12 free blocks and needed 41; went on at i-02"


def test_an_ended_row_keeps_its_time() -> None:
    assert move_row(moves.committed(), NOW_S + 3).took_s == 0.37


def test_a_move_that_nobody_reports_says_so() -> None:
    row = move_row(moves.going_on(100.0), NOW_S + 12.1)
    assert row.line == "Copying · no report for 12 s"
    assert row.tone == "warn"


def test_the_rows_are_bounded() -> None:
    many = [replace(moves.going_on(50.0), migration_id=f"m{i}") for i in range(99)]
    assert len(move_rows(many, NOW_S)) == live_moves.ROWS_MAX


def test_counts_are_of_the_last_five_minutes() -> None:
    old = replace(moves.committed(migration_id="old"), at_unix_s=NOW_S - 301)
    every = [old, moves.committed(), moves.aborted(), moves.going_on(50.0)]
    counts = counts_of([*every[:3], replace(every[3], migration_id="now")], NOW_S + 1)
    assert (counts.committed, counts.aborted, counts.going_on) == (1, 1, 1)
    assert (counts.moves_out("i-02"), counts.moves_in("i-03")) == (1, 1)
    assert (counts.moves_in("i-02"), counts.moves_out("i-09")) == (0, 0)
    assert counts.waits_ms == (29.8,)


def test_the_tile_counts_what_moved() -> None:
    counts = counts_of([moves.committed(), moves.aborted()], NOW_S + 1)
    tile = tiles._moves(counts)
    assert (tile.value, tile.context) == ("1", "1 aborted, longest wait 30 ms")
    assert tiles._moves(live_moves.MoveCounts()).context == "none under way"


def test_moves_between_the_same_two_are_one_event() -> None:
    several = moves.several(NOW_S)
    events = move_events(several)
    grouped = events["move/old-0"]
    assert grouped.headline == "i-02 → i-03: 6 moves"
    assert grouped.detail.startswith("i-02 -25.1 is under 48")
    assert grouped.link == "/migrations/?instance=i-02"
    single = events["move/mig-1"]
    assert single.headline == "req-8f2c41 moved from i-02 to i-03"
    assert single.link == "/migrations/mig-1/"
    assert single.detail.endswith("Its reader waited 30 ms.")


def test_a_long_id_does_not_fill_the_list() -> None:
    move = replace(moves.committed(), request_id="chatcmpl-47b8454c82bd417fa602f62539b1e07c")
    [event] = move_events([move]).values()
    assert event.headline == "chatcmpl-47b…1e07c moved from i-02 to i-03"


def test_an_aborted_move_is_an_event_of_its_own() -> None:
    event = move_events([moves.aborted()])["move/mig-2"]
    assert event.headline == "Move of req-77ab02 aborted"
    assert "12 free blocks" in event.detail
    assert event.detail.endswith("It went on at i-02; its reader saw nothing.")
    assert event.severity == "info"


def test_a_reader_who_stood_still_did_see_something() -> None:
    paused = replace(moves.aborted(), paused_ms=170.0)
    assert "saw nothing" not in move_events([paused])["move/mig-2"].detail


def test_a_request_that_ended_did_not_go_on() -> None:
    ended = replace(moves.aborted(), abort_code="request_finished", abort_reason="it finished")
    assert move_events([ended])["move/mig-2"].detail == "it finished."
    assert move_row(ended, ended.at_unix_s).line == "aborted: it finished"


def test_a_group_grows_under_its_first_key() -> None:
    several = moves.several(NOW_S)
    before, after = move_events(several[:3]), move_events(several[:5])
    assert list(before) == list(after) == ["move/old-0"]
    assert after["move/old-0"].headline.endswith("5 moves")


def test_events_of_pool_and_moves_are_one_list_newest_first() -> None:
    pool = {
        "a": EventRow(NOW_S, "k", "a", "", "", "info"),
        "b": EventRow(5.0, "k", "b", "", "", ""),
    }
    merged = merged_events(pool, move_events([moves.committed()]), 2)
    assert list(merged) == ["move/mig-1", "a"]


def test_the_topic_carries_the_moves(view: FakeView, watch: FakeWatch) -> None:
    assert "moves" in known_topics("default")
    view.report(3)
    now_s = watch.observer._clock()
    view.move(replace(moves.going_on(100.0, started_unix_s=now_s), at_unix_s=now_s))
    picture = watch.observer.look()
    table = table_of(picture, "moves")
    assert list(table) == ["mig-1"]
    assert len(table["mig-1"]) == len(messages.FIELDS["moves"])
    view.move(replace(moves.going_on(200.0, started_unix_s=now_s), at_unix_s=now_s))
    watch.observer._picture = None
    delta = delta_of(watch.observer.look(), "moves", table, picture.version)
    assert delta is not None
    (mask, *changed) = delta["rows"]["mig-1"]
    line = messages.FIELDS["moves"].index("line")
    assert mask == 1 << line
    assert changed == ["Copy 1 · 275 MB sent · 95 blocks left"]
    view.moves.clear()
    watch.observer._picture = None
    gone = delta_of(watch.observer.look(), "moves", table, picture.version)
    assert gone is not None
    assert gone["gone"] == ["mig-1"]
    json.dumps(snapshot_of(picture, "moves"), allow_nan=False)


def test_instances_count_what_came_and_left(view: FakeView, watch: FakeWatch) -> None:
    view.report(3)
    view.move(*moves.several())
    rows = watch.observer.look().rows
    assert (rows["i-02"].moves_in, rows["i-02"].moves_out) == (0, 8)
    assert (rows["i-03"].moves_in, rows["i-01"].moves_in) == (7, 1)
