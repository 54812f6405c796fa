from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from migration.stages import (
    Copy,
    Pause,
    Prediction,
    StageLimits,
    Way,
    next_stage,
    predict,
    room_tokens,
)

LIMITS = StageLimits(copies_max=3, last_blocks=1)
WAY = Way(bytes_per_s=1e9, round_trip_ms=1.0)
limits = st.builds(StageLimits, copies_max=st.integers(0, 8), last_blocks=st.integers(0, 4))
moves = st.fixed_dictionaries(
    {
        "tokens": st.integers(1, 20_000),
        "block_size_tokens": st.sampled_from([1, 16, 128]),
        "block_bytes": st.integers(1, 20_000_000),
        "way": st.builds(Way, bytes_per_s=st.floats(1e5, 1e11), round_trip_ms=st.floats(0, 100)),
        "step_ms": st.floats(0.5, 500),
        "copy_share": st.floats(0.01, 1),
        "limits": limits,
    }
)


def a_prediction(**changes: Any) -> Prediction:
    usual: dict[str, Any] = {
        "tokens": 1024,
        "block_size_tokens": 16,
        "block_bytes": 1_000_000,
        "way": WAY,
        "step_ms": 10.0,
        "limits": LIMITS,
        "copy_share": 1.0,
    }
    return predict(**(usual | changes))


@pytest.mark.parametrize(
    ("complete", "sent", "copies", "stage"),
    [
        pytest.param(64, 0, 0, Copy(64), id="all that is complete goes with the first copy"),
        pytest.param(66, 64, 1, Copy(2), id="then what was filled meanwhile"),
        pytest.param(65, 64, 1, Pause(), id="little is left"),
        pytest.param(64, 64, 1, Pause(), id="nothing is left"),
        pytest.param(90, 64, 3, Pause(), id="enough copies were made"),
        pytest.param(1, 0, 0, Pause(), id="a short request needs no copy"),
        pytest.param(0, 0, 0, Pause(), id="a queued request needs none either"),
        pytest.param(40, 64, 0, Pause(), id="the destination had more in its cache"),
    ],
)
def test_the_next_stage(complete, sent, copies, stage):
    found = next_stage(complete_blocks=complete, sent_blocks=sent, copies=copies, limits=LIMITS)
    assert found == stage


@given(limits, st.lists(st.integers(0, 50), min_size=1, max_size=12))
def test_copying_comes_to_a_pause_whatever_the_request_fills_meanwhile(bounds, filled):
    complete = sent = copies = 0
    for blocks in (*filled, *[7] * 10):
        complete += blocks
        stage = next_stage(complete_blocks=complete, sent_blocks=sent, copies=copies, limits=bounds)
        if isinstance(stage, Pause):
            break
        sent += stage.blocks
        copies += 1
        assert sent == complete
    assert isinstance(stage, Pause)
    assert copies <= bounds.copies_max


@given(st.integers(0, 10_000), st.integers(1, 256))
def test_room_leaves_a_whole_block_beyond_the_one_being_filled(computed, block_size):
    room = room_tokens(computed, block_size)
    assert room % block_size == 0
    assert block_size < room - computed <= 2 * block_size


def test_a_prediction_of_a_fast_way_is_one_copy_and_one_block():
    found = a_prediction()
    assert found.copy_blocks == (64,)
    assert found.copy_ms == pytest.approx(64 + 2)
    # 6 tokens were produced meanwhile: no block was filled.
    assert found.last_blocks == 1
    assert found.downtime_ms == pytest.approx(1 + 2 + 15)
    assert found.bytes == 65 * 1_000_000


def test_a_slow_way_needs_more_copies_and_each_is_smaller():
    found = a_prediction(way=Way(bytes_per_s=5e7, round_trip_ms=1.0), block_size_tokens=4)
    assert len(found.copy_blocks) == 3
    assert list(found.copy_blocks) == sorted(found.copy_blocks, reverse=True)


def test_an_unhurried_copy_takes_longer_and_the_pause_does_not():
    hurried, unhurried = a_prediction(), a_prediction(copy_share=0.5)
    assert unhurried.copy_ms > hurried.copy_ms
    assert unhurried.downtime_ms == hurried.downtime_ms


@given(moves)
def test_a_prediction_sends_every_block_once_in_no_more_copies_than_allowed(move):
    found = predict(**move)
    assert len(found.copy_blocks) <= move["limits"].copies_max
    assert all(blocks > move["limits"].last_blocks for blocks in found.copy_blocks)
    assert found.bytes == (sum(found.copy_blocks) + found.last_blocks) * move["block_bytes"]
    produced = int(found.copy_ms / move["step_ms"])
    blocks = (move["tokens"] + produced) // move["block_size_tokens"] + 1
    assert sum(found.copy_blocks) + found.last_blocks == blocks
    assert found.last_blocks >= 1
    assert found.downtime_ms > move["step_ms"]


@given(moves, st.integers(1, 5_000))
def test_more_tokens_in_as_many_copies_are_never_predicted_to_be_less(move, more):
    few, many = predict(**move), predict(**(move | {"tokens": move["tokens"] + more}))
    if len(few.copy_blocks) <= len(many.copy_blocks):
        assert many.bytes >= few.bytes
        assert many.copy_ms >= few.copy_ms or many.copy_ms == pytest.approx(few.copy_ms)


@given(moves, st.integers(1, 5_000))
def test_a_move_in_one_copy_grows_with_its_tokens(move, more):
    one = move | {"limits": StageLimits(copies_max=1, last_blocks=0)}
    few, many = predict(**one), predict(**(one | {"tokens": move["tokens"] + more}))
    assert many.copy_ms >= few.copy_ms
    assert many.bytes >= few.bytes


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"tokens": 0}, id="no tokens"),
        pytest.param({"block_size_tokens": 0}, id="blocks of no tokens"),
        pytest.param({"block_bytes": -1}, id="blocks of less than nothing"),
        pytest.param({"way": Way(bytes_per_s=0.0, round_trip_ms=1.0)}, id="a dead way"),
        pytest.param({"step_ms": 0.0}, id="steps of no time"),
        pytest.param({"copy_share": 0.0}, id="no time for copying"),
    ],
)
def test_a_value_that_cannot_be_is_an_error(changes):
    with pytest.raises(ValueError, match="must be above 0"):
        a_prediction(**changes)
