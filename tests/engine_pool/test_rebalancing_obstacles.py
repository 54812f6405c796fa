"""What keeps a draining instance's requests, in words."""

from types import SimpleNamespace
from typing import Any

import pytest

from engine_pool.policy.rebalancing import NO_PLACE, Idle, Round
from engine_pool.rebalancing_obstacles import Obstacles
from engine_pool.types import InstanceName

SOURCE, OTHER = InstanceName("i-01"), InstanceName("i-02")
BUSY = "4 moves go on at i-02"


def told(idle: tuple[Idle, ...], *, refused: bool = True, moves: tuple[Any, ...] = ()) -> str:
    """Returns what is told of an instance with two requests, of which one was refused before."""
    found: dict[InstanceName, str] = {}
    obstacles = Obstacles(found)
    if refused:
        obstacles.note_refused("r-1", "it is draining")
    requests = tuple(SimpleNamespace(request_id=i) for i in ("r-1", "r-2"))
    load = SimpleNamespace(instance=SOURCE, running=requests, waiting=())
    transit: Any = SimpleNamespace(view=SimpleNamespace(loads=(load,)), going_on={})
    obstacles.note_round([SOURCE], transit, Round(moves, (), idle))
    return found[SOURCE]


@pytest.mark.parametrize(
    ("why", "refused", "words"),
    [
        pytest.param(NO_PLACE, True, NO_PLACE, id="what is so now outdoes an earlier refusal"),
        pytest.param(BUSY, True, "1 of 2 requests could not move: it is draining", id="refused"),
        pytest.param(BUSY, False, BUSY, id="busy"),
    ],
)
def test_what_keeps_it_is_told_by_its_weight(why: str, refused: bool, words: str) -> None:
    assert told((Idle(SOURCE, SOURCE, why), Idle(OTHER, SOURCE, "else")), refused=refused) == words


def test_nothing_keeps_what_moves() -> None:
    assert told((), moves=(SimpleNamespace(source=SOURCE),)) == ""
