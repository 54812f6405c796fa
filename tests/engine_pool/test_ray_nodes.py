import pytest

from engine_pool.policy.wishes import InstanceWish, WantedState
from engine_pool.pool_wishes import avoided_nodes, ending_wish, retirement
from engine_pool.ray_nodes import NodesSeen, names_of


def node(node_id: str, name: str = "10.0.0.1", host: str = "box", alive: bool = True) -> dict:
    return {
        "NodeID": node_id,
        "NodeName": name,
        "NodeManagerAddress": "10.0.0.1",
        "NodeManagerHostname": host,
        "Alive": alive,
    }


@pytest.mark.parametrize(
    ("nodes", "names"),
    [
        pytest.param([node("aaaaaaaa")], {"aaaaaaaa": "box"}, id="its host's name"),
        pytest.param([node("aaaaaaaa", "left")], {"aaaaaaaa": "left"}, id="the name it was given"),
        pytest.param(
            [node("aaaaaaaa", "left"), node("bbbbbbbb", "right")],
            {"aaaaaaaa": "left", "bbbbbbbb": "right"},
            id="two on a host, with names",
        ),
        pytest.param(
            [node("aaaaaaaa"), node("bbbbbbbb")],
            {"aaaaaaaa": "box-aaaaaa", "bbbbbbbb": "box-bbbbbb"},
            id="two on a host, without",
        ),
        pytest.param(
            [node("aaaaaaaa"), node("bbbbbbbb", alive=False)], {"aaaaaaaa": "box"}, id="one is dead"
        ),
        pytest.param(
            [node("aaaaaaaa", "x"), node("bbbbbbbb", "x")],
            {"aaaaaaaa": "x-aaaaaa", "bbbbbbbb": "x-bbbbbb"},
            id="the same name twice",
        ),
    ],
)
def test_each_node_has_a_name_of_its_own(nodes: list[dict], names: dict[str, str]) -> None:
    assert names_of(nodes) == names


CLOSED = InstanceWish(WantedState.CORDONED)


@pytest.mark.parametrize(
    ("seen", "wishes", "avoided"),
    [
        pytest.param(NodesSeen({"1": "a", "2": "b"}), {}, (), id="nothing is wanted"),
        pytest.param(NodesSeen({"1": "a", "2": "b"}), {"a": CLOSED}, ("1",), id="cordoned"),
        pytest.param(NodesSeen({"1": "a"}), {"a": CLOSED}, (), id="there is no other"),
        pytest.param(NodesSeen({"1": "a", "2": "b"}, {"b": 5.0}), {}, ("2",), id="it ends"),
        pytest.param(
            NodesSeen({"1": "a", "2": "b"}), {"a": InstanceWish()}, (), id="released, renewing"
        ),
    ],
)
def test_new_engines_keep_away_from_closed_nodes(
    seen: NodesSeen, wishes: dict[str, InstanceWish], avoided: tuple[str, ...]
) -> None:
    assert tuple(avoided_nodes(seen, wishes)) == avoided


def test_what_the_pool_wants_ends_in_replay() -> None:
    wish = ending_wish("a", 100.0)
    assert (wish.wanted, wish.deadline_unix_s) == (WantedState.STOPPED, 95.0)
    assert wish.leftover == retirement(0.0).leftover == "replay"
    assert ending_wish("a", 0.0).deadline_unix_s is None
