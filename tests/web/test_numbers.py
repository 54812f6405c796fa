"""Totals, rates, percentiles, parts and chart points."""

from dataclasses import replace

import pytest

from controlplane.fleet import charts, parts, tiles
from controlplane.fleet.history import Counter, PoolHistory
from controlplane.fleet.latency import LatencyWindow, percentile_ms
from controlplane.fleet.parts import Probes
from controlplane.fleet.picture import InstanceRow, in_order, instance_row
from engine_pool.types import InstanceName
from tests.web import fake_pool

NOW_S = 1_000_000.0
NO_RATES = tiles.Rates(None, None, None, tiles.Latency())
ALL_WELL = Probes(True, NOW_S, True, NOW_S, NOW_S, NOW_S, NOW_S)


def rows_of(count: int) -> dict[str, InstanceRow]:
    return in_order(
        {
            str(status.instance): instance_row(status, load, None, NOW_S)
            for status, load in fake_pool.reports(count, 1, NOW_S)
        }
    )


def test_a_counter_gives_the_growth_of_a_window() -> None:
    counter = Counter()
    for second in range(120):
        counter.add(10, float(second))
    assert counter.rate(10.0, 120.0) == pytest.approx(10, rel=0.1)
    assert counter.grown(60.0, 119.0) == pytest.approx(600, rel=0.05)


def test_a_rate_is_unknown_in_the_first_second() -> None:
    counter = Counter()
    counter.add(10, 5.0)
    assert counter.rate(10.0, 5.5) is None


def test_a_restarted_instance_does_not_count_backwards() -> None:
    history = PoolHistory()
    load = fake_pool.load_of(0, InstanceName("i"), 100, NOW_S)
    history.feed([load], NOW_S)
    history.feed([replace(load, output_tokens_total=load.output_tokens_total + 50)], NOW_S + 1)
    history.feed([replace(load, incarnation="two", output_tokens_total=3)], NOW_S + 2)
    assert history.output_tokens.total == 50


def test_a_step_or_an_empty_batch_is_progress() -> None:
    history = PoolHistory()
    load = fake_pool.load_of(0, InstanceName("i"), 1, NOW_S)
    history.feed([load], NOW_S)
    history.feed([load], NOW_S + 30)
    stuck = history.progress(load.instance, NOW_S + 30)
    assert stuck is not None
    assert stuck.last_step_unix_s == NOW_S
    history.feed([replace(load, steps_total=load.steps_total + 1)], NOW_S + 31)
    moved = history.progress(load.instance, NOW_S + 31)
    assert moved is not None
    assert moved.last_step_unix_s == NOW_S + 31


def test_totals_are_unknown_when_nobody_reports() -> None:
    totals = tiles.totals_of({}, NO_RATES, 2, NOW_S)
    assert (totals.running, totals.used_tokens, totals.output_tokens_per_s) == (None, None, None)
    shown = tiles.tile_rows(totals, {})
    assert shown["running"].value == tiles.DASH
    assert shown["serving"].context == "2 missing"


def test_requests_that_wait_at_the_gateway_are_shown_beside_those_in_engines() -> None:
    rows, rates = rows_of(2), NO_RATES
    plain = tiles.tile_rows(tiles.totals_of(rows, rates, 2, NOW_S), {})["running"].context
    waiting = replace(rates, at_gateway=1234)
    shown = tiles.tile_rows(tiles.totals_of(rows, waiting, 2, NOW_S), {})["running"].context
    assert shown == f"{plain}, 1,234 at the gateway"


def test_stale_reports_are_in_no_sum() -> None:
    rows = rows_of(2)
    fresh = tiles.totals_of(rows, NO_RATES, 2, NOW_S)
    one_stale = {
        name: row._replace(at_unix_s=NOW_S - 60) if name == "i-01" else row
        for name, row in rows.items()
    }
    assert tiles.totals_of(one_stale, NO_RATES, 2, NOW_S).running == rows["i-02"].running
    assert fresh.running == sum(r.running or 0 for r in rows.values())


def test_failing_starting_and_leaving_are_counted_apart() -> None:
    totals = tiles.totals_of(rows_of(8), NO_RATES, 8, NOW_S)
    counts = (totals.serving, totals.failing, totals.starting, totals.leaving)
    assert counts == (4, 1, 1, 2)
    shown = tiles.tile_rows(totals, {})["serving"]
    assert (shown.value, shown.unit, shown.tone) == ("4", "of 8", "bad")


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0"), (0.1234, "0.12"), (18.24, "18.2"), (4812.4, "4,812"), (-25, "−25")],  # noqa: RUF001
)
def test_numbers_have_three_digits(value: float | None, text: str) -> None:
    assert tiles.number(value) == text


def test_a_percentile_lies_inside_its_bucket() -> None:
    buckets = [(0.1, 50.0), (0.2, 100.0), (float("inf"), 100.0)]
    assert percentile_ms(buckets, 0.5) == pytest.approx(100)
    assert percentile_ms(buckets, 0.99) == pytest.approx(198)
    assert percentile_ms([(0.1, 0.0), (float("inf"), 0.0)], 0.5) is None
    assert percentile_ms([(0.1, 0.0), (float("inf"), 3.0)], 0.5) == pytest.approx(100)


def test_the_window_forgets_what_is_older_than_a_minute() -> None:
    state = [((0.1, 0.0), (float("inf"), 0.0))]
    window = LatencyWindow(lambda: state[0])
    assert window.latency(0.0).p99_ms is None
    state[0] = ((0.1, 10.0), (float("inf"), 10.0))
    assert window.latency(10.0).requests == 10
    for second in range(12, 200, 2):
        latest = window.latency(float(second))
    assert latest.requests == 0


@pytest.mark.parametrize(
    ("probes", "headline", "more"),
    [
        (ALL_WELL, "All parts answer.", 0),
        (replace(ALL_WELL, store_answers=False), "The store does not answer", 0),
        (
            replace(ALL_WELL, worker_heartbeat_unix_s=NOW_S - 60, database_answers=False),
            "The database does not answer",
            1,
        ),
        (replace(ALL_WELL, pool_sample_unix_s=NOW_S - 60), "The pool process does not answer", 0),
    ],
)
def test_the_strip_shows_the_worst_part(probes: Probes, headline: str, more: int) -> None:
    rows = rows_of(2)
    judged = parts.parts_of(probes, rows, 2, NOW_S)
    strip = parts.strip_of(judged, rows, 2, NOW_S)
    assert (strip.headline, strip.more) == (headline, more)


def test_what_the_store_would_tell_is_unknown_without_it() -> None:
    judged = parts.parts_of(replace(ALL_WELL, store_answers=False), {}, 0, NOW_S)
    assert {p.key: p.answers for p in judged}["worker"] is None


def test_a_lost_instance_is_in_the_strip() -> None:
    rows = rows_of(8)
    strip = parts.strip_of(parts.parts_of(ALL_WELL, rows, 8, NOW_S), rows, 8, NOW_S)
    assert strip.headline == "1 of 8 instances fails"
    assert strip.detail == "4 of 8 serve."


def test_up_to_sixteen_instances_have_lines_and_more_have_a_spread() -> None:
    assert len(charts.series_names(rows_of(16))) == 16
    assert charts.series_names(rows_of(17)) == charts.SPREAD
    point = charts.live_point(rows_of(40), charts.SPREAD, None, None, NOW_S)
    p10, median, p90, least = (value for value in point.freeness if value is not None)
    assert least <= p10 <= median <= p90


def test_samples_become_points_with_rates_and_gaps() -> None:
    samples = [fake_pool.sample_of(2, seq, NOW_S + at) for seq, at in ((1, 0), (2, 1), (3, 60))]
    capacities = dict.fromkeys(("i-01", "i-02"), fake_pool.CAPACITY_TOKENS)
    points = charts.points_of(samples, ("i-01", "i-02", "gone"), capacities)
    assert points[0].output_tokens_per_s is None
    assert points[1].output_tokens_per_s == pytest.approx(2 * 62, abs=2)
    assert points[2].output_tokens_per_s is None
    assert points[1].freeness[2] is None
    assert 0 < (points[1].used_percent or 0) <= 100
