"""What reports and wishes say, sorted for a check of scaling."""

import math
from dataclasses import replace

import pytest

from engine_pool.policy.scaling_view import Intent, is_usable, picture_of
from engine_pool.types import CRASH_LOOP_FAILURES, InstanceName, InstanceState
from tests.engine_pool.make import NOW_UNIX_S, load, running, status, waiting

S = InstanceState
SLOTS = [InstanceName(f"i-{n:02d}") for n in (1, 2, 3)]


def seen(states, *, own=(), kept=(), nodes=(), slots=SLOTS, loads=None, **more):
    """The picture of instances in these states, all of which report two requests."""
    statuses = [status(name, state) for name, state in states.items()]
    statuses = [replace(s, **more.get(s.instance, {})) for s in statuses]
    if loads is None:
        loads = [load(name, batch=(running(160), running(320))) for name in states]
    return picture_of(
        Intent(slots, own, kept, nodes), statuses, loads, now_unix_s=NOW_UNIX_S, max_age_s=5.0
    )


def test_those_who_serve_count_with_their_requests():
    found = seen({"i-01": S.SERVING, "i-02": S.SERVING, "i-03": S.SERVING})
    assert [(s.instance, s.batch) for s in found.serving] == [("i-01", 2), ("i-02", 2), ("i-03", 2)]
    assert (found.count, found.silent, found.starting_tokens) == (3, 0, ())
    assert not found.is_idle


@pytest.mark.parametrize("state", [S.STARTING, S.STOPPED, S.STOPPING, S.LOST, None])
def test_what_is_wanted_and_does_not_serve_yet_starts(state):
    states = {"i-01": S.SERVING, "i-02": S.SERVING} | ({} if state is None else {"i-03": state})
    found = seen(states)
    assert (found.count, found.starting_tokens, found.leaving) == (3, (1600,), [])


@pytest.mark.parametrize("state", [S.DRAINING, S.DRAINED])
def test_one_that_is_replaced_leaves_and_comes_back(state):
    found = seen({"i-01": S.SERVING, "i-02": S.SERVING, "i-03": state})
    assert (found.count, found.starting_tokens) == (3, (1600,))
    assert [s.instance for s in found.leaving] == ["i-03"]
    assert found.undrainable == set()


@pytest.mark.parametrize("state", [S.SERVING, S.CORDONED, S.DRAINING, S.DRAINED])
def test_a_drain_of_the_loops_own_can_be_taken_back_while_its_engine_runs(state):
    found = seen({"i-01": S.SERVING, "i-02": S.SERVING, "i-03": state}, own=["i-03"])
    assert (found.count, found.undrainable, found.asleep) == (2, {"i-03"}, [])
    assert [s.instance for s in found.leaving] == ["i-03"]


def test_what_the_loop_has_stopped_sleeps_nearest_to_serving_first():
    states = {"i-01": S.STOPPED, "i-02": S.SERVING, "i-03": S.STOPPING}
    found = seen(states, own=["i-01", "i-03"])
    assert (found.count, found.asleep, found.undrainable) == (1, ["i-03", "i-01"], set())


def test_what_people_keep_is_away_and_only_its_load_may_come():
    states = {"i-01": S.SERVING, "i-02": S.CORDONED, "i-03": S.DRAINING}
    found = seen(states, kept=["i-02", "i-03"], own=["i-03"])
    assert (found.count, found.away, found.undrainable) == (1, 2, set())
    assert [s.instance for s in found.leaving] == ["i-03"]
    node = {"i-02": {"node": "b"}}
    assert seen({"i-01": S.SERVING, "i-02": S.SERVING}, nodes=["b"], **node).away == 1


def test_a_crash_loop_neither_starts_nor_serves():
    failing = {"i-03": {"failures": CRASH_LOOP_FAILURES}}
    for state in (S.LOST, S.STARTING, S.STOPPED):
        found = seen({"i-01": S.SERVING, "i-02": S.SERVING, "i-03": state}, **failing)
        assert (found.count, found.failing, found.starting_tokens) == (2, 1, ())
    found = seen({"i-01": S.SERVING, "i-02": S.SERVING, "i-03": S.SERVING}, **failing)
    assert (found.count, found.failing) == (3, 0)


def test_one_beyond_the_pools_slots_only_leaves():
    found = seen({"i-01": S.SERVING, "i-02": S.DRAINING}, slots=SLOTS[:1])
    assert (found.count, found.away, [s.instance for s in found.leaving]) == (1, 0, ["i-02"])


def test_one_that_serves_and_says_nothing_is_silent():
    found = seen({"i-01": S.SERVING, "i-02": S.SERVING}, loads=[load("i-01")])
    assert (found.count, found.silent, found.is_idle) == (3, 1, True)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param({}, True, id="as it should be"),
        pytest.param({"at_unix_s": NOW_UNIX_S - 5.0}, True, id="as old as may be"),
        pytest.param({"at_unix_s": NOW_UNIX_S - 5.1}, False, id="too old"),
        pytest.param({"at_unix_s": NOW_UNIX_S + 5.1}, False, id="from the future"),
        pytest.param({"at_unix_s": math.nan}, False, id="no time"),
        pytest.param({"at_unix_s": -math.inf}, False, id="endless"),
        pytest.param({"incarnation": "b"}, False, id="a predecessor's"),
        pytest.param({"capacity_tokens": 0}, False, id="no capacity"),
        pytest.param({"capacity_tokens": math.nan}, False, id="capacity is no number"),
        pytest.param({"used_tokens": -1}, False, id="negative use"),
        pytest.param({"used_tokens": math.nan}, False, id="use is no number"),
        pytest.param({"used_tokens": math.inf}, False, id="infinite use"),
        pytest.param({"block_size_tokens": 0}, False, id="no block"),
        pytest.param({"max_running": -1}, False, id="negative batch"),
        pytest.param({"running": (running(-16),)}, False, id="a request of negative size"),
        pytest.param({"waiting": (waiting(-16),)}, False, id="one that waits for less than none"),
    ],
)
def test_which_reports_are_decided_on(change, expected):
    report = replace(load(), **change)
    assert is_usable(report, status(), NOW_UNIX_S, 5.0) is expected
    found = picture_of(
        Intent(SLOTS[:1]), [status()], [report], now_unix_s=NOW_UNIX_S, max_age_s=5.0
    )
    assert (found.silent, len(found.serving)) == ((0, 1) if expected else (1, 0))
