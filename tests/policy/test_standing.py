"""Sums of an instance: the same freeness as from its report, and the ledger counted once."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_pool.policy.freeness import breakdown, freeness_of
from engine_pool.policy.settings import HeadroomRule
from engine_pool.policy.standing import Standing, need_tokens, standing_of
from engine_pool.types import (
    InFlight,
    InstanceLoad,
    InstanceName,
    InstanceState,
    PriorityClass,
    RequestId,
    RequestLoad,
)
from tests.engine_pool.make import NOW_UNIX_S, load, running, waiting
from tests.policy.make import HIGH, LOW, NORMAL, headrooms

SERVING = InstanceState.SERVING


def sent(name: str, demand: int, priority: PriorityClass = NORMAL) -> InFlight:
    return InFlight(RequestId(name), InstanceName("i-01"), priority, demand, NOW_UNIX_S)


@st.composite
def requests(draw: st.DrawFn) -> tuple[tuple[RequestLoad, ...], tuple[RequestLoad, ...]]:
    sizes = st.tuples(st.integers(1, 60), st.sampled_from(PriorityClass))
    batch = draw(st.lists(sizes, max_size=8))
    queue = draw(st.lists(sizes, max_size=8))
    return (
        tuple(running(16 * b, c, f"r{n}") for n, (b, c) in enumerate(batch)),
        tuple(waiting(16 * b, c, f"w{n}") for n, (b, c) in enumerate(queue)),
    )


@st.composite
def loads(draw: st.DrawFn) -> InstanceLoad:
    batch, queue = draw(requests())
    held = sum(r.kv_tokens for r in batch)
    # Less where requests share a prefix, more where room is held for one that comes.
    used = draw(st.sampled_from([held, held // 2, held + 320]))
    return load(batch=batch, queue=queue, used=used, capacity=draw(st.integers(1, 200)) * 16)


@given(loads(), st.sampled_from(InstanceState), headrooms())
def test_the_sums_have_the_freeness_of_the_report(now, state, rule):
    from_report = breakdown(now, state, rule).freeness_steps
    from_sums = freeness_of(standing_of(now, state), rule)
    assert from_sums == pytest.approx(from_report)


@given(loads(), st.sampled_from(InstanceState), headrooms())
def test_freeness_is_never_nan_and_infinite_only_when_idle_or_draining(now, state, rule):
    steps = freeness_of(standing_of(now, state), rule)
    assert not math.isnan(steps)
    if state in (InstanceState.DRAINING, InstanceState.DRAINED):
        assert steps == -math.inf
    else:
        assert (steps == math.inf) == (not now.running)


@given(loads(), st.integers(0, 4000))
def test_headroom_is_divided_so_that_a_second_request_adds_none(now, target):
    rule = HeadroomRule({HIGH: target})
    s = standing_of(now, SERVING)
    without = freeness_of(s, rule, 0)
    with_it = freeness_of(s, rule)
    high, batch = s.running[HIGH.rank], s.batch
    if not batch:
        assert with_it == without == math.inf
    else:
        headroom = max(0, s.capacity_tokens - target) if high else 0
        assert without - with_it == pytest.approx(headroom / batch)


def test_a_standing_counts_each_class_by_itself():
    now = load(
        batch=(running(160, HIGH, "a"), running(320, LOW, "b"), running(16, LOW, "c")),
        queue=(waiting(48, NORMAL, "d"), waiting(64, LOW, "e")),
    )
    s = standing_of(now, SERVING)
    assert (s.running, s.running_tokens) == ([1, 0, 2], [160, 0, 336])
    assert (s.queued, s.queued_tokens) == ([0, 1, 1], [0, 48, 64])
    assert (s.head_tokens, s.batch, s.waiting, s.free_tokens) == (48, 3, 2, 1104)
    assert [s.hosts(c.rank) for c in PriorityClass] == [True, True, True]


@pytest.mark.parametrize(
    ("now", "ledger", "queued", "head"),
    [
        pytest.param(load(), [sent("a", 32)], [0, 1, 0], 32, id="a request on its way is queued"),
        pytest.param(
            load(queue=(waiting(64),)),
            [sent("a", 32)],
            [0, 2, 0],
            64,
            id="behind the head that the report has",
        ),
        pytest.param(
            load(batch=(running(32, name="a"),)),
            [sent("a", 32), sent("b", 48, HIGH)],
            [1, 0, 0],
            48,
            id="but not when it runs already",
        ),
        pytest.param(
            load(queue=(waiting(32, name="a"),)),
            [sent("a", 32)],
            [0, 1, 0],
            32,
            id="nor when it waits there",
        ),
        pytest.param(
            load(ended=(RequestId("a"),)), [sent("a", 32)], [0, 0, 0], 0, id="nor when it ended"
        ),
        pytest.param(
            load(), [sent("a", 32), sent("b", 64)], [0, 2, 0], 32, id="the first one is the head"
        ),
    ],
)
def test_the_ledger_counts_what_no_report_shows(now, ledger, queued, head):
    s = standing_of(now, SERVING, ledger)
    assert s.queued == queued
    assert s.head_tokens == head


@given(loads(), st.integers(0, 5), st.data())
def test_each_request_counts_once_wherever_the_ledger_has_it(now, unseen, data):
    known = [*now.running, *now.waiting]
    shown = data.draw(st.lists(st.sampled_from(known), unique_by=id)) if known else []
    ledger = [sent(r.request_id, 32, r.priority_class) for r in shown]
    ledger += [sent(f"new{n}", 32) for n in range(unseen)]
    s = standing_of(now, SERVING, ledger)
    assert s.batch + s.waiting == len(known) + unseen


@pytest.mark.parametrize("state", list(InstanceState))
def test_only_a_serving_instance_is_open(state):
    s = standing_of(load(), state)
    assert s.is_open == (state is SERVING)
    assert s.is_draining == (state in (InstanceState.DRAINING, InstanceState.DRAINED))


def test_a_request_needs_what_it_holds_and_a_block_to_grow_into():
    assert need_tokens(running(160), 16) == 176
    assert need_tokens(waiting(320), 16) == 336


def test_two_standings_share_no_list():
    one, other = (Standing(InstanceName(n), 1600, 16, 8) for n in ("a", "b"))
    one.running[0] += 1
    assert other == replace(other, running=[0, 0, 0])
