"""The gateway's queue: who leaves it, who may pass whom, and for how long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_pool.policy.late_binding import LOOKED_AT, Held, has_room, release
from engine_pool.policy.settings import DispatchRule, HeadroomRule
from tests.policy.make import HIGH, LOW, NORMAL, demand, pools, standing

RULE = DispatchRule(is_late_binding=True)
NOW_S = 1000.0


def held(*sizes, since_s=None):
    """A queue of normal requests; the first has been blocked since then."""
    return [
        Held(demand(tokens, name=f"r{n}"), since_s if n == 0 else None)
        for n, tokens in enumerate(sizes)
    ]


def room(free: int, name: str = "i-01", **more):
    """A busy instance with so many tokens free above the watermark."""
    return standing(name, {NORMAL: [15_840 - free]}, **more)


def positions(outcome):
    return [r.position for r in outcome.releases]


@pytest.mark.parametrize(
    ("queue", "pool", "expected", "blocked"),
    [
        pytest.param([], [room(500)], [], None, id="an empty queue"),
        pytest.param(held(100, 200), [room(500)], [0, 1], None, id="in order"),
        pytest.param(held(100), [], [], 0, id="nobody is open"),
        pytest.param(held(100), [room(500, is_draining=True)], [], 0, id="nor a draining one"),
        pytest.param(held(500), [room(500)], [0], None, id="what just fits"),
        pytest.param(held(501), [room(500)], [], 0, id="what just does not"),
        pytest.param(held(600, 100), [room(500)], [1], 0, id="a smaller one passes the head"),
        pytest.param(
            held(300, 300, 100), [room(500)], [0, 2], 1, id="what was released counts for others"
        ),
        pytest.param(
            held(300, 300), [room(500), room(400, "i-02")], [0, 1], None, id="two places for two"
        ),
        pytest.param(
            held(100, 100, 100), [room(500, max_running=3)], [0, 1], 2, id="until the batch is full"
        ),
        pytest.param(
            held(15_840), [standing("i-01")], [0], None, id="an idle one takes whatever it holds"
        ),
        pytest.param(held(100, 15_840), [standing("i-01")], [0], 1, id="but only while it is idle"),
        pytest.param(held(15_841), [standing("i-01")], [], 0, id="not what it can never hold"),
    ],
)
def test_who_leaves_the_queue(queue, pool, expected, blocked):
    outcome = release(queue, pool, RULE, NOW_S)
    assert positions(outcome) == expected
    assert outcome.blocked == blocked
    assert outcome.is_passing == (blocked is not None)
    for r in outcome.releases:
        assert r.choice.reason.startswith(r.choice.instance)
        assert "KV tokens left" in r.choice.reason


@pytest.mark.parametrize(
    ("since_s", "expected"),
    [
        pytest.param(None, [1], id="a head that is blocked for the first time is passed"),
        pytest.param(NOW_S - 29.9, [1], id="and for 30 s"),
        pytest.param(NOW_S - 30, [], id="then the queue waits for it"),
    ],
)
def test_passing_has_an_end(since_s, expected):
    outcome = release(held(600, 100, since_s=since_s), [room(500)], RULE, NOW_S)
    assert positions(outcome) == expected
    assert outcome.blocked == 0
    assert outcome.is_passing == bool(expected)


def test_a_head_that_fits_now_ends_the_waiting():
    outcome = release(held(400, 100, since_s=NOW_S - 99), [room(500)], RULE, NOW_S)
    assert positions(outcome) == [0, 1]


def test_passing_may_be_forbidden():
    rule = DispatchRule(late_pass_s=0)
    assert positions(release(held(600, 100), [room(500)], rule, NOW_S)) == []


def test_only_so_many_are_looked_at():
    outcome = release(held(600, *([1] * 100)), [room(500)], RULE, NOW_S)
    assert positions(outcome) == list(range(1, LOOKED_AT))


def test_a_floor_keeps_room_to_grow():
    """500 - 100 for two requests are 200 steps."""
    queue = held(100)
    at, over = (DispatchRule(late_floor_steps=steps) for steps in (200, 201))
    assert positions(release(queue, [room(500)], at, NOW_S)) == [0]
    assert positions(release(queue, [room(500)], over, NOW_S)) == []
    assert positions(release(held(15_840), [standing()], over, NOW_S)) == [0]


HOST = standing("i-01", {HIGH: [1500]})


@pytest.mark.parametrize(
    ("priority", "is_elastic", "goes"),
    [
        pytest.param(NORMAL, True, True, id="elastic headroom is lent"),
        pytest.param(NORMAL, False, False, id="hard headroom is waited for"),
        pytest.param(HIGH, False, True, id="a class's own is no obstacle"),
    ],
)
def test_headroom_in_the_queue(priority, is_elastic, goes):
    rule = DispatchRule(is_elastic=is_elastic)
    outcome = release([Held(demand(100, priority))], [HOST], rule, NOW_S)
    assert (positions(outcome) == [0]) == goes


def test_what_waits_in_lower_classes_does_not_take_the_room():
    s = standing("i-01", {NORMAL: [1000]}, {LOW: [14_800]})
    assert has_room(s, demand(100, HIGH), RULE)
    assert not has_room(s, demand(100, LOW), RULE)


queues = st.lists(
    st.builds(demand, st.integers(1, 3000), st.sampled_from([HIGH, NORMAL, LOW])).map(Held),
    max_size=12,
).map(lambda queue: sorted(queue, key=lambda h: h.demand.priority_class.rank))


@given(queues, pools())
def test_what_is_released_fits_together(queue, pool):
    before = repr(pool)
    rule = DispatchRule(headroom=HeadroomRule({}))
    outcome = release(queue, pool, rule, NOW_S)
    assert repr(pool) == before, "it decides on copies"
    gone = positions(outcome)
    assert gone == sorted(set(gone))
    if outcome.blocked is None:
        assert gone == list(range(len(queue)))
    else:
        assert outcome.blocked not in gone
        assert gone[: outcome.blocked] == list(range(outcome.blocked))
    for s in pool:
        new = [r for r in outcome.releases if r.choice.instance == s.instance]
        if not new:
            continue
        assert s.is_open
        assert s.batch + s.waiting + len(new) <= s.max_running
        tokens = sum(queue[r.position].demand.demand_tokens for r in new)
        assert tokens <= int(s.capacity_tokens * 0.99) - s.used_tokens


@given(queues, pools(), st.randoms())
def test_the_order_of_the_instances_does_not_matter(queue, pool, random):
    shuffled = random.sample(pool, len(pool))
    assert release(queue, pool, RULE, NOW_S) == release(queue, shuffled, RULE, NOW_S)
