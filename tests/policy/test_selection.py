"""Which request moves: classes, lengths, headroom, and why none does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_pool.policy.freeness import freeness_of
from engine_pool.policy.selection import NoSelection, Selection, select
from engine_pool.policy.settings import HeadroomRule, RebalanceRule
from tests.policy.make import HIGH, LOW, NORMAL, Request, headrooms, standing, standings

RULE = RebalanceRule()
"""Under 48 steps an instance is full."""
HEADROOM = HeadroomRule({HIGH: 1600})
FULL = standing("i-01", {NORMAL: [1590] * 10})
FREE = standing("i-02", {NORMAL: [1000]})


def high(name, tokens, can_move=True):
    return Request(name, tokens, HIGH.rank, can_move)


def low(name, tokens, can_move=True):
    return Request(name, tokens, LOW.rank, can_move)


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        pytest.param([Request("a", 320), Request("b", 160)], "b", id="the shorter"),
        pytest.param([Request("a", 160), low("b", 1600)], "b", id="but a lower class first"),
        pytest.param([high("a", 16), Request("b", 1600)], "b", id="high after normal"),
        pytest.param([high("a", 320), high("b", 160)], "b", id="a high one when all are high"),
        pytest.param(
            [Request("a", 16, can_move=False), Request("b", 320)], "b", id="never an immovable one"
        ),
        pytest.param([Request("b", 160), Request("a", 160)], "a", id="by name among equals"),
        pytest.param(
            [low("a", 15_000), Request("b", 160)], "b", id="not one that has no room there"
        ),
        pytest.param([Request("a", 0), Request("b", 160)], "a", id="one that holds nothing yet"),
    ],
)
def test_which_request_goes(requests, expected):
    for order in (requests, requests[::-1]):
        found = select(order, FULL, FREE, RULE, HEADROOM)
        assert isinstance(found, Selection)
        assert found.request.name == expected


def test_a_reason_has_class_and_size():
    found = select([low("a", 160)], FULL, FREE, RULE, HEADROOM)
    assert found == Selection(low("a", 160), "low class, 176 KV tokens to place")


ONLY_HEADROOM = standing("i-01", {HIGH: [800, 800], NORMAL: [160]})
"""Full with the headroom of its high requests; 4746 steps without."""


def test_a_high_request_does_not_leave_for_its_own_headroom():
    assert freeness_of(ONLY_HEADROOM, HEADROOM) < RULE.below_steps
    found = select([high("a", 800)], ONLY_HEADROOM, standing("i-02"), RULE, HEADROOM)
    assert isinstance(found, NoSelection)
    assert "1 of a class whose headroom is not the reason to go" in found.why


def test_a_normal_one_does():
    requests = [high("a", 800), Request("b", 160)]
    found = select(requests, ONLY_HEADROOM, standing("i-02"), RULE, HEADROOM)
    assert isinstance(found, Selection)
    assert found.request.name == "b"


def test_a_normal_one_leaves_a_host_even_for_an_instance_with_less_memory_left():
    """It sees the headroom at its source as taken, and there is none at the destination."""
    busy = standing("i-02", {NORMAL: [1000]})
    found = select([Request("b", 160)], ONLY_HEADROOM, busy, RULE, HEADROOM)
    assert isinstance(found, Selection)


def test_a_high_request_leaves_an_instance_that_is_full_without_headroom():
    full = standing("i-01", {HIGH: [1590] * 10})
    found = select([high("a", 1590)], full, FREE, RULE, HEADROOM)
    assert isinstance(found, Selection)


@pytest.mark.parametrize(
    ("destination", "tokens", "moves"),
    [
        pytest.param(standing("i-02"), 15_900, True, id="to an idle one that becomes as full"),
        pytest.param(
            # 16,000 - 15,680 - 192 = 128 for two: 64 steps, 10 at the source.
            standing("i-02", {NORMAL: [15_680]}),
            176,
            True,
            id="freer with it than the source is",
        ),
        pytest.param(
            standing("i-02", {NORMAL: [15_788]}), 176, False, id="as free with it as the source"
        ),
        pytest.param(standing("i-02", {NORMAL: [15_900]}), 176, False, id="no room at all"),
    ],
)
def test_a_move_must_improve(destination, tokens, moves):
    found = select([Request("a", tokens)], FULL, destination, RULE, HEADROOM)
    assert isinstance(found, Selection) == moves
    if isinstance(found, NoSelection):
        assert "1 would leave it less free than it is here" in found.why


def test_a_draining_source_lets_go_of_whatever_has_room():
    leaving = standing("i-01", {NORMAL: [160]}, is_draining=True)
    packed = standing("i-02", {NORMAL: [1000] * 15})
    assert isinstance(select([Request("a", 160)], leaving, packed, RULE, HEADROOM), Selection)
    assert isinstance(select([high("a", 160)], leaving, packed, RULE, HEADROOM), Selection)
    assert isinstance(select([Request("a", 1600)], leaving, packed, RULE, HEADROOM), NoSelection)


def test_why_nobody_goes_counts_each_reason():
    requests = [Request("a", 160, can_move=False), Request("b", 15_990), high("c", 160)]
    found = select(requests, ONLY_HEADROOM, standing("i-02"), RULE, HEADROOM)
    assert found == NoSelection(
        "none of 3 requests of i-01 can go to i-02: 1 cannot move now, 1 would leave it less free"
        " than it is here, 1 of a class whose headroom is not the reason to go"
    )


def test_nobody_is_there_to_go():
    found = select([], FULL, FREE, RULE, HEADROOM)
    assert isinstance(found, NoSelection)
    assert "none of 0 requests" in found.why


candidates = st.lists(
    st.builds(
        Request,
        st.integers(0, 99).map("r{}".format),
        st.integers(0, 120).map(lambda blocks: blocks * 16),
        st.sampled_from([c.rank for c in (HIGH, NORMAL, LOW)]),
        st.booleans(),
    ),
    max_size=12,
    unique_by=lambda r: r.name,
)


@given(candidates, standings("i-01"), standings("i-02"), headrooms(), st.randoms())
def test_what_holds_for_every_selection(requests, source, destination, headroom, random):
    found = select(requests, source, destination, RULE, headroom)
    shuffled = random.sample(requests, len(requests))
    assert select(shuffled, source, destination, RULE, headroom) == found
    if isinstance(found, NoSelection):
        assert f"none of {len(requests)} requests" in found.why
        return
    chosen = found.request
    assert chosen.can_move
    assert chosen.need_tokens <= destination.free_tokens
    same = [
        r
        for r in requests
        if r.can_move and r.rank == chosen.rank and r.need_tokens < chosen.need_tokens
    ]
    assert same == [], "a shorter one of the same class fits, too"


@given(candidates, headrooms())
def test_a_draining_source_gives_up_all_that_can_move(requests, headroom):
    leaving = standing("i-01", {NORMAL: [160]}, is_draining=True)
    roomy = standing("i-02", capacity=16_000)
    found = select(requests, leaving, roomy, RULE, headroom)
    assert isinstance(found, Selection) == any(r.can_move for r in requests)
