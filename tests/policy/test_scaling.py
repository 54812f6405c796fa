"""How many instances: the band, the time outside it, and what forbids a change."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_pool.policy.scaling import average_steps
from engine_pool.policy.scaling_facts import (
    Attainment,
    Barrier,
    ScalingState,
    Signal,
)
from engine_pool.policy.settings import HeadroomRule, ScalingRule
from tests.policy.make import HIGH, LOW, NORMAL, headrooms, pools, standing
from tests.policy.scaling_pool import (
    DRAINING,
    LIGHT,
    LOADED,
    NOW_S,
    OVER,
    PLAIN,
    RULE,
    STAY,
    UNDER,
    change,
    check,
    steps,
)


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
            "1,200 > 960 for 30 s: 2 -> 1, i-02 has the fewest requests (12)",
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
            (0, "i-02", None),
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
    assert state == ScalingState(under_since_s=10, grown_s=20)


def test_the_other_side_of_the_band_begins_anew_too():
    _, state = check(LIGHT, state=UNDER)
    assert state == ScalingState(over_since_s=NOW_S, spare_since_s=NOW_S)
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
    pool = [*LIGHT, steps("i-04", 1200, requests=13)]
    decision, state = check(pool, state=OVER)
    assert decision.drain == "i-02"
    assert state == ScalingState(shrunk_s=NOW_S)


def test_one_that_starts_counts_so_that_a_shortage_is_answered_once():
    """2200 free tokens for 20 requests; with 16,000 more 910 steps."""
    decision, state = check(LOADED, starting=[16_000], state=UNDER)
    assert change(decision) == STAY
    assert decision.average_steps == pytest.approx(910)
    assert state == ScalingState(starting_s=NOW_S)


def test_one_that_starts_is_not_always_enough():
    decision, _ = check(LOADED, starting=[800], state=UNDER)
    assert decision.add == 1
    assert "3 -> 4" in decision.reason


def test_a_dip_of_the_load_is_no_reason_to_drain():
    """Over the band all the time; but the others would have been enough only just now."""
    busy = [steps("i-01", 1200), steps("i-02", 1200)]
    _, state = check(busy, state=OVER)
    assert state == ScalingState(over_since_s=OVER.over_since_s)
    decision, state = check(LIGHT, state=state, now_s=NOW_S + 5)
    assert change(decision) == STAY
    assert decision.reason.endswith("of which the others were enough for 0 s")
    assert check(LIGHT, state=state, now_s=NOW_S + 34)[0].drain is None
    assert check(LIGHT, state=state, now_s=NOW_S + 35)[0].drain == "i-02"


def test_how_high_the_average_must_stay_is_a_setting():
    busy = [steps("i-01", 1200), steps("i-02", 1200)]
    assert check(busy, state=OVER)[0].barrier is Barrier.SURVIVORS
    assert check(busy, state=OVER, rule=replace(RULE, survivors_share=0.0))[0].drain == "i-02"
    assert ScalingRule(survivors_share=1.0).survivors_steps == 960


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
    assert "refused: without i-02 the average would be 149 < 560" in decision.reason
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
        assert after == replace(state, starting_s=NOW_S)


def test_fewer_than_the_least_are_made_up_for_at_once():
    rule = ScalingRule(min_instances=3)
    decision, _ = check([steps("i-01", 500)], starting=[16_000], rule=rule)
    assert decision.add == 1
    assert decision.reason == "2 < 3, the least: 2 -> 3"
    assert check([], rule=rule)[0].add == 3


@pytest.mark.parametrize("pool", [[], [steps("i-01", 5)]], ids=["all silent", "one is heard"])
def test_nothing_changes_while_an_instance_is_silent(pool):
    """Neither below the least nor under the band: the silent one may be there and idle."""
    rule = ScalingRule(min_instances=3)
    state = ScalingState(under_since_s=0.0)
    decision, after = check(pool, rule=rule, state=state, now_s=100.0, silent=1)
    assert change(decision) == STAY
    assert decision.is_hold
    assert decision.reason == "1 instances have no fresh report"
    assert after == replace(state, silent_since_s=100.0)


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


times = st.none() | st.floats(0, 100)
states = st.builds(
    ScalingState,
    over_since_s=times,
    spare_since_s=times,
    ttft_under_since_s=times,
    idle_since_s=times,
    silent_since_s=times,
    grown_s=times,
    shrunk_s=times,
) | st.builds(ScalingState, under_since_s=times, grown_s=times)
situations = st.fixed_dictionaries(
    {
        "silent": st.sampled_from([0, 0, 0, 1, 2]),
        "asleep": st.sampled_from([(), (), ("i-08",), ("i-08", "i-09")]),
        "away": st.integers(0, 2),
        "failing": st.integers(0, 1),
        "attainment": st.none() | st.builds(Attainment, st.floats(0, 1), st.integers(30, 99)),
        "is_demanded": st.booleans(),
        "rule": st.builds(
            ScalingRule,
            min_instances=st.integers(0, 2),
            max_instances=st.integers(2, 5),
            grow_after_s=st.sampled_from([0.0, 10.0]),
            shrink_after_s=st.sampled_from([0.0, 30.0]),
            shrink_cooldown_s=st.sampled_from([0.0, 60.0]),
            ttft_attainment_floor=st.sampled_from([None, 0.95]),
            zero_after_s=st.sampled_from([None, 10.0]),
            window=st.sampled_from(["", "night"]),
        ),
    }
)
capacities = st.lists(st.just(16_000), max_size=2)


@given(pools(), capacities, headrooms(), states, st.floats(100, 200), situations, st.randoms())
def test_what_holds_for_every_check(pool, starting, headroom, state, now_s, more, random):
    decision, after = check(
        pool, starting=starting, headroom=headroom, state=state, now_s=now_s, **more
    )
    shuffled = random.sample(pool, len(pool))
    assert (decision, after) == check(
        shuffled, starting=starting, headroom=headroom, state=state, now_s=now_s, **more
    )
    average, rule, silent = decision.average_steps, more["rule"], more["silent"]
    assert average is None or not math.isnan(average)
    assert "nan" not in decision.reason
    serving = [s.instance for s in pool if s.is_open]
    count = len(serving) + len(starting) + silent
    changes = [
        decision.add > 0,
        *(x is not None for x in change(decision)[1:]),
        bool(decision.wake),
    ]
    assert sum(changes) == int(decision.is_change)
    assert not (decision.is_change and (decision.is_hold or decision.barrier))
    if decision.add or decision.wake:
        grown = count + decision.add + bool(decision.wake)
        assert grown <= rule.max_instances - more["away"] - more["failing"]
    if decision.drain is not None:
        assert decision.drain in serving
        assert not silent
        assert not starting
        assert count > rule.min_instances
        is_last = len(serving) == 1
        assert not is_last or (rule.zero_after_s is not None and decision.signal is Signal.IDLE)
    if decision.undrain is not None:
        assert decision.undrain in [s.instance for s in pool if s.is_draining]
    if decision.wake is not None:
        assert decision.wake in more["asleep"]
