"""The arithmetic of the scaling benchmark: traces, the rules that are compared, what is judged."""

import json
from dataclasses import replace

import pytest

from benchmarks.rebalance_load import Outcome, Seen
from benchmarks.scaling_figures import Change, reversals, summed, table
from benchmarks.scaling_live import Looks, figures_of
from benchmarks.scaling_simulated import FIXED, FLOOR, MOST, OWN, QUEUE, SIZES, run
from benchmarks.scaling_traces import TRACES, arrivals_of
from engine_pool.types import PriorityClass

BY_NAME = {trace.name: trace for trace in TRACES}
SHORT = replace(SIZES, length_s=300.0)


@pytest.mark.parametrize("trace", TRACES, ids=lambda t: t.name)
def test_a_trace_comes_at_its_rate_and_is_the_same_again(trace):
    arrivals = arrivals_of(trace, SIZES, 1)
    assert arrivals == arrivals_of(trace, SIZES, 1)
    assert arrivals != arrivals_of(trace, SIZES, 2)
    steps = [trace.rate(n / 1000) for n in range(1000)]
    expected = sum(steps) / 1000 * SIZES.instance_per_s * SIZES.length_s
    assert len(arrivals) == pytest.approx(expected, rel=0.1)
    assert [a.index for a in arrivals] == list(range(len(arrivals)))
    assert all(0 <= a.arrival_s < SIZES.length_s for a in arrivals)
    assert max(steps) <= MOST, "more than the pool may have would judge nothing"


def test_a_change_that_is_taken_back_soon_is_an_oscillation():
    changes = [Change(0, 1), Change(50, 1), Change(100, -1), Change(300, 1)]
    assert reversals(changes, 120) == 1
    assert reversals(changes, 1000) == 2
    assert reversals([], 120) == 0


def test_the_rules_keep_floor_and_most_and_lose_nothing():
    by_rule = {rule: run(BY_NAME["spike"], rule, 1, SHORT) for rule in (FIXED, OWN, QUEUE)}
    assert len({figures["requests"] for figures in by_rule.values()}) == 1
    for figures in by_rule.values():
        assert FLOOR <= figures["least"] <= figures["most"] <= MOST
    assert by_rule[FIXED]["changes"] == 0
    assert by_rule[FIXED]["instance_s"] == MOST * SHORT.length_s
    assert by_rule[OWN]["instance_s"] < by_rule[FIXED]["instance_s"]
    assert by_rule[OWN]["most"] > 2, "the spike needs more than there are"
    table_text = table({"spike": {rule: summed([f]) for rule, f in by_rule.items()}})
    assert [line.split()[:2] for line in table_text.splitlines()[1:]] == [
        ["spike", rule] for rule in by_rule
    ]


def test_reports_that_are_nonsense_never_shrink_the_pool():
    trace = BY_NAME["nan"]
    figures = run(trace, OWN, 1, SHORT)
    assert figures["least"] == 2
    assert figures["oscillations"] == 0


def row(at: str, tick: int, before: int, after: int, kind: str = "grow"):
    return {
        "at": f"2026-03-02T12:00:{at}+00:00",
        "tick": tick,
        "kind": kind,
        "is_applied": kind in ("grow", "shrink"),
        "instances_before": before,
        "instances_after": after,
    }


def test_a_live_trace_is_judged_by_rows_looks_and_readers():
    seen = tuple(Seen(n, PriorityClass.NORMAL, 100.0 * n, (10.0,), 500, 2) for n in range(1, 4))
    outcome = Outcome(seen, ("request 7: lost",), 45.0, 1.0)
    looks = Looks(serving=[2, 3, 1], instance_s=99.0)
    rows = [row("01", 1, 2, 3), row("09", 2, 3, 2, "shrink"), row("30", 3, 2, 2, "refused")]
    figures, problems = figures_of(BY_NAME["step"], outcome, looks, rows, floor=1)
    assert json.loads(json.dumps(figures, allow_nan=False)) == figures
    assert (figures["changes"], figures["oscillations"], figures["refused"]) == (2, 1, 1)
    assert (figures["ttft_p50_s"], figures["ttft_p99_s"]) == (0.2, 0.3)
    assert (figures["least"], figures["most"], figures["mean"]) == (1, 3, 2)
    assert problems == ["request 7: lost"]
    rows.append(row("31", 3, 2, 3))
    _, problems = figures_of(BY_NAME["step"], outcome, looks, rows, floor=2)
    assert problems[1:] == [
        "1 instances served, 2 are the least",
        "two decisions were stored for one check",
    ]
