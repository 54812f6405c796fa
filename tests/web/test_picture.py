"""What is said of an instance: states, captions, tones, numbers, and what is not known."""

import time
from dataclasses import replace

import pytest

from controlplane.fleet import picture
from controlplane.fleet.picture import Progress, instance_row
from engine_pool.types import InstanceState, InstanceStatus
from tests.web import fake_pool

NOW_S = 1_000_000.0
NAME = fake_pool.names(1)[0]


def _status(state: InstanceState = InstanceState.SERVING, cause: str = "answers") -> InstanceStatus:
    return replace(fake_pool.status_of(0, NAME, 1, NOW_S), state=state, cause=cause)


LOAD = fake_pool.load_of(2, NAME, 1, NOW_S)
CROWDED = fake_pool.load_of(1, NAME, 1, NOW_S)


def test_a_serving_instance_has_numbers_that_agree_with_the_policy() -> None:
    row = instance_row(_status(), LOAD, Progress(NOW_S, 0), NOW_S)
    assert row.state == "serving"
    assert row.freeness == round((LOAD.capacity_tokens - LOAD.used_tokens) / len(LOAD.running), 0)
    assert sum(row.bar) == pytest.approx(1000 * LOAD.used_tokens / LOAD.capacity_tokens, abs=2)
    assert row.caption.startswith(f"{100 * LOAD.used_tokens / LOAD.capacity_tokens:.0f} % used")


def test_queued_demand_pushes_virtual_usage_over_the_capacity() -> None:
    row = instance_row(_status(), CROWDED, Progress(NOW_S, 0), NOW_S)
    assert row.virtual_tokens == CROWDED.used_tokens + CROWDED.head_demand_tokens
    assert isinstance(row.freeness, float)
    assert row.freeness < 0
    assert sum(row.bar) > 1000


def test_without_a_report_every_number_is_unknown() -> None:
    row = instance_row(_status(), None, None, NOW_S)
    assert row.caption == "no report yet"
    unknown = (row.at_unix_s, row.used_tokens, row.freeness, row.running, row.waiting, row.step_ms)
    assert unknown == (None,) * 6


def test_a_report_of_the_incarnation_before_does_not_count() -> None:
    row = instance_row(replace(_status(), incarnation="two"), LOAD, Progress(NOW_S, 0), NOW_S)
    assert row.running is None


@pytest.mark.parametrize(
    ("state", "cause", "caption", "tone"),
    [
        (InstanceState.STARTING, "loading weights", "loading weights", "info"),
        (InstanceState.LOST, "exit code -9", "exit code -9", "bad"),
        (InstanceState.CORDONED, "by olga", "by olga", "plan"),
        (InstanceState.DRAINING, "by olga", f"{len(LOAD.running)} left", "plan"),
    ],
)
def test_the_caption_says_what_matters_most(
    state: InstanceState, cause: str, caption: str, tone: str
) -> None:
    row = instance_row(_status(state, cause), LOAD, Progress(NOW_S, 5), NOW_S)
    assert (row.caption, row.tone) == (caption, tone)


def test_a_draining_instance_is_minus_infinitely_free() -> None:
    row = instance_row(_status(InstanceState.DRAINING), LOAD, Progress(NOW_S, 0), NOW_S)
    assert row.freeness == "draining"
    assert row.virtual_tokens is None


def test_an_instance_without_a_batch_is_idle() -> None:
    idle = replace(LOAD, running=(), waiting=(), used_tokens=0)
    assert instance_row(_status(), idle, Progress(NOW_S, 0), NOW_S).freeness == "idle"


def test_running_requests_without_a_step_are_a_fault() -> None:
    row = instance_row(_status(), LOAD, Progress(NOW_S - 20, 0), NOW_S)
    assert row.state == "no_progress"
    assert row.caption == f"no step for 20 s, {len(LOAD.running)} running"
    assert row.tone == "bad"


def test_an_instance_that_does_not_report_is_silent_not_stuck() -> None:
    later_s = NOW_S + 60
    row = instance_row(_status(), LOAD, Progress(LOAD.at_unix_s, 0), later_s)
    assert row.state == "serving"
    assert "no step" not in row.caption


def test_preemptions_stand_in_the_caption() -> None:
    row = instance_row(_status(), LOAD, Progress(NOW_S, 4), NOW_S)
    assert row.caption.startswith("4 preempted /min · ")
    assert row.tone == "warn"


@pytest.mark.parametrize(
    ("freeness", "level"),
    [
        (None, "none"),
        ("draining", "none"),
        (-20.0, "short"),
        (100.0, "low"),
        (500.0, "band"),
        (2000.0, "high"),
        (9000.0, "spare"),
        ("idle", "spare"),
    ],
)
def test_freeness_has_five_levels(freeness: picture.Freeness, level: str) -> None:
    row = instance_row(_status(), LOAD, Progress(NOW_S, 0), NOW_S)._replace(freeness=freeness)
    assert picture.freeness_level(row, NOW_S) == level


def test_a_stale_number_has_no_level() -> None:
    row = instance_row(_status(), LOAD, Progress(NOW_S, 0), NOW_S)
    assert picture.freeness_level(row, NOW_S + picture.STALE_AFTER_S + 1) == "none"


def test_digits_in_names_count_as_numbers() -> None:
    row = instance_row(_status(), LOAD, None, NOW_S)
    rows = picture.in_order({"i-10": row, "i-2": row, "i-1": row._replace(node="node-10")})
    assert list(rows) == ["i-2", "i-10", "i-1"]


def test_the_numbers_of_a_capacity_of_nothing_do_not_divide_by_it() -> None:
    broken = replace(LOAD, capacity_tokens=0)
    row = instance_row(_status(), broken, Progress(NOW_S, 0), NOW_S)
    assert row.caption == "reports no KV cache"
    assert row.bar == (0,) * 7


def test_events_have_the_same_key_at_every_look() -> None:
    events = fake_pool.events_of(time.time())
    assert picture.event_rows(events).keys() == picture.event_rows(events).keys()
    assert len(picture.event_rows(events)) == len(events)
