"""Prefixes that are cached somewhere, and dispatch in turn."""

import math

import pytest
from hypothesis import given

from engine_pool.policy.dispatch import Choice, Refusal, choose, next_in_turn
from engine_pool.policy.settings import DispatchRule
from tests.policy.make import HIGH, NORMAL, demand, demands, pools, standing

RULE = DispatchRule()
"""At least 64 cached tokens and half of the prompt; 160 steps must be left."""
FREE = standing("i-01", {NORMAL: [100]})


@pytest.mark.parametrize(
    ("holder", "tokens", "cached", "expected"),
    [
        pytest.param({NORMAL: [4000]}, 1000, 900, "i-02", id="it goes where its prefix is"),
        pytest.param({NORMAL: [4000]}, 1000, 500, "i-02", id="half of the prompt is enough"),
        pytest.param({NORMAL: [4000]}, 1000, 499, "i-01", id="less than half is not"),
        pytest.param({NORMAL: [4000]}, 100, 64, "i-02", id="64 tokens are enough"),
        pytest.param({NORMAL: [4000]}, 100, 63, "i-01", id="63 are not"),
        pytest.param(
            # 15840 - 14620 - (1000 - 900) = 1120 for seven.
            {NORMAL: [2430] * 5 + [2470]},
            1000,
            900,
            "i-02",
            id="as long as 160 steps are left with it",
        ),
        pytest.param({NORMAL: [2430] * 5 + [2471]}, 1000, 900, "i-01", id="but not with 159"),
        pytest.param(
            {HIGH: [1100]}, 1000, 900, "i-01", id="not into the headroom of a higher class"
        ),
    ],
)
def test_a_cached_prefix_attracts(holder, tokens, cached, expected):
    pool = [FREE, standing("i-02", holder)]
    found = choose(pool, demand(tokens, cached={"i-02": cached}), RULE)
    assert isinstance(found, Choice)
    assert found.instance == expected
    assert (f"it holds {cached} tokens of the prompt" in found.reason) == (expected == "i-02")


def test_the_longest_prefix_wins_then_the_freest_with_it():
    pool = [
        standing("i-01", {NORMAL: [1000]}),
        standing("i-02", {NORMAL: [2000]}),
        standing("i-03", {NORMAL: [3000]}),
    ]
    longest = demand(1000, cached={"i-01": 600, "i-02": 600, "i-03": 700})
    found = choose(pool, longest, RULE)
    assert isinstance(found, Choice)
    assert found.instance == "i-03"
    equal = demand(1000, cached={"i-01": 600, "i-02": 600})
    found = choose(pool, equal, RULE)
    assert isinstance(found, Choice)
    assert found.instance == "i-01"


@pytest.mark.parametrize(
    ("running", "queued", "is_open"),
    [
        pytest.param({NORMAL: [100, 100]}, {}, True, id="whose batch is full"),
        pytest.param({NORMAL: [100]}, {NORMAL: [100]}, True, id="whose queue will fill it"),
        pytest.param({NORMAL: [100]}, {}, False, id="that is not open"),
    ],
)
def test_a_prefix_does_not_attract_to_an_instance(running, queued, is_open):
    holder = standing("i-02", running, queued, max_running=2, is_open=is_open)
    found = choose([standing("i-01", {NORMAL: [8000]}), holder], _CACHED, RULE)
    assert isinstance(found, Choice)
    assert "of the prompt" not in found.reason


_CACHED = demand(1000, cached={"i-02": 900})


def test_a_prefix_at_an_unknown_instance_is_ignored():
    found = choose([FREE], demand(1000, cached={"gone": 900}), RULE)
    assert isinstance(found, Choice)
    assert found.instance == "i-01"


def test_a_prefix_goes_before_packing():
    pool = [standing("i-01", {HIGH: [100]}), standing("i-02", {NORMAL: [100]})]
    found = choose(pool, demand(1000, HIGH, cached={"i-02": 900}), RULE)
    assert isinstance(found, Choice)
    assert found.instance == "i-02"


@given(pools(min_size=1), demands())
def test_a_prefix_never_overloads_its_instance(pool, request):
    found = choose(pool, request, RULE)
    if isinstance(found, Refusal) or "of the prompt" not in found.reason:
        return
    s = next(s for s in pool if s.instance == found.instance)
    new_tokens = max(0, request.demand_tokens - request.cached_tokens[s.instance])
    ahead = range(request.priority_class.rank + 1)
    queued = sum(s.queued_tokens[rank] for rank in ahead)
    left = int(s.capacity_tokens * 0.99) - s.used_tokens - queued - new_tokens
    assert left >= RULE.prefix_floor_steps * (s.batch + 1)
    assert s.batch + s.waiting < s.max_running


def test_round_robin_goes_by_name_whatever_the_load():
    pool = [
        standing("i-03"),
        standing("i-01", {NORMAL: [16_000]}),
        standing("i-02", is_draining=True),
        standing("i-04", capacity=64),
    ]
    turns = [next_in_turn(pool, demand(100), turn, RULE) for turn in range(4)]
    assert [t.instance for t in turns if isinstance(t, Choice)] == ["i-01", "i-03"] * 2
    assert turns[0] == Choice(turns[0].instance, "i-01: next in turn", turns[0].freeness_steps)
    assert math.isnan(turns[0].freeness_steps)


def test_round_robin_refuses_what_no_open_instance_can_hold():
    found = next_in_turn([standing("i-01", capacity=64)], demand(100), 0, RULE)
    assert found == Refusal("no open instance can hold it")
