"""How many instances: the band, the time outside it, and what forbids a change."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_pool.policy.scaling import ScalingState, average_steps, decide
from engine_pool.policy.settings import HeadroomRule, ScalingRule
from tests.policy.make import HIGH, LOW, NORMAL, headrooms, pools, standing

RULE = ScalingRule(is_on=True, max_instances=4, grow_after_s=10.0, shrink_after_s=30.0)
"""160 to 960 steps; 10 s under it, 30 s over it; 1 to 4 instances."""
PLAIN = HeadroomRule({})
NOW_S = 1000.0
UNDER = ScalingState(under_since_s=NOW_S - 10)
OVER = ScalingState(over_since_s=NOW_S - 30)


def steps(name, free_steps, requests=10, **more):
    """An instance whose batch of `requests` can take `free_steps` steps."""
    used = 16_000 - free_steps * requests
    return standing(name, {NORMAL: [0] * requests}, used=used, **more)


def check(pool, *, starting=(), silent=0, rule=RULE, headroom=PLAIN, state=None, now_s=NOW_S):
    return decide(
        pool,
        starting_tokens=starting,
        silent=silent,
        rule=rule,
        headroom=headroom,
        state=state or ScalingState(),
        now_s=now_s,
    )


def change(decision):
    return decision.add, decision.drain, decision.undrain


LOADED = [steps("i-01", 100), steps("i-02", 120)]
LIGHT = [steps("i-01", 1200), steps("i-02", 1200, requests=9)]
DRAINING = steps("i-03", 1200, requests=3, is_draining=True)
STAY = (0, None, None)


@pytest.mark.parametrize(
    ("pool", "state", "expected", "words"),
    [
        pytest.param(
            LOADED, ScalingState(), STAY, "110 < 160 for 0 s, at least 10 s", id="at once"
        ),
        pytest.param(
            LOADED, ScalingState(NOW_S - 9.9), STAY, "110 < 160", id="under it, not long enough"
        ),
        pytest.param(LOADED, UNDER, (1, None, None), "110 < 160 for 10 s: 2 -> 3", id="for 10 s"),
        pytest.param(
            LIGHT,
            ScalingState(None, NOW_S - 29.9),
            STAY,
            "1,200 > 960 for 30 s, at least 30 s",
            id="over it, not long enough",
        ),
        pytest.param(
            LIGHT,
            OVER,
            (0, "i-02", None),
            "1,200 > 960 for 30 s: 2 -> 1, i-02 has the fewest requests (9)",
            id="over it for 30 s",
        ),
        pytest.param([steps("i-01", 160)], UNDER, STAY, "average 160 in 160-960", id="low end"),
        pytest.param([steps("i-01", 960)], OVER, STAY, "average 960 in 160-960", id="high end"),
        pytest.param(
            [*LOADED, DRAINING],
            UNDER,
            (0, None, "i-03"),
            "i-03 need not start, it only stops draining",
            id="a drain is taken back before a start",
        ),
        pytest.param(
            [*LOADED, DRAINING, steps("i-04", 0, requests=7, is_draining=True)],
            UNDER,
            (0, None, "i-04"),
            "i-04 need not start",
            id="the one with most to move",
        ),
        pytest.param(
            [steps(f"i-{n}", 100) for n in range(4)],
            UNDER,
            STAY,
            "but 4 instances are the most",
            id="at the maximum",
        ),
        pytest.param(LIGHT[:1], OVER, STAY, "but 1 instances are the least", id="at the minimum"),
        pytest.param(
            [standing("i-01"), standing("i-02")],
            OVER,
            (0, "i-01", None),
            "average idle > 960",
            id="an idle pool shrinks",
        ),
        pytest.param(
            [], ScalingState(), (1, None, None), "0 < 1", id="an empty pool gets its least"
        ),
    ],
)
def test_the_number_of_instances(pool, state, expected, words):
    for order in (pool, pool[::-1]):
        decision, _ = check(order, state=state)
        assert change(decision) == expected
        assert decision.is_change == (expected != STAY)
        assert words in decision.reason


def test_for_a_while_is_elapsed_time_and_begins_anew_when_the_average_returns():
    state, made = ScalingState(), []
    course = [(0, LOADED), (9, LOADED), (9.5, [steps("i-01", 500)]), (10, LOADED), (19, LOADED)]
    for at_s, pool in [*course, (20, LOADED)]:
        decision, state = check(pool, state=state, now_s=at_s)
        made.append(decision.add)
    assert made == [0, 0, 0, 0, 0, 1]
    assert state == ScalingState(under_since_s=10)


def test_the_other_side_of_the_band_begins_anew_too():
    _, state = check(LIGHT, state=UNDER)
    assert state == ScalingState(over_since_s=NOW_S)
    _, state = check(LOADED, state=OVER)
    assert state == ScalingState(under_since_s=NOW_S)


def test_the_number_of_checks_does_not_matter():
    """Checked every second or once, ten seconds are ten seconds."""
    state = ScalingState()
    for at_s in range(10):
        decision, state = check(LOADED, state=state, now_s=float(at_s))
        assert decision.add == 0
    often, _ = check(LOADED, state=state, now_s=10.0)
    once, _ = check(LOADED, state=ScalingState(under_since_s=0), now_s=10.0)
    assert often == once
    assert often.add == 1


def test_after_a_drain_the_time_begins_anew():
    pool = [*LIGHT, steps("i-04", 1200)]
    decision, state = check(pool, state=OVER)
    assert decision.drain == "i-02"
    assert state == ScalingState()


def test_one_that_starts_counts_so_that_a_shortage_is_answered_once():
    """2200 free tokens for 20 requests; with 16,000 more 910 steps."""
    decision, state = check(LOADED, starting=[16_000], state=UNDER)
    assert change(decision) == STAY
    assert decision.average_steps == pytest.approx(910)
    assert state == ScalingState()


def test_one_that_starts_is_not_always_enough():
    decision, _ = check(LOADED, starting=[800], state=UNDER)
    assert decision.add == 1
    assert "3 -> 4" in decision.reason


def test_nothing_is_drained_while_one_starts():
    decision, _ = check(LIGHT, starting=[16_000], state=OVER)
    assert change(decision) == STAY
    assert "but one starts" in decision.reason


def test_those_who_stay_must_be_able_to_carry_the_load():
    """A small and a large instance: without the large one, which has less to do, 980 free tokens
    would be left for 14 requests."""
    pool = [steps("i-01", 320, requests=8, capacity=16_000), standing("i-02", {NORMAL: [80] * 6})]
    pool[1].capacity_tokens = 20_000
    decision, state = check(pool, state=OVER)
    assert decision.average_steps == pytest.approx((2560 + 19_520) / 14)
    assert change(decision) == STAY
    assert "refused: without i-02 the average would be 149 < 160" in decision.reason
    assert state.over_since_s == OVER.over_since_s


def test_what_still_leaves_a_draining_one_must_be_carried_too():
    pool = [standing("i-01", {NORMAL: [160] * 5}), standing("i-02", {NORMAL: [160] * 4})]
    assert check(pool, state=OVER)[0].drain == "i-02"
    leaving = standing("i-03", {NORMAL: [3500] * 4}, is_draining=True)
    decision, _ = check([*pool, leaving], state=OVER)
    assert change(decision) == STAY
    assert "refused: without i-02" in decision.reason


def test_without_a_report_nothing_changes():
    for state in (ScalingState(), UNDER, OVER):
        decision, after = check([], starting=[16_000], state=state)
        assert change(decision) == STAY
        assert (decision.average_steps, decision.reason) == (
            None,
            "no report of a serving instance",
        )
        assert after == state


def test_fewer_than_the_least_are_made_up_for_at_once():
    rule = ScalingRule(min_instances=3)
    decision, _ = check([steps("i-01", 500)], starting=[16_000], rule=rule)
    assert decision.add == 1
    assert decision.reason == "2 < 3, the least"
    assert check([], rule=rule)[0].add == 3


@pytest.mark.parametrize("pool", [[], [steps("i-01", 5)]], ids=["all silent", "one is heard"])
def test_nothing_changes_while_an_instance_is_silent(pool):
    """Neither below the least nor under the band: the silent one may be there and idle."""
    rule = ScalingRule(min_instances=3)
    state = ScalingState(under_since_s=0.0)
    decision, after = check(pool, rule=rule, state=state, now_s=100.0, silent=1)
    assert change(decision) == STAY
    assert decision.reason == "1 instances have no fresh report"
    assert after == state


@pytest.mark.parametrize("serving", [[], [steps("i-01", 500)]], ids=["nobody", "one"])
def test_a_drain_is_taken_back_before_a_start_for_the_least_too(serving):
    rule = ScalingRule(min_instances=2)
    decision, _ = check([*serving, DRAINING], rule=rule)
    assert change(decision) == (0, None, "i-03")
    assert "i-03 need not start" in decision.reason


def test_the_average_is_the_pools_not_of_its_instances():
    """One idle instance does not hide three full ones."""
    pool = [*(steps(f"i-{n}", 0, requests=40) for n in range(3)), standing("i-9")]
    assert average_steps(pool, (), PLAIN) == pytest.approx(16_000 / 120)


def test_headroom_and_all_that_waits_count():
    s = standing("i-01", {HIGH: [400], NORMAL: [400, 200]}, {NORMAL: [100, 200], LOW: [300]})
    assert average_steps([s], (), PLAIN) == pytest.approx((16_000 - 1000 - 600) / 6)
    rule = HeadroomRule({HIGH: 6000})
    assert average_steps([s], (), rule) == pytest.approx((16_000 - 1000 - 600 - 10_000) / 6)


states = st.one_of(
    st.just(ScalingState()),
    st.builds(ScalingState, under_since_s=st.floats(0, 100)),
    st.builds(ScalingState, over_since_s=st.floats(0, 100)),
)
capacities = st.lists(st.just(16_000), max_size=2)


@given(pools(), capacities, headrooms(), states, st.floats(100, 200), st.randoms())
def test_what_holds_for_every_check(pool, starting, headroom, state, now_s, random):
    decision, after = check(pool, starting=starting, headroom=headroom, state=state, now_s=now_s)
    shuffled = random.sample(pool, len(pool))
    assert (decision, after) == check(
        shuffled, starting=starting, headroom=headroom, state=state, now_s=now_s
    )
    average = decision.average_steps
    assert average is None or not math.isnan(average)
    assert "nan" not in decision.reason
    serving = [s.instance for s in pool if s.is_open]
    changes = [decision.add > 0, decision.drain is not None, decision.undrain is not None]
    assert sum(changes) <= 1
    assert after.under_since_s is None or after.over_since_s is None
    if decision.add:
        assert len(serving) + len(starting) + decision.add <= RULE.max_instances
    if decision.drain is not None:
        assert decision.drain in serving
        assert len(serving) > RULE.min_instances
    if decision.undrain is not None:
        assert decision.undrain in [s.instance for s in pool if s.is_draining]
