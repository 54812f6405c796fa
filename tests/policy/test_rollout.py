from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_pool.policy.rollout import Member, Rollout, next_rollout
from engine_pool.types import CRASH_LOOP_FAILURES, InstanceName
from engine_pool.types import InstanceState as S


def old(name: str, **more: object) -> Member:
    return replace(Member(InstanceName(name), S.SERVING, is_outdated=True), **more)


def new(name: str, **more: object) -> Member:
    return replace(Member(InstanceName(name), S.SERVING, is_outdated=False), **more)


BROKEN = {"state": S.LOST, "failures": CRASH_LOOP_FAILURES}


@pytest.mark.parametrize(
    ("members", "replaced"),
    [
        pytest.param([old("a"), old("b")], "a", id="the first"),
        pytest.param([new("a"), old("b")], "b", id="the next"),
        pytest.param([new("a"), new("b")], None, id="all are new"),
        pytest.param([new("a", state=S.STARTING), old("b")], None, id="the last one starts still"),
        pytest.param([old("a"), old("b", state=S.LOST)], None, id="another one is lost"),
        pytest.param(
            [old("a", state=S.DRAINING, is_being_replaced=True), old("b")], "a", id="it goes on"
        ),
        pytest.param([old("a", is_free=False), old("b"), new("c")], "b", id="others' are left"),
        pytest.param([old("a", is_free=False), new("b")], None, id="nobody else's"),
        pytest.param([new("a", **BROKEN), old("b"), old("c")], None, id="it does not start"),
        pytest.param([old("a"), old("b", **BROKEN)], None, id="an old one that does not start"),
    ],
)
def test_who_is_next(members: list[Member], replaced: str | None) -> None:
    assert next_rollout(members).replace == replaced
    assert next_rollout(members[::-1]).replace == replaced


def test_settings_that_do_not_work_stop_it() -> None:
    found = next_rollout([new("a", **BROKEN), old("b")])
    assert found.is_paused
    assert found.why == "a does not start with the new settings (5 failures)"
    assert not next_rollout([old("a", **BROKEN), old("b")]).is_paused, "those of before"


def test_an_only_instance_gets_an_extra_one_first() -> None:
    assert next_rollout([old("a")]) == Rollout(
        None, True, "waits for an extra instance, since only one serves"
    )
    extra = new("b", is_extra=True)
    starting = next_rollout([old("a"), replace(extra, state=S.STARTING)])
    assert (starting.replace, starting.needs_extra) == (None, True)
    assert next_rollout([old("a"), extra]).replace == "a"
    assert next_rollout([new("a"), extra]) == Rollout()
    assert next_rollout([old("a"), replace(extra, **BROKEN)]).is_paused


members = st.lists(
    st.builds(
        Member,
        st.sampled_from([InstanceName(n) for n in "abcd"]),
        st.sampled_from(S),
        st.booleans(),
        st.booleans(),
        failures=st.integers(0, 6),
    ),
    unique_by=lambda m: m.instance,
)


@given(members)
def test_nobody_new_is_taken_away_unless_all_others_serve(found: list[Member]) -> None:
    rollout = next_rollout(found)
    if rollout.replace is None:
        return
    others = [m for m in found if m.is_free and m.instance != rollout.replace]
    assert others
    assert all(m.state is S.SERVING for m in others)
    assert next(m for m in found if m.instance == rollout.replace).is_outdated
