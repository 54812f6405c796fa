"""What-if results in words: what changed, by how much, and how long a run still takes."""

from typing import Any

import pytest

from engine_pool.simulator.scenario import scenario_of
from web import whatif_charts, whatif_facts, whatif_words


def report(p99_ms: float | None = 1900.0, mean_ms: float = 8000.0, **sections: Any) -> Any:
    return {
        "scenario": scenario_of(sections).to_dict(),
        "summary": {
            "prefill_mean_ms": 310.0,
            "prefill_p99_ms": p99_ms,
            "request_mean_ms": mean_ms,
            "preemptions": 1,
        },
        "moves": {"committed": 12},
    }


@pytest.mark.parametrize(
    ("value_ms", "words"),
    [
        pytest.param(None, "\u2013", id="nothing"),
        pytest.param(0.0, "0 ms", id="zero"),
        pytest.param(38.24, "38.2 ms", id="milliseconds"),
        pytest.param(1930.0, "1.93 s", id="seconds"),
        pytest.param(250_000.0, "250 s", id="minutes"),
    ],
)
def test_durations_have_the_unit_that_reads_best(value_ms: float | None, words: str) -> None:
    assert whatif_words.duration(value_ms) == words


@pytest.mark.parametrize(
    ("mine", "other", "words"),
    [
        pytest.param({}, {}, [], id="the same"),
        pytest.param(
            {"pool": {"instances": 4}},
            {"pool": {"instances": 3}},
            ["4 instances instead of 3"],
            id="more",
        ),
        pytest.param(
            {"pool": {"instances": 1}},
            {"pool": {"instances": 1200}},
            ["1 instance instead of 1,200"],
            id="fewer",
        ),
        pytest.param({}, {"policy": {"migration": False}}, ["moves"], id="moves"),
        pytest.param({"policy": {"migration": False}}, {}, ["no moves"], id="no moves"),
        pytest.param(
            {"policy": {"dispatch": "round_robin"}},
            {},
            ["dispatch in turn instead of to the freest"],
            id="dispatch",
        ),
        pytest.param(
            {"pool": {"capacity_tokens": 25600}, "policy": {"priorities": False}},
            {},
            ["KV cache 25,600 tokens each instead of 12,800 tokens each", "no priorities"],
            id="two changes",
        ),
    ],
)
def test_changes_are_named_with_both_values(
    mine: dict[str, Any], other: dict[str, Any], words: list[str]
) -> None:
    found = whatif_facts.changes(scenario_of(mine).to_dict(), scenario_of(other).to_dict())
    assert found == words


@pytest.mark.parametrize(
    ("before_ms", "words"),
    [
        pytest.param(12_100.0, "token falls from 12.1 s to 1.90 s.", id="falls"),
        pytest.param(900.0, "token rises from 900 ms to 1.90 s.", id="rises"),
        pytest.param(1950.0, "token stays at about 1.90 s (as now: 1.95 s).", id="noise"),
        pytest.param(None, "token is 1.90 s.", id="nothing to compare"),
    ],
)
def test_the_result_is_one_sentence_with_both_numbers(before_ms: float | None, words: str) -> None:
    mine, other = report(pool={"instances": 4}), report(before_ms, pool={"instances": 3})
    said = whatif_words.sentence(mine, other, "as now")
    assert said.startswith("With 4 instances instead of 3 the P99 time to first token ")
    assert words in said
    assert said.endswith("12 moves, 1 preemption.")


def test_a_run_alone_says_its_own_numbers() -> None:
    said = whatif_words.sentence(report(), None, "")
    assert said == (
        "The first token comes after 310 ms on average and 1.90 s at P99; 12 moves, 1 preemption."
    )


@pytest.mark.parametrize(
    ("progress", "elapsed_s", "words"),
    [
        pytest.param(0.0, 5.0, "", id="nothing done"),
        pytest.param(0.5, 0.5, "", id="too early"),
        pytest.param(0.25, 10.0, "about 30 s left", id="a quarter"),
        pytest.param(0.99, 60.0, "about a second left", id="nearly"),
    ],
)
def test_what_is_left_is_estimated_from_what_it_took(
    progress: float, elapsed_s: float, words: str
) -> None:
    assert whatif_words.remaining(progress, elapsed_s) == words


def test_a_chart_of_many_looks_keeps_lows_means_and_counts() -> None:
    looks = 1000
    series: dict[str, list[float | None]] = {
        key: [float(i) for i in range(looks)] for key in whatif_charts.KEYS
    }
    series["freeness_mean"][0:7] = [None] * 7
    data = whatif_charts.data(
        {
            **report(scaling={"enabled": True}),
            "series": series,
            "summary": {"prefill_p50_ms": 1.0, "prefill_mean_ms": 2.0, "prefill_p99_ms": 3.0},
        },
        None,
        "",
    )
    (side,) = data["sides"]
    drawn = side["series"]
    assert len(drawn["time_s"]) <= whatif_charts.POINTS
    assert (drawn["freeness_lowest"][1], drawn["running"][1], drawn["moves"][1]) == (7, 10, 13)
    assert drawn["freeness_mean"][0] is None
    assert drawn["time_s"][-1] == looks - 1
    assert (data["below"], data["band"]) == (48.0, [160.0, 960.0])
