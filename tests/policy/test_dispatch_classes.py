"""Dispatch between classes: packing, keeping away, elastic headroom, and whose queue counts."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_pool.policy.dispatch import Choice, Refusal, choose, score
from engine_pool.policy.settings import DispatchRule, HeadroomRule, QueueRule
from tests.policy.make import HIGH, LOW, NORMAL, demand, demands, dispatch_rules, pools, standing

RULE = DispatchRule()
"""High class: headroom above 1600 tokens, packed; elastic; the whole queue counts."""
HEAD = DispatchRule(queue=QueueRule.HEAD)
HARD = DispatchRule(is_elastic=False)
UNPACKED = DispatchRule(packs_classes=False)
THREE = DispatchRule(headroom=HeadroomRule({HIGH: 1600, NORMAL: 8000}))

HOST = standing("i-01", {HIGH: [400]})
BUSY = standing("i-02", {NORMAL: [1000] * 4})


def chosen(pool, request, rule):
    found = choose(pool, request, rule)
    assert isinstance(found, Choice)
    assert found.reason.startswith(found.instance)
    return found


@pytest.mark.parametrize(
    ("pool", "priority", "rule", "expected"),
    [
        pytest.param([HOST, BUSY], NORMAL, RULE, "i-02", id="a normal one keeps off a high host"),
        pytest.param([HOST, BUSY], LOW, RULE, "i-02", id="a low one, too"),
        pytest.param([HOST, BUSY], NORMAL, UNPACKED, "i-01", id="but not without packing"),
        pytest.param(
            [HOST, standing("i-02", {NORMAL: [100]})], HIGH, RULE, "i-01", id="high ones are packed"
        ),
        pytest.param([HOST, standing("i-02")], HIGH, RULE, "i-01", id="even beside an idle one"),
        pytest.param(
            [HOST, standing("i-02")], HIGH, UNPACKED, "i-02", id="without packing to the idle one"
        ),
        pytest.param(
            [standing("i-01", {HIGH: [1501]}), BUSY],
            HIGH,
            RULE,
            "i-01",
            id="over its target load by 1 token a host is one among all, and the freest here",
        ),
        pytest.param(
            [standing("i-01", {HIGH: [400] * 3 + [301]}), standing("i-02", {NORMAL: [1000]})],
            HIGH,
            RULE,
            "i-02",
            id="over its target load packing ends",
        ),
        pytest.param(
            [standing("i-01", {HIGH: [400] * 3 + [300]}), standing("i-02", {NORMAL: [1000]})],
            HIGH,
            RULE,
            "i-01",
            id="at its target load it does not",
        ),
        pytest.param(
            [standing("i-01", queued={HIGH: [400]}), standing("i-02")],
            HIGH,
            RULE,
            "i-01",
            id="a queued high one makes a host",
        ),
        pytest.param(
            [standing("i-01", {HIGH: [400]}, {LOW: [4000]}), standing("i-02")],
            HIGH,
            RULE,
            "i-02",
            id="low ones that are queued at a host count against it",
        ),
        pytest.param(
            [standing("i-01", {HIGH: [400]}, {HIGH: [1200]}), standing("i-02")],
            HIGH,
            RULE,
            "i-02",
            id="high ones that wait there do",
        ),
        pytest.param(
            [HOST, standing("i-02", {HIGH: [200]}), standing("i-03", {HIGH: [300]})],
            HIGH,
            RULE,
            "i-02",
            id="the freest of several hosts",
        ),
        pytest.param(
            [standing("i-01", {HIGH: [4, 4]}, max_running=2), standing("i-02")],
            HIGH,
            RULE,
            "i-02",
            id="not packed where no place in the batch is left",
        ),
        pytest.param(
            [standing("i-01", {NORMAL: [2000]}), standing("i-02", {LOW: [1000, 1000]})],
            LOW,
            THREE,
            "i-02",
            id="each class with headroom keeps lower ones away",
        ),
        pytest.param(
            [standing("i-01", {NORMAL: [2000]}), standing("i-02")],
            NORMAL,
            THREE,
            "i-01",
            id="and is packed itself",
        ),
        pytest.param(
            [standing("i-01", {LOW: [100]}), standing("i-02", {NORMAL: [50, 50]})],
            NORMAL,
            RULE,
            "i-01",
            id="a lower class has no headroom against a higher one",
        ),
    ],
)
def test_classes_decide_where(pool, priority, rule, expected):
    for order in (pool, pool[::-1]):
        assert chosen(order, demand(100, priority), rule).instance == expected


LENDER = standing("i-01", {HIGH: [1500]})
FULL = standing("i-02", {NORMAL: [1000] * 15 + [800]})


@pytest.mark.parametrize(
    ("rule", "expected", "words"),
    [
        pytest.param(RULE, "i-01", "in the headroom of a higher class", id="elastic: it is lent"),
        pytest.param(HARD, "i-02", "the freest of 2: 40 KV tokens left", id="hard: it is kept"),
    ],
)
def test_headroom_is_lent_when_nobody_else_has_room(rule, expected, words):
    found = chosen([LENDER, FULL], demand(100), rule)
    assert found.instance == expected
    assert words in found.reason


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, "i-02"), (0.4, "i-02"), (0.6, "i-01"), (1.0, "i-01")]
)
def test_only_a_part_of_the_headroom_is_lent(share, expected):
    """Of 14,400 tokens of headroom 7,000 are used by normal requests already."""
    lender = standing("i-01", {HIGH: [1500], NORMAL: [7000]})
    found = chosen([lender, FULL], demand(100), replace(RULE, lent_share=share))
    assert found.instance == expected


def test_headroom_is_not_lent_while_another_has_room():
    found = chosen([LENDER, standing("i-02", {NORMAL: [1000] * 15})], demand(100), RULE)
    assert (found.instance, "headroom" in found.reason) == ("i-02", False)


def test_headroom_that_would_not_do_either_is_not_lent():
    full_host = standing("i-01", {HIGH: [1500], NORMAL: [14_300]})
    found = chosen([full_host, FULL], demand(100), RULE)
    assert found.instance == "i-02"


@pytest.mark.parametrize(
    ("queued", "priority", "rule", "left", "requests"),
    [
        pytest.param({NORMAL: [300, 500]}, NORMAL, RULE, 13_040, 5, id="all that waits"),
        pytest.param({NORMAL: [300, 500]}, NORMAL, HEAD, 13_540, 5, id="of the head's size"),
        pytest.param({NORMAL: [300, 500]}, HIGH, RULE, 13_040, 5, id="lower classes, too"),
        pytest.param({NORMAL: [300, 500]}, HIGH, HEAD, 13_540, 5, id="and their head"),
        pytest.param({LOW: [300, 500]}, NORMAL, RULE, 13_040, 5, id="for normal ones as well"),
        pytest.param({NORMAL: [300], LOW: [500]}, LOW, RULE, 13_040, 5, id="all of both"),
    ],
)
def test_what_counts_of_a_queue(queued, priority, rule, left, requests):
    s = standing("i-01", {NORMAL: [1000, 500, 500]}, queued)
    found = score(s, priority.rank, rule)
    assert (found.left_tokens, found.requests) == (left, requests)
    assert found.freeness_steps == left / requests


def test_a_reason_says_for_whom_an_instance_was_preferred():
    found = chosen([HOST, standing("i-02")], demand(100, HIGH), RULE)
    assert found.reason == (
        "i-01: it serves high requests and stays under 1600 tokens: 15440 KV tokens left"
        " for 1 running and 0 queued, 15440 decode steps"
    )


def test_a_shortage_is_not_divided_by_the_batch():
    """Divided it would make the longer queue look freer."""
    longer = standing("i-01", {NORMAL: [1000] * 15}, {NORMAL: [1000] * 15})
    shorter = standing("i-02", {NORMAL: [15_000]}, {NORMAL: [3000]})
    assert score(longer, NORMAL.rank, RULE).freeness_steps > (
        score(shorter, NORMAL.rank, RULE).freeness_steps
    )
    assert chosen([longer, shorter], demand(100), RULE).instance == "i-02"


@given(pools(), demands(), dispatch_rules(), st.randoms())
def test_the_choice_is_the_same_for_every_order(pool, request, rule, random):
    shuffled = random.sample(pool, len(pool))
    assert choose(pool, request, rule) == choose(shuffled, request, rule)


@given(pools(), demands(), dispatch_rules())
def test_only_open_instances_that_can_hold_it_are_chosen(pool, request, rule):
    found = choose(pool, request, rule)
    holds = {
        s.instance
        for s in pool
        if s.is_open and request.demand_tokens <= int(s.capacity_tokens * (1 - rule.watermark))
    }
    if isinstance(found, Refusal):
        assert not holds
        assert found.is_permanent == any(s.is_open for s in pool)
    else:
        assert found.instance in holds


@given(pools(min_size=1), demands(), dispatch_rules())
def test_without_headroom_and_prefixes_nobody_freer_is_passed_over(pool, request, rule):
    plain = DispatchRule(queue=rule.queue, watermark=rule.watermark, headroom=HeadroomRule({}))
    found = choose(pool, demand(request.demand_tokens, request.priority_class), plain)
    if isinstance(found, Refusal):
        return
    rank = request.priority_class.rank
    keys = {s.instance: score(s, rank, plain).key for s in pool}
    holds = [
        s.instance
        for s in pool
        if s.is_open and request.demand_tokens <= int(s.capacity_tokens * (1 - rule.watermark))
    ]
    assert keys[found.instance] == max(keys[i] for i in holds)
