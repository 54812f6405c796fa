"""Pairing: the least free with the freest, and who never is an end of a move."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_pool.policy.freeness import freeness_of
from engine_pool.policy.pairing import MINUS, Pair, in_words, pair
from engine_pool.policy.settings import HeadroomRule, RebalanceRule
from tests.policy.make import HIGH, LOW, NORMAL, headrooms, pools, standing

RULE = RebalanceRule(below_steps=48, above_steps=100)
PLAIN = HeadroomRule({})


def steps(name, free_steps, requests=10, **more):
    """An instance whose batch of `requests` can take `free_steps` steps."""
    used = 16_000 - free_steps * requests
    return standing(name, {NORMAL: [0] * requests}, used=used, **more)


def ends(pool, rule=RULE, headroom=PLAIN, before=None):
    return [(p.source, p.destination) for p in pair(pool, rule, headroom, before)]


FULL, FULLER = steps("i-01", 20), steps("i-02", 10)
FREE, FREER = steps("i-03", 200), steps("i-04", 400)
IDLE = standing("i-05")
DRAINING = standing("i-06", {LOW: [160]}, is_draining=True)


@pytest.mark.parametrize(
    ("pool", "expected"),
    [
        pytest.param([], [], id="an empty pool"),
        pytest.param([FULL], [], id="nobody to give to"),
        pytest.param([FREE, FREER], [], id="nobody who needs to"),
        pytest.param([FULL, FREE], [("i-01", "i-03")], id="low to high"),
        pytest.param(
            [FULL, FULLER, FREE, FREER],
            [("i-02", "i-04"), ("i-01", "i-03")],
            id="lowest with highest, second lowest with second highest",
        ),
        pytest.param([FULL, FULLER, FREE], [("i-02", "i-03")], id="the least free goes first"),
        pytest.param([FULL, FREE, FREER], [("i-01", "i-04")], id="to the freest"),
        pytest.param([FULL, FREER, IDLE], [("i-01", "i-05")], id="idle is as free as can be"),
        pytest.param(
            [FULL, IDLE, standing("i-07", capacity=32_000)],
            [("i-01", "i-07")],
            id="the larger of two idle ones",
        ),
        pytest.param(
            [FULLER, DRAINING, FREE, FREER],
            [("i-06", "i-04"), ("i-02", "i-03")],
            id="draining first",
        ),
        pytest.param([FULL, standing("i-06", is_draining=True)], [], id="an empty drained one"),
        pytest.param([steps("i-01", 48), FREE], [], id="at its threshold nobody is a source"),
        pytest.param([FULL, steps("i-03", 100)], [], id="at its threshold nobody receives"),
        pytest.param([FULL, steps("i-03", 101)], [("i-01", "i-03")], id="over it by 1, it does"),
        pytest.param([FULL, steps("i-03", 200, is_open=False)], [], id="a cordoned one does not"),
        pytest.param(
            [steps("i-01", 20, is_open=False), FREE], [("i-01", "i-03")], id="but it gives"
        ),
        pytest.param([FULL, steps("i-03", 200, max_running=10)], [], id="nor a full batch"),
        pytest.param(
            [FULL, standing("i-03", {NORMAL: [160]}, {NORMAL: [16]})], [], id="nor one that queues"
        ),
        pytest.param(
            [FULL, standing("i-03", queued={LOW: [16]})], [], id="nor an idle one that queues"
        ),
        pytest.param(
            [steps("i-01", -10, requests=20), steps("i-02", -19, requests=10), FREE],
            [("i-01", "i-03")],
            id="the larger shortage first, not the one divided by fewer",
        ),
    ],
)
def test_who_gives_to_whom(pool, expected):
    assert ends(pool) == expected
    assert ends(pool[::-1]) == expected


def test_headroom_makes_a_source():
    host = standing("i-01", {HIGH: [160], NORMAL: [1600]})
    assert ends([host, FREE]) == []
    assert ends([host, FREE], headroom=HeadroomRule({HIGH: 1600})) == [("i-01", "i-03")]


FOUR = [FULL, FULLER, FREE, FREER]


@pytest.mark.parametrize(
    ("pool", "before", "expected"),
    [
        pytest.param(
            FOUR,
            {"i-01": "i-04", "i-02": "i-03"},
            [("i-02", "i-03"), ("i-01", "i-04")],
            id="pairs stay though the order turned",
        ),
        pytest.param(
            FOUR,
            {"i-01": "i-04"},
            [("i-02", "i-03"), ("i-01", "i-04")],
            id="a new source takes the freest that is left",
        ),
        pytest.param(
            [FULL, steps("i-04", 90), FREE],
            {"i-01": "i-04"},
            [("i-01", "i-03")],
            id="until the destination leaves its set",
        ),
        pytest.param(
            [steps("i-01", 60), FULLER, FREE, FREER],
            {"i-01": "i-04", "i-02": "i-03"},
            [("i-02", "i-03")],
            id="or the source",
        ),
        pytest.param([FULL, FREE], {"i-01": "gone"}, [("i-01", "i-03")], id="or is gone"),
    ],
)
def test_a_pair_stays_while_both_qualify(pool, before, expected):
    assert ends(pool, before=before) == expected


@pytest.mark.parametrize(
    ("source", "destination", "reason"),
    [
        pytest.param(FULL, FREE, "i-01 20.0 < 48 and i-03 200 > 100", id="both numbers"),
        pytest.param(
            steps("i-01", -250), IDLE, f"i-01 {MINUS}250 < 48 and i-05 idle > 100", id="idle"
        ),
        pytest.param(DRAINING, FREER, "i-06 drains and i-04 400 > 100", id="a drain"),
    ],
)
def test_a_reason_has_the_numbers(source, destination, reason):
    (found,) = pair([source, destination], RULE, PLAIN)
    assert found == Pair(
        source.instance,
        destination.instance,
        freeness_of(source, PLAIN),
        freeness_of(destination, PLAIN),
        reason,
    )


@pytest.mark.parametrize(
    ("number", "words"),
    [
        pytest.param(math.inf, "idle", id="plus infinity"),
        pytest.param(-math.inf, f"{MINUS}∞", id="minus infinity"),
        pytest.param(12.34, "12.3", id="one decimal under 100"),
        pytest.param(-12.34, f"{MINUS}12.3", id="a real minus sign"),
        pytest.param(12_345.6, "12,346", id="none above"),
    ],
)
def test_freeness_in_words(number, words):
    assert in_words(number) == words


def test_thresholds_must_not_cross():
    with pytest.raises(ValueError, match=r"above_steps \(10\) must not be under below_steps \(20"):
        RebalanceRule(below_steps=20, above_steps=10)


rules = st.sampled_from([RULE, RebalanceRule(), RebalanceRule(below_steps=-20, above_steps=0)])


@st.composite
def befores(draw):
    """Pairs of a round before, also of instances that are gone."""
    names = [f"i-{n:02d}" for n in range(10)]
    shuffled = draw(st.permutations(names))
    return dict(zip(shuffled[:4], shuffled[4:8], strict=True))


@given(pools(), rules, headrooms(), st.just({}) | befores(), st.randoms())
def test_the_order_of_the_reports_does_not_matter(pool, rule, headroom, before, random):
    shuffled = random.sample(pool, len(pool))
    assert pair(pool, rule, headroom, before) == pair(shuffled, rule, headroom, before)


@given(pools(), rules, headrooms(), st.just({}) | befores())
def test_what_holds_for_every_pair(pool, rule, headroom, before):
    by_name = {s.instance: s for s in pool}
    pairs = pair(pool, rule, headroom, before)
    named = [p.source for p in pairs] + [p.destination for p in pairs]
    assert len(set(named)) == len(named), "each instance is in one pair at most, with another"
    for p in pairs:
        source, destination = by_name[p.source], by_name[p.destination]
        assert p.source_steps == freeness_of(source, headroom) < rule.below_steps
        assert p.destination_steps == freeness_of(destination, headroom) > rule.above_steps
        assert not source.is_idle
        assert destination.is_open
        assert not destination.is_draining
        assert not any(destination.queued)
        assert destination.batch < destination.max_running
        assert p.source in p.reason
        assert p.destination in p.reason


@given(pools(), rules, headrooms(), st.just({}) | befores())
def test_nobody_is_left_over_at_both_sides(pool, rule, headroom, before):
    pairs = pair(pool, rule, headroom, before)
    low = [s for s in pool if freeness_of(s, headroom) < rule.below_steps and not s.is_idle]
    high = [
        s
        for s in pool
        if freeness_of(s, headroom) > rule.above_steps
        and s.is_open
        and not any(s.queued)
        and s.batch < s.max_running
    ]
    assert len(pairs) == min(len(low), len(high))


@given(pools(), rules, headrooms())
def test_the_same_pool_gives_the_same_pairs_again(pool, rule, headroom):
    first = pair(pool, rule, headroom)
    again = pair(pool, rule, headroom, {p.source: p.destination for p in first})
    assert again == first
