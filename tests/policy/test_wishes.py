import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_pool.policy.lifecycle import Trigger, next_state
from engine_pool.policy.wishes import (
    LEFTOVER_AGAIN_S,
    NOTHING,
    SETTLE_S,
    Facts,
    InstanceWish,
    Leftover,
    Step,
    WantedState,
    in_words,
    joined,
    next_step,
)
from engine_pool.types import InstanceState as S

NOW = 1000.0
CORDON, DRAIN, STOP = (
    InstanceWish(w) for w in (WantedState.CORDONED, WantedState.DRAINED, WantedState.STOPPED)
)
RENEW = InstanceWish(renew_before_unix_s=500.0)
EMPTY = NOW - SETTLE_S


def facts(state: S, door: str = "", **more: float | bool | None) -> Facts:
    return Facts(state, NOW, **{"engine_started_unix_s": 100.0} | more, door=door)


@pytest.mark.parametrize(
    ("wish", "at", "step"),
    [
        pytest.param(NOTHING, facts(S.SERVING), Step.NONE, id="it serves as it shall"),
        pytest.param(NOTHING, facts(S.SERVING, "draining"), Step.OPEN, id="a door left closed"),
        pytest.param(CORDON, facts(S.SERVING), Step.CORDON, id="cordon"),
        pytest.param(CORDON, facts(S.CORDONED, "cordoned"), Step.NONE, id="cordoned"),
        pytest.param(CORDON, facts(S.CORDONED), Step.SHUT, id="cordoned with an open door"),
        pytest.param(NOTHING, facts(S.CORDONED, "cordoned"), Step.OPEN, id="uncordon"),
        pytest.param(DRAIN, facts(S.CORDONED, "cordoned"), Step.DRAIN, id="cordon, then drain"),
        pytest.param(CORDON, facts(S.DRAINING, "draining"), Step.CORDON, id="drain, then cordon"),
        pytest.param(CORDON, facts(S.DRAINED, "draining"), Step.CORDON, id="drained, then cordon"),
        pytest.param(DRAIN, facts(S.SERVING), Step.DRAIN, id="drain"),
        pytest.param(DRAIN, facts(S.DRAINING), Step.SHUT, id="draining with an open door"),
        pytest.param(DRAIN, facts(S.DRAINING, "cordoned"), Step.SHUT, id="counted from the drain"),
        pytest.param(DRAIN, facts(S.DRAINING, "draining"), Step.NONE, id="not empty yet"),
        pytest.param(NOTHING, facts(S.DRAINING, "draining"), Step.OPEN, id="undrain"),
        pytest.param(NOTHING, facts(S.DRAINED, "draining"), Step.OPEN, id="undrain, drained"),
        pytest.param(
            DRAIN,
            facts(S.DRAINING, "draining", empty_since_unix_s=EMPTY + 0.1),
            Step.NONE,
            id="empty, not settled",
        ),
        pytest.param(
            DRAIN,
            facts(S.DRAINING, "draining", empty_since_unix_s=EMPTY),
            Step.VERIFY,
            id="proven empty",
        ),
        pytest.param(
            DRAIN, facts(S.DRAINED, "draining", empty_since_unix_s=1.0), Step.NONE, id="drained"
        ),
        pytest.param(
            DRAIN, facts(S.DRAINED, "draining"), Step.DRAIN, id="something came all the same"
        ),
        pytest.param(
            STOP, facts(S.DRAINED, "draining", empty_since_unix_s=1.0), Step.STOP, id="then ended"
        ),
        pytest.param(STOP, facts(S.SERVING), Step.DRAIN, id="stop drains first"),
        pytest.param(STOP, facts(S.STARTING), Step.STOP, id="a start is broken off"),
        pytest.param(DRAIN, facts(S.STARTING), Step.NONE, id="a start may end, to be drained"),
        pytest.param(STOP, facts(S.STOPPING), Step.NONE, id="it ends already"),
    ],
)
def test_with_an_engine(wish: InstanceWish, at: Facts, step: Step) -> None:
    assert next_step(wish, at) is step


@pytest.mark.parametrize(
    ("wish", "at", "step"),
    [
        pytest.param(NOTHING, facts(S.STOPPED), Step.START, id="start"),
        pytest.param(CORDON, facts(S.STOPPED), Step.START, id="start cordoned"),
        pytest.param(DRAIN, facts(S.STOPPED), Step.NONE, id="as empty as can be"),
        pytest.param(STOP, facts(S.STOPPED), Step.NONE, id="stopped"),
        pytest.param(NOTHING, facts(S.LOST), Step.NONE, id="its time has not come"),
        pytest.param(NOTHING, facts(S.LOST, is_retry_due=True), Step.START, id="restart"),
        pytest.param(DRAIN, facts(S.LOST, is_retry_due=True), Step.STOP, id="it died drained"),
        pytest.param(RENEW, facts(S.LOST, failed_unix_s=499.0), Step.START, id="restart at once"),
        pytest.param(RENEW, facts(S.LOST, failed_unix_s=501.0), Step.NONE, id="once"),
    ],
)
def test_without_an_engine(wish: InstanceWish, at: Facts, step: Step) -> None:
    assert next_step(wish, replace(at, engine_started_unix_s=None)) is step


@pytest.mark.parametrize(
    ("at", "step"),
    [
        pytest.param(facts(S.SERVING), Step.DRAIN, id="drained first"),
        pytest.param(
            facts(S.DRAINED, "draining", empty_since_unix_s=1.0), Step.STOP, id="then ended"
        ),
        pytest.param(facts(S.STARTING), Step.STOP, id="in mid start"),
        pytest.param(facts(S.SERVING, engine_started_unix_s=500.0), Step.NONE, id="young enough"),
        pytest.param(
            facts(S.DRAINING, "draining", engine_started_unix_s=500.0), Step.OPEN, id="and serves"
        ),
    ],
)
def test_an_engine_that_is_too_old_is_renewed(at: Facts, step: Step) -> None:
    assert next_step(RENEW, at) is step


@pytest.mark.parametrize(
    ("leftover", "deadline", "done", "step"),
    [
        pytest.param(Leftover.END, NOW, None, Step.LEFTOVER, id="end"),
        pytest.param(Leftover.REPLAY, NOW, None, Step.LEFTOVER, id="replay"),
        pytest.param(Leftover.WAIT, NOW, None, Step.NONE, id="wait"),
        pytest.param(Leftover.END, NOW + 1, None, Step.NONE, id="not yet"),
        pytest.param(Leftover.END, None, None, Step.NONE, id="no deadline"),
        pytest.param(Leftover.END, NOW, NOW - 1, Step.NONE, id="just done"),
        pytest.param(Leftover.END, NOW, NOW - LEFTOVER_AGAIN_S, Step.LEFTOVER, id="once more"),
    ],
)
def test_the_leftover(
    leftover: Leftover, deadline: float | None, done: float | None, step: Step
) -> None:
    wish = replace(DRAIN, leftover=leftover, deadline_unix_s=deadline)
    assert next_step(wish, facts(S.DRAINING, "draining", leftover_done_unix_s=done)) is step
    empty = facts(S.DRAINING, "draining", empty_since_unix_s=NOW, leftover_done_unix_s=done)
    assert next_step(wish, empty) is Step.NONE, "nothing is left"


STATES_AFTER = {
    Step.CORDON: Trigger.CORDON,
    Step.DRAIN: Trigger.DRAIN,
    Step.OPEN: Trigger.UNCORDON,
    Step.VERIFY: Trigger.EMPTY,
    Step.STOP: Trigger.STOP,
    Step.START: Trigger.START,
}
wishes = st.builds(
    InstanceWish,
    st.sampled_from(WantedState),
    renew_before_unix_s=st.sampled_from([None, 50.0, 500.0]),
    deadline_unix_s=st.sampled_from([None, NOW - 1, NOW + 1]),
    leftover=st.sampled_from(Leftover),
)


@given(wishes, st.sampled_from(S), st.sampled_from(["", "cordoned", "draining"]), st.booleans())
def test_every_step_is_legal_where_it_is_taken(
    wish: InstanceWish, state: S, door: str, is_empty: bool
) -> None:
    has_engine = state not in (S.STOPPED, S.LOST)
    at = Facts(
        state,
        NOW,
        engine_started_unix_s=100.0 if has_engine else None,
        door=door if has_engine else "",
        empty_since_unix_s=EMPTY if is_empty and has_engine else None,
        is_retry_due=True,
    )
    step = next_step(wish, at)
    if step in STATES_AFTER and not (step is Step.OPEN and state is S.SERVING):
        next_state(state, STATES_AFTER[step])


@given(wishes)
def test_a_wish_is_reached_from_everywhere_and_then_holds(wish: InstanceWish) -> None:
    ends = {
        WantedState.SERVING: {S.SERVING},
        WantedState.CORDONED: {S.CORDONED},
        WantedState.DRAINED: {S.DRAINED, S.STOPPED},
        WantedState.STOPPED: {S.STOPPED},
    }
    for first, door in itertools.product(S, ("", "cordoned", "draining")):
        state, started = first, 100.0
        for _ in range(20):
            has_engine = state not in (S.STOPPED, S.LOST)
            at = Facts(
                state,
                NOW,
                engine_started_unix_s=started if has_engine else None,
                door=door if has_engine else "",
                empty_since_unix_s=EMPTY if door == "draining" else None,
                is_retry_due=True,
                leftover_done_unix_s=NOW,
            )
            step = next_step(wish, at)
            if state is S.STOPPING:
                state = S.STOPPED
            elif state is S.STARTING and step is Step.NONE:
                state, door = S.SERVING, ""
            elif step is Step.SHUT:
                door = "cordoned" if state is S.CORDONED else "draining"
            elif step in STATES_AFTER:
                is_same = step is Step.OPEN and state is S.SERVING
                state = state if is_same else next_state(state, STATES_AFTER[step])
                doors = {Step.OPEN: "", Step.CORDON: "cordoned", Step.DRAIN: "draining"}
                door = doors.get(step, door)
                started = NOW if step is Step.START else started
        assert state in ends[wish.wanted], f"from {first.value}"


def test_the_strictest_wish_counts() -> None:
    by = [replace(CORDON, by="a"), replace(STOP, by="b", since_unix_s=2.0), replace(STOP, by="c")]
    assert joined(by).by == "c", "of equals the first"
    assert joined([RENEW, DRAIN]).renew_before_unix_s == RENEW.renew_before_unix_s
    assert joined([]) == NOTHING


def test_words() -> None:
    assert in_words(replace(DRAIN, by="kim", reason="a fan")) == "to be drained by kim: a fan"
    assert in_words(STOP) == "to be stopped"
