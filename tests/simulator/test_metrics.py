"""What runs are judged by: percentiles, fragmentation, bounded series."""

from dataclasses import replace

import pytest

from engine_pool.policy.settings import HeadroomRule
from engine_pool.simulator.instance_model import Instance
from engine_pool.simulator.metrics import Sample, Series, look, mean, percentile
from engine_pool.types import InstanceState
from tests.simulator.bench import Bench, limits, request


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        pytest.param([], 99, None, id="nothing"),
        pytest.param([5.0], 99, 5.0, id="one"),
        pytest.param([float(n) for n in range(1, 101)], 99, 99.0, id="of a hundred"),
        pytest.param([3.0, 1.0, 2.0], 50, 2.0, id="median"),
    ],
)
def test_percentiles(values: list[float], percent: float, expected: float | None) -> None:
    assert percentile(values, percent) == expected


def test_the_mean_of_nothing_is_none() -> None:
    assert mean([]) is None


def serving(bench: Bench) -> Instance:
    instance = Instance(bench.engine, 0, started_s=0.0, report_interval_s=0.0)
    instance.set_state(InstanceState.SERVING)
    return instance


def pool_of(*demands_and_lengths: tuple[int, int]) -> list[Instance]:
    """Engines of 10 blocks: each runs a request of so many tokens, and so many wait."""
    pool = []
    for running, waiting in demands_and_lengths:
        bench = Bench(limits(10))
        bench.add(request(0, running, 8))
        if waiting:
            bench.add(request(1, waiting, 8))
        pool.append(serving(bench))
    return pool


@pytest.mark.parametrize(
    ("pool", "held_tokens", "fragmentation", "nowhere"),
    [
        pytest.param([(95, 0), (95, 0)], 0, 0.0, 0.0, id="nobody waits"),
        # 4 blocks free on each, 6 are needed: together they would do.
        pytest.param([(95, 80), (95, 0)], 0, 6 / 20, 6 / 20, id="scattered"),
        # 7 blocks free on the other: it only waits at the wrong place.
        pytest.param([(95, 80), (40, 0)], 0, 6 / 20, 0.0, id="at the wrong place"),
        pytest.param([(95, 80), (95, 80)], 0, 6 / 20, 6 / 20, id="room for one of two"),
        pytest.param([(95, 150), (95, 0)], 0, 0.0, 0.0, id="not even together"),
        pytest.param([(95, 0), (95, 0)], 96, 6 / 20, 6 / 20, id="the gateway's head"),
        pytest.param([(95, 0), (95, 0)], 48, 0.0, 0.0, id="the gateway's head fits"),
    ],
)
def test_fragmentation_is_free_memory_that_cannot_serve_who_waits(
    pool: list[tuple[int, int]], held_tokens: int, fragmentation: float, nowhere: float
) -> None:
    found = look(
        1.0,
        pool_of(*pool),
        HeadroomRule(),
        held=1 if held_tokens else 0,
        held_head_tokens=held_tokens,
        instances=2,
        moves=0,
        preemptions=0,
    )
    assert found.fragmentation == pytest.approx(fragmentation)
    assert found.fragmentation_nowhere == pytest.approx(nowhere)


SAMPLE = Sample(0.0, 1.0, 2.0, 0.5, 10.0, 5.0, 0.0, 0.0, 4.0, 0.0, 0.0)


@pytest.mark.parametrize("count", [1, 49, 50, 51, 100, 3777])
def test_a_series_is_bounded_and_keeps_first_to_last(count: int) -> None:
    series = Series(points=50)
    for n in range(count):
        series.add(replace(SAMPLE, time_s=float(n), running=float(n % 2), moves=float(n)))
    lines = series.to_dict()
    assert len({len(line) for line in lines.values()}) == 1
    assert 1 <= len(lines["time_s"]) <= 51
    assert lines["time_s"][-1] == lines["moves"][-1] == count - 1
    assert lines["time_s"] == sorted(lines["time_s"], key=lambda t: t or 0)


def test_merged_samples_keep_the_lowest_freeness() -> None:
    series = Series(points=2)
    for lowest in (5.0, -3.0, None, 7.0):
        series.add(replace(SAMPLE, freeness_lowest=lowest))
    assert -3.0 in series.to_dict()["freeness_lowest"]
