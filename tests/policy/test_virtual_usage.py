import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_pool.policy.freeness import breakdown, freeness_steps
from engine_pool.policy.settings import HeadroomRule
from engine_pool.policy.virtual_usage import virtual_usage
from engine_pool.types import InstanceState, PriorityClass
from tests.engine_pool.make import load, running, waiting

HIGH, NORMAL, LOW = PriorityClass.HIGH, PriorityClass.NORMAL, PriorityClass.LOW
RULE = HeadroomRule({HIGH: 600})


@pytest.mark.parametrize(
    ("batch", "queue", "is_draining", "total", "freeness"),
    [
        pytest.param((), (), False, 0, math.inf, id="idle is as free as can be"),
        pytest.param((), (), True, math.inf, -math.inf, id="idle but draining is least free"),
        pytest.param((running(160), running(320)), (), False, 480, 560, id="physical usage"),
        pytest.param((running(160, HIGH),), (), False, 1160, 440, id="headroom of one high"),
        pytest.param(
            (running(160, HIGH), running(160, HIGH, "b")), (), False, 1320, 140, id="counted once"
        ),
        pytest.param((running(160),), (waiting(320),), False, 480, 1120, id="head of the line"),
        pytest.param(
            (running(160),), (waiting(320), waiting(640)), False, 480, 1120, id="the rest with 0"
        ),
        pytest.param((running(1600),), (waiting(320),), False, 1920, -320, id="may be negative"),
        pytest.param((running(160),), (), True, math.inf, -math.inf, id="draining"),
    ],
)
def test_algorithm_1(batch, queue, is_draining, total, freeness):
    now = load(batch=batch, queue=queue)
    usage = virtual_usage(now, is_draining=is_draining, rule=RULE)
    assert usage.total_tokens == total
    state = InstanceState.DRAINING if is_draining else InstanceState.SERVING
    assert breakdown(now, state, RULE).freeness_steps == freeness


def test_each_high_request_carries_its_share_of_the_headroom():
    usage = virtual_usage(
        load(batch=(running(160, HIGH, "a"), running(320, HIGH, "b"), running(32, LOW, "c"))),
        rule=RULE,
    )
    assert usage.running_tokens == {"a": 660, "b": 820, "c": 32}
    assert usage.headroom_tokens == {HIGH: 1000, LOW: 0}


def test_each_class_has_a_headroom_of_its_own():
    batch = (
        running(160, HIGH, "a"),
        running(160, HIGH, "b"),
        running(320, NORMAL, "c"),
        running(16, LOW, "d"),
    )
    usage = virtual_usage(load(batch=batch), rule=HeadroomRule({HIGH: 600, NORMAL: 1200}))
    assert usage.running_tokens == {"a": 660, "b": 660, "c": 720, "d": 16}
    assert usage.headroom_tokens == {HIGH: 1000, NORMAL: 400, LOW: 0}
    assert usage.total_tokens == 656 + 1000 + 400


def test_a_target_load_over_the_capacity_is_no_headroom():
    usage = virtual_usage(load(batch=(running(160, HIGH),)), rule=HeadroomRule({HIGH: 2000}))
    assert usage.total_tokens == 160


def test_a_queued_high_request_brings_no_headroom_until_it_runs():
    usage = virtual_usage(load(batch=(running(160),), queue=(waiting(320, HIGH),)), rule=RULE)
    assert usage.total_tokens == 480


def test_memory_that_requests_share_counts_once():
    batch = (running(160, NORMAL, "a"), running(160, NORMAL, "b"))
    assert virtual_usage(load(batch=batch, used=240)).total_tokens == 240


def test_room_that_a_move_holds_counts_though_no_running_request_has_it():
    assert virtual_usage(load(batch=(running(160),), used=480)).total_tokens == 480


def test_an_idle_instance_has_no_number_for_a_page():
    assert breakdown(load()).freeness_or_none is None
    assert breakdown(load(batch=(running(160),))).freeness_or_none == 1440


requests = st.lists(
    st.builds(
        lambda blocks, priority, n: running(16 * blocks, priority, f"r{n}"),
        st.integers(1, 40),
        st.sampled_from(list(PriorityClass)),
        st.integers(),
    ),
    max_size=12,
    unique_by=lambda r: r.request_id,
).map(tuple)


@given(requests, st.integers(0, 3000), st.integers(1, 100_000))
def test_the_headroom_is_never_counted_twice(batch, target, capacity):
    usage = virtual_usage(load(batch=batch, capacity=capacity), rule=HeadroomRule({HIGH: target}))
    physical = sum(r.kv_tokens for r in batch)
    has_high = any(r.priority_class is HIGH for r in batch)
    expected = physical + (max(0, capacity - target) if has_high else 0)
    assert usage.total_tokens == pytest.approx(expected)


@given(requests, st.integers(0, 10_000))
def test_used_by_class_adds_up_to_what_is_used(batch, used):
    parts = breakdown(load(batch=batch, used=used))
    assert sum(parts.used_by_class.values()) == (used if batch else 0)


@given(st.integers(0, 10**6), st.floats(0, 10**6), st.integers(1, 500), st.floats(1, 10**5))
def test_more_virtual_usage_is_never_freer(capacity, virtual, batch, more):
    before = freeness_steps(capacity_tokens=capacity, virtual_tokens=virtual, running=batch)
    after = freeness_steps(capacity_tokens=capacity, virtual_tokens=virtual + more, running=batch)
    assert after < before
