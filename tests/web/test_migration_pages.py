"""The pages of moves: what they say of every kind of report, and what they do not claim."""

import re
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from django.test import Client

from controlplane.fleet.move_selectors import AbortCount, DowntimePoint
from migration.report import MoveReport, MoveState
from tests.web import moves
from tests.web.conftest import FakeView, FakeWatch
from tests.web.reading import page, text_of
from web import move_words
from web.scatter import scatter


@pytest.fixture
def shown(
    view: FakeView, watch: FakeWatch, operators_client: Client
) -> Callable[[MoveReport], str]:
    """Shows the page of a move."""

    def show(report: MoveReport) -> str:
        view.move(report)
        return page(operators_client, f"/migrations/{report.migration_id}/")

    return show


def test_the_page_of_a_move_says_what_is_known(shown: Callable[[MoveReport], str]) -> None:
    text = text_of(shown(moves.committed()))
    assert "req-8f2c41 moved from i-02 to i-03 Committed" in text
    assert "The reader waited 29.8 ms for the next token; 20.2 ms is usual." in text
    assert "Why it moved" in text
    assert "one long request fills i-02" in text
    assert "21 ms of it fusing blocks" in text


def test_nothing_is_claimed_that_nobody_checked(shown: Callable[[MoveReport], str]) -> None:
    text = text_of(shown(moves.committed()))
    for claim in ("identical", "Nothing was lost", "repeated", "success"):
        assert claim not in text


@pytest.mark.parametrize("report", list(moves.every_kind()), ids=lambda r: f"{r.state}-{r.seq}")
def test_every_report_has_a_page(report: MoveReport, shown: Callable[[MoveReport], str]) -> None:
    html = shown(report)
    assert "None" not in text_of(html)
    assert not re.search(r"\sstyle=|\son[a-z]+=", html)


def test_a_move_that_goes_on_asks_for_more_and_an_ended_one_does_not(
    view: FakeView, watch: FakeWatch, operators_client: Client
) -> None:
    now_s = time.time()
    report = replace(moves.going_on(100.0, started_unix_s=now_s), at_unix_s=now_s)
    view.move(report)
    part = page(operators_client, "/migrations/mig-1/", hx_request="true")
    assert "<html" not in part
    assert 'data-refresh="/migrations/mig-1/"' in part
    assert "Cancel the move" in part
    view.move(moves.committed(started_unix_s=now_s))
    assert "data-refresh" not in page(operators_client, "/migrations/mig-1/", hx_request="true")


def test_a_paused_move_cannot_be_cancelled_any_more(shown: Callable[[MoveReport], str]) -> None:
    now_s = time.time()
    report = replace(moves.going_on(365.0, started_unix_s=now_s), at_unix_s=now_s)
    assert "Cancel the move" not in shown(report)


def test_only_blocks_that_arrived_count_as_sent(shown: Callable[[MoveReport], str]) -> None:
    text = text_of(shown(moves.going_on(100.0, started_unix_s=time.time())))
    assert "132 MB 63 blocks" in text
    assert "Why it moves" in text


def test_a_move_that_fell_silent_is_not_shown_as_alive(shown: Callable[[MoveReport], str]) -> None:
    text = text_of(shown(moves.going_on(100.0, started_unix_s=time.time() - 30)))
    assert re.search(r"No report of it for \d+ s: what became of it is not known here", text)


def test_an_aborted_move_stayed_and_says_what_was_freed(
    shown: Callable[[MoveReport], str],
) -> None:
    text = text_of(shown(moves.aborted()))
    assert "req-77ab02 stayed on i-02 Aborted" in text
    assert "i-03 had 12 free blocks and needed 41. It went on at i-02" in text
    assert "its reader noticed nothing. i-03 freed the 227 blocks" in text


def test_a_dead_destination_freed_nothing() -> None:
    words = move_words.words_of(replace(moves.aborted(), abort_code="peer_lost"), 0.0)
    assert "freed" not in words.sentence
    assert "went with i-03" in words.sentence


def test_a_request_that_ended_first_did_not_stay() -> None:
    ended = replace(moves.aborted(), abort_code="request_finished", abort_reason="it finished")
    words = move_words.words_of(ended, 0.0)
    assert words.verb == "ended on"
    assert "went on" not in words.sentence


def test_of_a_move_whose_source_was_lost_nothing_more_is_claimed() -> None:
    told = replace(
        moves.aborted(), ended_ms=None, abort_code="peer_lost", abort_reason="i-02 was lost"
    )
    words = move_words.words_of(told, 0.0)
    assert words.verb == "did not move from"
    assert words.sentence == "Not moved: i-02 was lost."
    ended = replace(moves.committed(), ended_ms=None, committed_ms=None, downtime_ms=None)
    assert move_words.words_of(ended, 0.0).sentence == "How long its reader waited was not told."


def test_who_had_no_room_is_named() -> None:
    report = replace(moves.aborted(), abort_reason="5 free, 12 needed")
    assert "i-03 had no room: 5 free, 12 needed." in move_words.words_of(report, 0.0).sentence


def test_a_queued_request_moved_without_a_copy(shown: Callable[[MoveReport], str]) -> None:
    text = text_of(shown(moves.queued()))
    assert "It was waiting in the queue, so it moved without a copy." in text
    assert "nobody decodes," not in text


def test_blocks_of_the_destinations_cache_are_told(shown: Callable[[MoveReport], str]) -> None:
    text = text_of(shown(replace(moves.committed(), cached_blocks=12)))
    assert "12 blocks of i-03's cache, not sent" in text
    assert "12 more were cached" in text


def test_what_a_report_says_is_text_not_html(shown: Callable[[MoveReport], str]) -> None:
    evil = "</script><script>alert(1)</script>"
    html = shown(replace(moves.aborted(), reason=evil, abort_reason=evil, tenant=evil))
    assert "<script>alert" not in html


def test_an_unknown_move_is_not_here(watch: FakeWatch, operators_client: Client) -> None:
    assert operators_client.get("/migrations/nothing/").status_code == 404


# The list


def test_without_moves_the_list_says_when_they_appear(
    watch: FakeWatch, operators_client: Client
) -> None:
    text = text_of(page(operators_client, "/migrations/"))
    assert "No migrations yet" in text
    assert "No move was aborted in the last 24 h" in text


def test_the_list_has_the_newest_first_and_filters(
    view: FakeView, watch: FakeWatch, operators_client: Client
) -> None:
    view.move(*moves.several())
    html = page(operators_client, "/migrations/")
    ids = re.findall(r'href="/migrations/([a-z]+-\d)/"', html)
    assert ids[0] == "mig-1"
    assert len(ids) == 9
    aborted = page(operators_client, "/migrations/?state=aborted")
    assert re.findall(r'href="/migrations/([a-z]+-\d)/"', aborted) == ["mig-2"]
    there = page(operators_client, "/migrations/?instance=i-01")
    assert re.findall(r'href="/migrations/([a-z]+-\d)/"', there) == ["mig-3"]
    assert 'value="i-01"' in there
    nothing = text_of(page(operators_client, "/migrations/?instance=nowhere"))
    assert "No move matches the filter" in nothing
    assert "No migrations yet" not in nothing


def test_the_scatter_begins_at_zero_and_holds_all() -> None:
    points = [DowntimePoint(f"m{i}", 100 * i, 10.0 + i, None) for i in range(20)]  # type: ignore[arg-type]
    plot = scatter(points)
    assert plot is not None
    assert len(plot.dots) == 20
    assert all(0 <= d.x <= 100 and 0 <= d.y <= 100 for d in plot.dots)
    assert (plot.x_ticks[0].text, plot.y_ticks[0].text) == ("0", "0")
    assert plot.dots[0].y > plot.dots[-1].y
    assert scatter([]) is None


def test_aborts_are_counted_by_reason(
    watch: FakeWatch, operators_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = (AbortCount("no_blocks", 7, "i-03 had 12 free blocks"),)
    monkeypatch.setattr("controlplane.fleet.move_selectors.aborts_by_reason", lambda since: found)
    html = page(operators_client, "/migrations/")
    assert "no blocks 7 i-03 had 12 free blocks" in text_of(html)
    assert "?state=aborted&amp;reason=no_blocks" in html


def test_states_have_their_word() -> None:
    words = {s: move_words.words_of(moves.bare(s), 0.0).verb for s in MoveState}
    assert words[MoveState.COMMITTED] == "moved from"
    assert words[MoveState.ABORTED] == "did not move from"
    assert {words[s] for s in MoveState if not s.is_end} == {"moves from"}
