import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_pool.policy.health import Progress, advance, stalled_s
from engine_pool.policy.lifecycle import (
    TRANSITIONS,
    IllegalTransition,
    Trigger,
    failures_in_a_row,
    next_state,
    restart_delay_s,
)
from engine_pool.types import InstanceState as S


@pytest.mark.parametrize(
    ("path", "end"),
    [
        pytest.param([Trigger.START, Trigger.READY], S.SERVING, id="start"),
        pytest.param([Trigger.START, Trigger.FAILED, Trigger.START], S.STARTING, id="restart"),
        pytest.param(
            [Trigger.START, Trigger.READY, Trigger.DRAIN, Trigger.EMPTY, Trigger.STOP],
            S.STOPPING,
            id="drain",
        ),
        pytest.param(
            [Trigger.START, Trigger.READY, Trigger.CORDON, Trigger.UNCORDON], S.SERVING, id="cordon"
        ),
        pytest.param(
            [Trigger.START, Trigger.READY, Trigger.STOP, Trigger.FAILED],
            S.STOPPED,
            id="a death while it stops is a stop",
        ),
    ],
)
def test_paths(path, end):
    state = S.STOPPED
    for trigger in path:
        state = next_state(state, trigger)
    assert state is end


def test_what_the_table_does_not_have_is_illegal():
    for state, trigger in itertools.product(S, Trigger):
        if trigger in TRANSITIONS[state]:
            continue
        with pytest.raises(IllegalTransition, match=f"{trigger.value}.*{state.value}"):
            next_state(state, trigger)


def test_every_state_can_end_and_start_again():
    assert set(TRANSITIONS) == set(S)
    for state in S:
        reached, edge = {state}, {state}
        while edge:
            edge = {end for s in edge for end in TRANSITIONS[s].values()} - reached
            reached |= edge
        assert {S.STOPPED, S.SERVING} <= reached, state


@pytest.mark.parametrize(
    ("failures", "delay_s"),
    [(1, 1.0), (2, 2.0), (3, 4.0), (6, 32.0), (7, 60.0), (1000, 60.0)],
)
def test_restarts_wait_longer_each_time(failures, delay_s):
    assert restart_delay_s(failures, 1.0, 60.0) == delay_s


def test_a_minute_of_serving_ends_a_series_of_failures():
    assert failures_in_a_row(5, served_s=59.0) == 6
    assert failures_in_a_row(5, served_s=60.0) == 1


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.floats(0.1, 10)), min_size=1))
def test_only_work_without_steps_is_a_stall(looks):
    progress: Progress | None = None
    now_s = steps = 0.0
    last_progress_s = 0.0
    for did_step, running, wait_s in looks:
        now_s += wait_s
        steps += did_step
        if did_step or running == 0 or progress is None:
            last_progress_s = now_s
        progress = advance(progress, steps_total=int(steps), running=running, now_s=now_s)
    assert stalled_s(progress, now_s) == pytest.approx(now_s - last_progress_s)
