"""Who is raised by ageing, and who makes room for whom: tables."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_pool.policy.urgency import (
    Occupant,
    Room,
    Seeker,
    Turn,
    Waiting,
    preempted,
    prompt_share_tokens,
    raised,
)

HIGH, NORMAL, LOW = 0, 1, 2
AGEING_S = 100.0


def waits(name: str, rank: int, waited_s: float, tag: float = 0, turn: Turn | None = None):
    return Waiting(name, rank, turn or Turn(rank, tag), waited_s)


@pytest.mark.parametrize(
    ("waiting", "changed"),
    [
        pytest.param([waits("a", LOW, 99)], {}, id="not yet"),
        pytest.param([waits("a", LOW, 100)], {"a": Turn(NORMAL, 0)}, id="one class a period"),
        pytest.param([waits("a", LOW, 250)], {"a": Turn(HIGH, 0)}, id="two periods, two classes"),
        pytest.param([waits("a", LOW, 9999)], {"a": Turn(HIGH, 0)}, id="not above the highest"),
        pytest.param([waits("a", HIGH, 9999)], {}, id="the highest is never raised"),
        pytest.param(
            [waits("a", LOW, 150), waits("b", NORMAL, 3, tag=70), waits("c", NORMAL, 2, tag=40)],
            {"a": Turn(NORMAL, 71)},
            id="behind those who wait in the class above",
        ),
        pytest.param(
            [waits("a", LOW, 180, turn=Turn(NORMAL, 71)), waits("b", NORMAL, 3, tag=90)],
            {},
            id="it keeps the turn that it got",
        ),
        pytest.param(
            [waits("a", LOW, 200, turn=Turn(NORMAL, 71)), waits("b", HIGH, 3, tag=5)],
            {"a": Turn(HIGH, 6)},
            id="raised again",
        ),
        pytest.param(
            [waits("a", LOW, 300, tag=9), waits("b", LOW, 150, tag=4)],
            {"b": Turn(NORMAL, 0)},
            id="only the first of a class, in its fair order",
        ),
        pytest.param(
            [waits("a", LOW, 300, turn=Turn(HIGH, 0)), waits("b", LOW, 300, tag=4)],
            {},
            id="nobody else while one of the class is raised",
        ),
        pytest.param(
            [waits("a", LOW, 200), waits("b", NORMAL, 100)],
            {"b": Turn(HIGH, 0), "a": Turn(HIGH, 1)},
            id="of two that are raised at once the higher class goes first",
        ),
        pytest.param([], {}, id="an empty queue"),
    ],
)
def test_ageing_raises_the_first_of_a_class(waiting, changed):
    assert raised(waiting, AGEING_S) == changed


def test_ageing_can_be_switched_off():
    assert raised([waits("a", LOW, 1e9)], 0.0) == {}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(Turn(HIGH, 1e30), Turn(NORMAL, 0), id="class before tag"),
        pytest.param(Turn(NORMAL, 5), Turn(NORMAL, 6), id="then the tag"),
        pytest.param(Turn(NORMAL, 2.0**59), Turn(NORMAL, 2.0**60), id="up to the largest tag"),
    ],
)
def test_the_number_orders_as_the_turn_does(first, second):
    assert first < second
    assert first.priority < second.priority


@given(
    st.tuples(st.integers(0, 2), st.integers(0, 10**15)),
    st.tuples(st.integers(0, 2), st.integers(0, 10**15)),
)
def test_numbers_never_disagree_with_turns(one, other):
    assert (Turn(*one) < Turn(*other)) == (Turn(*one).priority < Turn(*other).priority)


def runs(name: str, rank: int, came: float = 0, blocks: int = 4, **more) -> Occupant:
    return Occupant(name, rank, came, blocks, **more)


def seeks(rank: int, blocks: int = 2, *, is_raised: bool = False) -> Seeker:
    return Seeker(rank, is_raised, blocks)


TWO_LOW = [runs("early", LOW, 1), runs("late", LOW, 2)]


@pytest.mark.parametrize(
    ("queue", "batch", "room", "chosen"),
    [
        pytest.param([seeks(HIGH)], TWO_LOW, Room(1, 2), (), id="there is room"),
        pytest.param([seeks(HIGH)], TWO_LOW, Room(0, 9), ("late",), id="no place: the last come"),
        pytest.param([seeks(HIGH)], TWO_LOW, Room(5, 1), ("late",), id="no memory"),
        pytest.param(
            [seeks(HIGH, 9)], TWO_LOW, Room(5, 1), ("late", "early"), id="as many as it takes"
        ),
        pytest.param([seeks(HIGH, 10)], TWO_LOW, Room(5, 1), (), id="nobody in vain"),
        pytest.param([seeks(HIGH)], TWO_LOW, Room(-1, 9), ("late", "early"), id="overbooked"),
        pytest.param(
            [seeks(HIGH)],
            [runs("low", LOW, 1), runs("normal", NORMAL, 2)],
            Room(0, 9),
            ("low",),
            id="the lowest class first",
        ),
        pytest.param([seeks(NORMAL)], [runs("a", NORMAL)], Room(0, 9), (), id="not its own class"),
        pytest.param([seeks(LOW)], [runs("a", HIGH)], Room(0, 9), (), id="not a higher class"),
        pytest.param(
            [seeks(HIGH), seeks(HIGH), seeks(NORMAL)],
            [*TWO_LOW, runs("normal", NORMAL, 3)],
            Room(0, 9),
            ("late", "early"),
            id="one for each that waits",
        ),
        pytest.param(
            [seeks(HIGH), seeks(NORMAL)],
            [*TWO_LOW, runs("normal", NORMAL, 3)],
            Room(1, 9),
            ("late",),
            id="the first has its place, the second gets one",
        ),
        pytest.param(
            [seeks(HIGH)],
            [runs("a", LOW, times=2), runs("b", NORMAL)],
            Room(0, 9),
            ("b",),
            id="not more often than it may be",
        ),
        pytest.param(
            [seeks(HIGH)],
            [runs("a", LOW, is_moving=True), runs("b", LOW, -1)],
            Room(0, 9),
            ("b",),
            id="not a request in a move",
        ),
        pytest.param(
            [seeks(LOW, is_raised=True)], TWO_LOW, Room(0, 9), (), id="ageing preempts nobody"
        ),
        pytest.param(
            [seeks(LOW, is_raised=True), seeks(HIGH)],
            TWO_LOW,
            Room(0, 9),
            ("late", "early"),
            id="a high one behind a raised one takes it along",
        ),
        pytest.param(
            [seeks(HIGH)],
            [runs("a", HIGH), runs("b", HIGH)],
            Room(0, 9),
            (),
            id="a raised one that runs counts as what it was raised to",
        ),
        pytest.param([], TWO_LOW, Room(0, 0), (), id="nobody waits"),
        pytest.param([seeks(HIGH)], [], Room(0, 0), (), id="nobody runs"),
    ],
)
def test_who_makes_room(queue, batch, room, chosen):
    assert preempted(queue, batch, room, times_max=2) == chosen


def test_preemption_for_a_class_can_be_switched_off():
    assert preempted([seeks(HIGH)], TWO_LOW, Room(0, 9), times_max=0) == ()


ranks = st.integers(0, 2)
batches = st.lists(
    st.builds(
        Occupant,
        st.uuids().map(str),
        ranks,
        st.floats(0, 100),
        st.integers(0, 9),
        st.integers(0, 3),
        st.booleans(),
    ),
    max_size=8,
)
queues = st.lists(st.builds(Seeker, ranks, st.just(False), st.integers(0, 12)), max_size=8).map(
    lambda queue: sorted(queue, key=lambda s: s.rank)
)
rooms = st.builds(Room, st.integers(-2, 4), st.integers(-5, 20))


@given(queues, batches, rooms)
def test_whoever_makes_room_is_lower_than_somebody_who_gets_in(queue, batch, room):
    chosen = preempted(queue, batch, room, times_max=3)
    assert len(set(chosen)) == len(chosen)
    gone = [o for o in batch if o.request_id in chosen]
    assert all(o.times < 3 and not o.is_moving for o in gone)
    places = room.places + len(gone)
    blocks = room.blocks + sum(o.frees_blocks for o in gone)
    getting_in = []
    for seeker in queue:
        places, blocks = places - 1, blocks - seeker.needed_blocks
        if places < 0 or blocks < 0:
            break
        getting_in.append(seeker)
    if gone:
        assert getting_in
        assert all(o.rank > getting_in[0].rank for o in gone)


@given(queues, batches, rooms)
def test_the_order_of_the_batch_does_not_matter(queue, batch, room):
    distinct = list({o.came: o for o in batch}.values())
    assert preempted(queue, distinct, room, 3) == preempted(queue, distinct[::-1], room, 3)


@pytest.mark.parametrize(
    ("rank", "prompts", "tokens"),
    [
        pytest.param(HIGH, [], 0, id="no prompt"),
        pytest.param(NORMAL, [NORMAL, HIGH], 0, id="none of a lower class"),
        pytest.param(HIGH, [LOW], 512, id="half each"),
        pytest.param(NORMAL, [LOW, HIGH, LOW], 256, id="a share for each"),
        pytest.param(HIGH, [LOW] * 2000, 1, id="never nothing"),
    ],
)
def test_prompts_leave_a_share_to_a_higher_class_that_waits(rank, prompts, tokens):
    assert prompt_share_tokens(rank, prompts, 1024) == tokens
