"""Room for a blocked head of the line: when one move makes it, and which."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_pool.policy.defragment import RoomMove, make_room
from tests.policy.make import HIGH, LOW, NORMAL, Request, standing

WATERMARK = 0.01
"""160 of 16,000 tokens."""
SOURCE = standing("i-01", {NORMAL: [15_000]})
"""840 tokens are free above the watermark."""
OWN = (Request("a", 400), Request("b", 2000), Request("c", 1000))


def room(free: int, name: str = "i-02", **more):
    """An instance with so many tokens free above the watermark."""
    return standing(name, {NORMAL: [15_840 - free]}, **more)


def moved(need, others, requests=OWN, source=SOURCE):
    pool = [source, *others]
    return make_room(source, need, pool, lambda name: requests, WATERMARK)


@pytest.mark.parametrize(
    ("need", "others", "expected"),
    [
        pytest.param(1700, [room(1100)], ("c", "i-02"), id="one move does it"),
        pytest.param(1700, [room(500), room(1500, "i-03")], ("c", "i-03"), id="where it fits"),
        pytest.param(
            1700, [room(1500), room(1016, "i-03")], ("c", "i-03"), id="the smallest hole for it"
        ),
        pytest.param(
            1200, [room(500), room(1100, "i-03")], ("a", "i-02"), id="the smallest request"
        ),
        pytest.param(1900, [room(1100)], None, id="a larger one makes room but fits nowhere"),
        pytest.param(3000, [room(2100)], None, id="one move does not do"),
        pytest.param(840, [room(600)], None, id="it fits as it is"),
        pytest.param(841, [room(600)], ("a", "i-02"), id="it is short of 1 token"),
        pytest.param(1700, [room(1100), room(1700, "i-03")], None, id="it fits elsewhere"),
        pytest.param(
            1700,
            [room(1100), standing("i-03", queued={NORMAL: [100]})],
            ("c", "i-02"),
            id="elsewhere it would queue again",
        ),
        pytest.param(
            1700,
            [room(1100), room(1700, "i-03", max_running=1)],
            ("c", "i-02"),
            id="elsewhere the batch is full",
        ),
        pytest.param(1700, [room(1015)], None, id="no hole is large enough"),
        pytest.param(1700, [room(1100, is_open=False)], None, id="not to a cordoned one"),
        pytest.param(1700, [room(1100, is_draining=True)], None, id="not to a draining one"),
        pytest.param(1700, [room(1100, max_running=1)], None, id="not into a full batch"),
        pytest.param(1700, [], None, id="an instance alone"),
    ],
)
def test_a_blocked_head_gets_the_move_that_makes_room(need, others, expected):
    found = moved(need, others)
    assert (found and (found.request.name, found.destination)) == expected
    assert moved(need, others[::-1]) == found


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        pytest.param([Request("a", 900), Request("b", 1000, LOW.rank)], "b", id="lower class"),
        pytest.param([Request("a", 900, HIGH.rank), Request("b", 1000)], "b", id="not the high"),
        pytest.param([Request("a", 900, can_move=False), Request("b", 1000)], "b", id="movable"),
    ],
)
def test_which_request_makes_room(requests, expected):
    found = moved(1700, [room(1100)], requests)
    assert found is not None
    assert found.request.name == expected


def test_it_says_why():
    found = moved(1700, [room(1100)])
    assert found == RoomMove(
        OWN[2],
        SOURCE.instance,
        "i-02",
        "the head of the line of i-01 needs 1700 KV tokens, 860 more than are free there, and fits"
        " nowhere else; this request makes room and fits into i-02",
    )


sizes = st.lists(st.integers(1, 60).map(lambda blocks: 16 * blocks), max_size=6)


@given(sizes, st.lists(st.integers(0, 2000), max_size=5), st.integers(1, 3000), st.randoms())
def test_a_move_makes_room_and_finds_room(own, free, need, random):
    requests = [Request(f"r{n}", tokens) for n, tokens in enumerate(own)]
    source = standing("i-00", {NORMAL: own}, {NORMAL: [need]}, capacity=1600)
    others = [
        standing(f"i-{n:02d}", {NORMAL: [16]}, used=2000 - tokens, capacity=2000)
        for n, tokens in enumerate(free, 1)
    ]
    pool = [source, *others]
    found = make_room(source, need, pool, lambda name: requests, WATERMARK)
    shuffled = random.sample(pool, len(pool))
    assert make_room(source, need, shuffled, lambda name: requests, WATERMARK) == found
    if found is None:
        return
    assert found.source != found.destination
    place = next(s for s in others if s.instance == found.destination)
    assert need <= source.free_tokens - 16 + found.request.kv_tokens
    assert found.request.need_tokens <= place.free_tokens - 20
    assert need > max(s.free_tokens - 20 for s in others)
