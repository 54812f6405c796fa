"""Which lost requests go on elsewhere, in which order, and how the others end."""

import time

import pytest

from engine_pool.errors import InstanceLost, ReplayRefused, RequestFatal
from engine_pool.replay_rules import (
    REPLAYS_MAX,
    Again,
    Life,
    Over,
    is_pool_over,
    nobody,
    one_a_life,
    turn,
    verdict,
)
from engine_pool.types import EngineKind, InstanceName, InstanceState, InstanceStatus, PriorityClass


def life(tokens: int, instance: str = "i-01", *, death: bool = True, ran: bool = True) -> Life:
    return Life(instance, f"of {instance}", tokens, death, ran, f"The instance {instance} died.")


CASES = [
    pytest.param([life(7)], Again(), id="it had tokens"),
    pytest.param([life(0)], Again(is_suspect=True), id="it died before its first token"),
    pytest.param([life(0, ran=False)], Again(), id="it was in the queue"),
    pytest.param([life(0, death=False)], Again(), id="it was sent elsewhere"),
    pytest.param([life(5), life(5)], Again(is_suspect=True), id="the second life was barren"),
    pytest.param([life(0), life(4)], Again(), id="a token in between clears it"),
    pytest.param([life(0), life(0)], RequestFatal.code, id="two barren lives"),
    pytest.param([life(3), life(3), life(3)], RequestFatal.code, id="it dies at one token"),
    pytest.param(
        [life(0), life(0, death=False), life(0)],
        Again(is_suspect=True),
        id="not in a row",
    ),
    pytest.param([life(n) for n in range(1, REPLAYS_MAX + 1)], Again(), id="the last replay"),
    pytest.param(
        [life(n) for n in range(1, REPLAYS_MAX + 2)], InstanceLost.code, id="too many replays"
    ),
]


@pytest.mark.parametrize(("lives", "expected"), CASES)
def test_what_becomes_of_a_lost_request(lives: list[Life], expected: Again | str) -> None:
    found = verdict(lives, is_on=True, why_not="")
    assert (found.code if isinstance(found, Over) else found) == expected


def test_without_replay_every_lost_request_ends() -> None:
    found = verdict([life(7)], is_on=False, why_not="")
    assert found == Over(InstanceLost.code, "The instance i-01 died. Send the request again.")


def test_what_cannot_be_sent_again_ends_with_the_reason() -> None:
    found = verdict([life(7)], is_on=True, why_not="its log has a gap")
    assert isinstance(found, Over)
    assert found.code == ReplayRefused.code
    assert "i-01 died" in found.message
    assert "its log has a gap" in found.message


def test_a_request_that_may_kill_engines_is_named_with_them() -> None:
    found = verdict([life(0), life(0, "i-02")], is_on=True, why_not="")
    assert isinstance(found, Over)
    assert "i-01 and i-02" in found.message


def test_a_life_that_is_named_twice_counts_once() -> None:
    twice = [life(3), life(3), life(3, "i-02")]
    assert one_a_life(twice) == [life(3), life(3, "i-02")]
    unnamed = Life("i-01", "", 3, False, True)
    assert one_a_life([unnamed, life(3)]) == [unnamed]
    assert one_a_life([life(3), life(4)]) == [life(3), life(4)]


def test_higher_classes_go_first_and_then_who_came_first() -> None:
    order = [
        turn(PriorityClass.LOW, 1.0),
        turn(PriorityClass.HIGH, 3.0),
        turn(PriorityClass.NORMAL, 0.0),
        turn(PriorityClass.HIGH, 2.0),
    ]
    assert [order.index(one) for one in sorted(order)] == [3, 1, 2, 0]


def test_who_nobody_takes_is_told_for_how_long() -> None:
    assert "60 s" in nobody("The instance i-01 died.", 60.0).message


def status(state: InstanceState) -> InstanceStatus:
    return InstanceStatus(
        InstanceName("i-01"), "p", "a", state, "", time.time(), "n", "m", EngineKind.SIMULATED
    )


@pytest.mark.parametrize(
    ("states", "is_over"),
    [
        ([], True),
        ([InstanceState.STOPPED, InstanceState.STOPPING], True),
        ([InstanceState.STOPPED, InstanceState.LOST], False),
        ([InstanceState.STARTING], False),
        ([InstanceState.SERVING, InstanceState.STOPPED], False),
    ],
)
def test_a_pool_is_over_when_nothing_is_left_or_comes(
    states: list[InstanceState], is_over: bool
) -> None:
    assert is_pool_over([status(s) for s in states]) is is_over
