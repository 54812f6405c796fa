"""The arithmetic of the paper's benchmark: paired ratios, what is saved at equal latency, goals."""

import math

import pytest

from benchmarks.paper_cases import MIXES, Run, all_jobs
from benchmarks.paper_stats import crossing, frontier, geomean, make_row, paired_ratios
from benchmarks.paper_table import instances_saved, knees, verdict
from engine_pool.simulator.scenario import scenario_of


def test_ratios_are_taken_seed_by_seed():
    assert paired_ratios([4.0, 9.0], [2.0, 3.0]) == [2.0, 3.0]


def test_nothing_against_nothing_is_a_draw_and_something_against_nothing_is_won():
    assert paired_ratios([0.0, 5.0], [0.0, 0.0]) == [1.0, math.inf]


def test_a_row_has_the_median_and_the_extremes_of_its_seeds():
    ours = [{"x": 1.0}, {"x": 2.0}, {"x": 4.0}]
    row = make_row("serving", "M-M", 7.3, "x", [{"x": 8.0}] * 3, ours)
    assert (row.ratio_min, row.ratio, row.ratio_max, row.seeds) == (2.0, 4.0, 8.0, 3)
    assert (row.baseline, row.ours) == (8.0, 2.0)


def test_a_geometric_mean_takes_infinity_for_the_largest_number_that_is_known():
    assert geomean([2.0, 8.0]) == pytest.approx(4.0)
    assert geomean([2.0, 8.0, math.inf]) == pytest.approx((2 * 8 * 8) ** (1 / 3))


@pytest.mark.parametrize(
    ("points", "level", "expected"),
    [
        pytest.param([(10, 8.0), (12, 4.0)], 6.0, 11.0, id="between two points"),
        pytest.param([(12, 4.0), (10, 8.0)], 4.0, 12.0, id="on a point, in any order"),
        pytest.param([(10, 8.0), (12, 4.0)], 2.0, None, id="never"),
    ],
)
def test_where_a_curve_crosses_a_level(points, level, expected):
    assert crossing(points, level) == expected


def test_a_point_that_a_cheaper_one_beats_is_not_on_the_frontier():
    assert frontier([(12, 3.0), (10, 8.0), (11, 9.0), (13, 3.5)]) == [(10, 8.0), (12, 3.0)]


def test_instances_saved_compares_both_frontiers_at_the_same_p99():
    """The baseline needs 14 instances for 4.5 s, ours 12."""
    runs = []
    for policy, at in (("baseline", 14.0), ("ours", 12.0)):
        for band, (instances, p99_s) in enumerate(((at - 1, 7.5), (at + 1, 1.5))):
            low, high = ((80.0, 480.0), (320.0, 960.0))[band]
            measured = {"instances_mean": instances, "prefill_p99_ms": p99_s * 1000}
            runs.append(Run("cost", "L-L", 2.0, 1.0, policy, 0, low, high, measured))
    assert instances_saved(runs, 4.5, bands=((80.0, 480.0), (320.0, 960.0))) == pytest.approx(1 / 7)


def test_a_knee_is_where_the_baseline_waits_ten_to_a_hundred_seconds_whatever_ours_does():
    def row(mix, rate, p99_s):
        metric = "prefill_p99_ms"
        return make_row("serving", mix, rate, metric, [{metric: p99_s * 1000}], [{metric: 1.0}])

    rows = [row("M-M", 7.0, 3), row("M-M", 7.3, 40), row("M-M", 7.6, 90), row("L-L", 2.7, 120)]
    assert knees(rows) == {"M-M": [7.3, 7.6], "L-L": [2.7]}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("p99_prefill_best", 9.0, "met"),
        ("p99_prefill_best", 6.0, "MISSED (8), over what is realistic"),
        ("p99_prefill_best", 2.0, "MISSED (8)"),
        ("preemption_loss_worst", -0.9, "met"),
        ("preemption_loss_worst", -0.5, "MISSED"),
        ("normal_request_cost", 0.06, "MISSED"),
        ("instances_saved_equal_p99", None, "not measured"),
    ],
)
def test_a_goal_that_was_missed_is_called_so(name, value, words):
    assert verdict(name, value).startswith(words)


def test_every_run_of_the_benchmark_is_a_scenario_of_the_simulator():
    jobs = all_jobs(seeds=1, requests=10)
    assert {j.run.mix for j in jobs if j.run.experiment == "serving"} == set(MIXES)
    for job in jobs:
        assert scenario_of(job.scenario).workload.rate_per_s == job.run.rate


def test_both_policies_of_a_comparison_get_the_same_load():
    loads: dict[tuple[object, ...], set[str]] = {}
    for job in all_jobs(seeds=2, requests=10):
        r = job.run
        key = (r.experiment, r.mix, r.rate, r.cv, r.seed, r.band_low, r.band_high)
        loads.setdefault(key, set()).add(repr((job.scenario["workload"], job.scenario["seed"])))
    assert all(len(found) == 1 for found in loads.values())
