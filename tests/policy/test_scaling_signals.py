"""How many instances, beside the band: silence, cool-downs, late first tokens, zero, schedules, and
what people keep."""

import math
from dataclasses import replace

import pytest

from engine_pool.policy.scaling_facts import Attainment, Barrier, ScalingState, Signal
from engine_pool.policy.settings import ScalingRule
from tests.policy.make import standing
from tests.policy.scaling_pool import (
    DRAINING,
    LIGHT,
    LOADED,
    NOW_S,
    OVER,
    RULE,
    STAY,
    UNDER,
    change,
    check,
    steps,
)


def test_one_that_stays_silent_counts_as_full():
    """The others may grow beside it after a minute; nothing shrinks because of it."""
    _, state = check(LOADED, silent=1, state=UNDER)
    assert check(LOADED, silent=1, state=state, now_s=NOW_S + 59)[0].is_hold
    decision, _ = check(LOADED, silent=1, state=state, now_s=NOW_S + 60)
    assert change(decision) == (1, None, None)
    assert "3 -> 4" in decision.reason
    held, _ = check(LIGHT, silent=1, state=replace(OVER, silent_since_s=NOW_S - 60))
    assert change(held) == STAY
    assert held.barrier is Barrier.SILENT
    back, state = check(LIGHT, state=replace(OVER, silent_since_s=NOW_S - 60))
    assert back.drain == "i-02"


def test_a_growth_waits_for_its_cool_down_and_a_drain_for_any_change():
    rule = replace(RULE, grow_cooldown_s=20.0, shrink_cooldown_s=100.0)
    grown = replace(UNDER, grown_s=NOW_S - 15)
    decision, after = check(LOADED, rule=rule, state=grown)
    assert change(decision) == STAY
    assert decision.barrier is Barrier.COOL_DOWN
    assert "cools down for 5 s" in decision.reason
    assert check(LOADED, rule=rule, state=after, now_s=NOW_S + 5)[0].add == 1
    for past in ({"grown_s": NOW_S - 90}, {"shrunk_s": NOW_S - 90}):
        decision, _ = check(LIGHT, rule=rule, state=replace(OVER, **past))
        assert decision.barrier is Barrier.COOL_DOWN
    assert check(LIGHT, rule=rule, state=replace(OVER, grown_s=NOW_S - 100))[0].drain == "i-02"


def test_the_least_does_not_wait_for_a_cool_down():
    rule = replace(RULE, min_instances=3, grow_cooldown_s=1000.0)
    assert check(LOADED, rule=rule, state=ScalingState(grown_s=NOW_S - 1))[0].add == 1


def test_what_the_loop_has_stopped_is_woken_before_another_is_added():
    decision, _ = check(LOADED, state=UNDER, asleep=["i-03", "i-04"])
    assert (decision.wake, change(decision)) == ("i-03", STAY)
    assert decision.is_change
    assert "2 -> 3, i-03 starts again" in decision.reason


def test_what_people_keep_is_not_available_and_stays_as_they_want_it():
    """Four slots, one of them cordoned and one drained: two are left to the loop."""
    decision, _ = check([*LOADED, DRAINING], state=UNDER, undrainable=[], away=2)
    assert change(decision) == STAY
    assert decision.barrier is Barrier.MOST
    assert "2 instances are the most beside 2 cordoned or drained by people" in decision.reason
    assert check([*LOADED, DRAINING], state=UNDER, undrainable=[], away=1)[0].add == 1


def test_a_crash_loop_is_no_start():
    decision, _ = check(LOADED, state=UNDER, failing=1)
    assert decision.add == 1
    assert "one fails again and again" in decision.reason
    rule = ScalingRule(min_instances=1)
    decision, _ = check([], rule=rule, failing=1)
    assert change(decision) == STAY
    assert decision.barrier is Barrier.FAILING


LATE = Attainment(0.8, 50)
FLOOR = replace(RULE, ttft_attainment_floor=0.95)
FINE = [steps("i-01", 500), steps("i-02", 500)]


def test_late_first_tokens_grow_a_pool_whose_average_is_fine():
    decision, state = check(FINE, rule=FLOOR, attainment=LATE)
    assert change(decision) == STAY
    decision, after = check(FINE, rule=FLOOR, attainment=LATE, state=state, now_s=NOW_S + 10)
    assert decision.add == 1
    assert decision.signal is Signal.TTFT
    assert decision.reason == "80.0% of 50 requests within their TTFT < 95.0% for 10 s: 2 -> 3"
    assert after.ttft_under_since_s is None


@pytest.mark.parametrize(
    ("pool", "more", "barrier"),
    [
        pytest.param(FINE, {"attainment": None}, Barrier.NONE, id="too few requests to say"),
        pytest.param(FINE, {"attainment": Attainment(0.95, 50)}, Barrier.NONE, id="at the floor"),
        pytest.param(FINE, {"starting": [800]}, Barrier.STARTING, id="one starts already"),
        pytest.param(LIGHT, {}, Barrier.NONE, id="over the band another would not help"),
    ],
)
def test_late_first_tokens_alone_do_not_grow_it(pool, more, barrier):
    state = ScalingState(ttft_under_since_s=NOW_S - 60)
    decision, _ = check(pool, rule=FLOOR, state=state, **({"attainment": LATE} | more))
    assert change(decision) == STAY
    assert decision.barrier is barrier


def test_nothing_is_drained_while_first_tokens_are_late():
    state = replace(OVER, ttft_under_since_s=NOW_S - 60)
    decision, _ = check(LIGHT, rule=FLOOR, state=state, attainment=LATE)
    assert change(decision) == STAY
    assert decision.barrier is Barrier.ATTAINMENT


ZERO = replace(RULE, min_instances=0, zero_after_s=300.0)
IDLE = [standing("i-01")]


def test_the_last_one_goes_when_nothing_has_run_for_long():
    _, state = check(IDLE, rule=ZERO)
    decision, _ = check(IDLE, rule=ZERO, state=state, now_s=NOW_S + 299)
    assert change(decision) == STAY
    decision, _ = check(IDLE, rule=ZERO, state=state, now_s=NOW_S + 300)
    assert decision.drain == "i-01"
    assert decision.signal is Signal.IDLE
    assert decision.reason == "idle for 300 s: 1 -> 0"


@pytest.mark.parametrize(
    ("pool", "rule", "more"),
    [
        pytest.param(IDLE, replace(ZERO, min_instances=1), {}, id="a least of one"),
        pytest.param(IDLE, replace(ZERO, zero_after_s=None), {}, id="switched off"),
        pytest.param(IDLE, ZERO, {"is_demanded": True}, id="somebody waits"),
        pytest.param(IDLE, ZERO, {"silent": 1}, id="another is silent"),
        pytest.param([steps("i-01", 5000, requests=1)], ZERO, {}, id="one request runs"),
        pytest.param(
            [*IDLE, steps("i-02", 100, is_draining=True)], ZERO, {}, id="a request leaves another"
        ),
    ],
)
def test_the_last_one_stays(pool, rule, more):
    state = ScalingState(over_since_s=0.0, idle_since_s=0.0)
    assert check(pool, rule=rule, state=state, **more)[0].drain is None


def test_a_pool_at_zero_wakes_when_somebody_asks():
    assert change(check([], rule=ZERO)[0]) == STAY
    assert not check([], rule=ZERO)[0].is_hold
    woken, _ = check([], rule=ZERO, asleep=["i-01"], is_demanded=True)
    assert woken.wake == "i-01"
    assert woken.signal is Signal.DEMAND
    added, _ = check([], rule=ZERO, is_demanded=True)
    assert added.add == 1
    draining = steps("i-01", 500, requests=1, is_draining=True)
    assert check([draining], rule=ZERO, is_demanded=True)[0].undrain == "i-01"
    assert change(check([], rule=ZERO, starting=[16_000], is_demanded=True)[0]) == STAY


def test_a_window_of_the_schedule_is_an_order():
    rule = replace(RULE, max_instances=1, window="night", shrink_cooldown_s=1000.0)
    decision, _ = check(LOADED, rule=rule, state=ScalingState(grown_s=NOW_S - 1))
    assert decision.drain == "i-02"
    assert decision.signal is Signal.SCHEDULE
    assert "2 > 1, the most (window night)" in decision.reason
    for more in ({"starting": [16_000]}, {"silent": 1}):
        state = ScalingState(silent_since_s=NOW_S - 100)
        assert change(check(LOADED, rule=rule, state=state, **more)[0]) == STAY
    day = replace(RULE, min_instances=4, window="day")
    decision, _ = check(LOADED, rule=day)
    assert decision.add == 2
    assert decision.reason == "2 < 4, the least (window day): 2 -> 4"


def test_a_clock_that_was_set_back_and_what_is_no_number_are_forgotten():
    state = ScalingState(under_since_s=NOW_S + 3600, over_since_s=math.nan, grown_s=math.inf)
    decision, after = check(LOADED, state=state)
    assert change(decision) == STAY
    assert after == ScalingState(under_since_s=NOW_S)
    assert check(LOADED, state=after, now_s=NOW_S + 10)[0].add == 1
