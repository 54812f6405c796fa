"""Moves of the live view and of the database are one list."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controlplane.fleet import move_selectors
from controlplane.fleet.models import MigrationRecord
from controlplane.fleet.move_rows import row_of
from controlplane.fleet.move_selectors import (
    AbortCount,
    MigrationFilters,
    aborts_by_reason,
    count_aborts,
    downtime_points,
    migration_get,
    migrations_list,
    migrations_of_request,
)
from migration.report import MoveReport, MoveState
from tests.controlplane.moving_pool import MovingPool, aborted, committed, report_of

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


@pytest.fixture
def pool(db: None, monkeypatch: pytest.MonkeyPatch) -> MovingPool:
    made = MovingPool()
    monkeypatch.setattr(move_selectors, "pool_client", lambda: made)
    return made


def keep(*reports: MoveReport) -> None:
    for report in reports:
        row_of(report, "default").save()


def ids(limit: int = 50, **filters: Any) -> list[str]:
    return [m.migration_id for m in migrations_list(MigrationFilters(**filters), limit).moves]


def ago(seconds: float) -> float:
    return time.time() - seconds


def test_live_moves_and_rows_are_merged_newest_first_each_once(pool: MovingPool) -> None:
    keep(
        committed("old", started_unix_s=ago(60)),
        report_of("both", state=MoveState.ASKED, started_unix_s=ago(20)),
    )
    pool.view.apply(report_of("both", state=MoveState.PAUSED, started_unix_s=ago(20)))
    pool.view.apply(report_of("fresh", started_unix_s=ago(1)))
    page = migrations_list(MigrationFilters(), 50)
    assert [m.migration_id for m in page.moves] == ["fresh", "both", "old"]
    assert page.moves[1].state is MoveState.PAUSED, "the live view knows more"
    assert page.left_out == 0


def test_what_is_left_out_is_counted(pool: MovingPool) -> None:
    keep(*(committed(f"m{i}", started_unix_s=ago(100 - i)) for i in range(5)))
    pool.view.apply(report_of("live"))
    page = migrations_list(MigrationFilters(), 2)
    assert [m.migration_id for m in page.moves] == ["live", "m4"]
    assert page.left_out == 4


def test_filters_mean_the_same_for_live_moves_and_rows(pool: MovingPool) -> None:
    keep(
        committed("row", source="i-03", request_id="r9", started_unix_s=ago(300)),
        aborted("lost", "peer_lost", started_unix_s=ago(200)),
    )
    pool.view.apply(committed("live", destination="i-03", request_id="r9", started_unix_s=ago(9)))
    pool.view.apply(report_of("on", started_unix_s=ago(3)))
    assert ids(instance="i-03") == ["live", "row"]
    assert ids(request_id="r9") == ["live", "row"]
    assert ids(state="committed") == ["live", "row"]
    assert ids(state="going_on") == ["on"]
    assert ids(abort_code="peer_lost") == ["lost"]
    assert ids(since=datetime.now(UTC) - timedelta(seconds=250)) == ["on", "live", "lost"]
    assert [m.migration_id for m in migrations_of_request("r9")] == ["live", "row"]


def test_a_row_that_is_behind_the_live_view_is_not_found_by_its_old_state(
    pool: MovingPool,
) -> None:
    keep(report_of("m1", state=MoveState.ASKED))
    pool.view.apply(committed("m1"))
    assert ids(state="asked") == []
    assert ids(state="committed") == ["m1"]


def test_an_end_in_the_database_counts_more_than_a_live_move_that_stands_still(
    pool: MovingPool,
) -> None:
    keep(aborted("m1", "peer_lost"))
    pool.view.apply(report_of("m1"))
    assert ids(state="aborted") == ["m1"]
    assert ids(state="going_on") == []
    detail = migration_get("m1")
    assert detail is not None
    assert (detail.move.abort_code, detail.is_live) == ("peer_lost", False)


def test_a_detail_comes_from_the_live_view_first_then_from_its_row(pool: MovingPool) -> None:
    keep(committed("row"), report_of("both", state=MoveState.ASKED))
    pool.view.apply(report_of("both", tokens_at_pause=600))
    both, row = migration_get("both"), migration_get("row")
    assert both is not None
    assert both.is_live
    assert both.report.tokens_at_pause == 600
    assert both.age_s < 60
    assert row is not None
    assert not row.is_live
    assert row.report == committed("row", **_times(row.report)), "nothing of it is lost in the row"
    assert migration_get("nobody") is None


def test_a_move_that_goes_on_grows_older_and_one_that_ended_does_not(pool: MovingPool) -> None:
    pool.view.apply(report_of("on", started_unix_s=ago(3)))
    pool.view.apply(committed("done", started_unix_s=ago(30)))
    on, done = migrations_list(MigrationFilters(), 50).moves
    assert on.goes_on
    assert on.total_ms >= 3000
    assert (done.total_ms, done.stages, done.sent_bytes) == (60.0, 2, 4224)


def test_aborts_are_counted_by_reason_the_most_frequent_first(pool: MovingPool) -> None:
    keep(
        aborted("a", "no_blocks", started_unix_s=ago(3)),
        aborted("b", "timed_out", started_unix_s=ago(2)),
        aborted("c", "no_blocks", started_unix_s=ago(1), abort_reason="the newest"),
        committed("d"),
    )
    assert aborts_by_reason(LONG_AGO) == (
        AbortCount("no_blocks", 2, "the newest"),
        AbortCount("timed_out", 1, "i-02 had 12 free blocks and needed 41"),
    )
    assert aborts_by_reason(datetime.now(UTC)) == ()


def test_counting_keeps_the_order_of_equals_by_name() -> None:
    assert [a.abort_code for a in count_aborts([("b", ""), ("a", "")])] == ["a", "b"]


def test_the_scatter_has_committed_moves_that_paused_a_stream(pool: MovingPool) -> None:
    keep(
        committed("m1", tokens_at_start=1024, downtime_ms=8.5),
        committed("queued", is_queued=True, downtime_ms=None),
        aborted("m2"),
    )
    (point,) = downtime_points(LONG_AGO)
    assert (point.migration_id, point.tokens, point.downtime_ms) == ("m1", 1024, 8.5)


def test_a_list_asks_the_database_three_times_however_long_it_is(
    pool: MovingPool, django_assert_num_queries: Any
) -> None:
    keep(*(committed(f"m{i}") for i in range(30)))
    pool.view.apply(report_of("live"))
    with django_assert_num_queries(3):
        migrations_list(MigrationFilters(), 50)
    assert MigrationRecord.objects.count() == 30


def _times(report: MoveReport) -> dict[str, float]:
    return {"started_unix_s": report.started_unix_s, "at_unix_s": report.at_unix_s}
