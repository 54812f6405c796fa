"""The promises of migration/protocol.py in every world that a move can come to."""

import pytest

from migration.protocol import TABLE, Command, Commands, Event, State
from migration.protocol import Command as C
from migration.protocol import DestinationEvent as DE
from migration.protocol import DestinationState as D
from migration.protocol import SourceEvent as SE
from migration.protocol import SourceState as S
from tests.migration import protocol_world
from tests.migration.protocol_walk import Explored, explore, worlds_without_way
from tests.migration.protocol_world import (
    AtDestination,
    AtSource,
    Kind,
    Link,
    Violation,
    World,
    deciders,
    does_source_decode,
    is_living,
)

BY_ITSELF = frozenset((Kind.INSIDE, Kind.TIMER))
EVERYTHING = frozenset(Kind)
WITHOUT_FAULTS = frozenset((Kind.INSIDE, Kind.WISH))
WITHOUT_WISHES = frozenset((Kind.INSIDE, Kind.TIMER, Kind.FAULT))
"""A third of all worlds, and enough to show what is broken."""


def check(world: World, is_quiet: bool) -> None:
    """Raises: Violation when a promise of the protocol is broken."""
    if deciders(world) > 1:
        raise Violation("both sides decode")
    if is_quiet and not is_living(world.source) and not is_living(world.destination):
        check_end(world)


def check_end(world: World) -> None:
    if world.at_source is AtSource.PARKED:
        raise Violation("the source still holds a parked request")
    if world.at_destination is AtDestination.HELD:
        raise Violation("the destination still holds blocks")
    believers = does_source_decode(world) + (world.at_destination is AtDestination.ADOPTED)
    if believers != deciders(world):
        raise Violation("a side that the log has shut out goes on")
    if world.has_client_left or world.is_finished:
        is_told = world.link is Link.UP and world.ask_link is not Link.DOWN
        if believers and is_told:
            raise Violation("a side decodes for nobody, though the other could tell it")
    elif believers != 1 and not world.is_owner_killed:
        raise Violation("nobody decodes")


@pytest.fixture(scope="module")
def every_world() -> Explored:
    return explore(EVERYTHING, check)


def is_end(world: World) -> bool:
    return not is_living(world.source) and not is_living(world.destination)


def ends_of(found: Explored) -> frozenset[int]:
    """Indices of the worlds in which all is over."""
    return frozenset(
        i
        for i, (world, edges) in enumerate(zip(found.worlds, found.leads_to, strict=True))
        if is_end(world) and all(kind is not Kind.INSIDE for kind, _ in edges)
    )


def test_never_do_two_sides_decode_and_at_every_end_one_does(every_world):
    # `check` has looked at each world; this is how many there were.
    assert len(every_world.worlds) > 25_000
    assert len(ends_of(every_world)) > 100


def test_every_world_comes_to_an_end_by_itself(every_world):
    stuck = worlds_without_way(every_world, BY_ITSELF, ends_of(every_world))
    assert not stuck, every_world.trace(stuck[0])


def test_a_move_without_losses_needs_no_timer():
    found = explore(WITHOUT_FAULTS, check)
    stuck = worlds_without_way(found, frozenset((Kind.INSIDE,)), ends_of(found))
    assert not stuck, found.trace(stuck[0])


def test_a_move_that_nobody_disturbs_ends_at_the_destination_or_goes_on_at_the_source():
    found = explore(frozenset((Kind.INSIDE,)), check)
    ends = {(found.worlds[i].source, found.worlds[i].destination) for i in ends_of(found)}
    assert ends == {(S.COMMITTED, D.ADOPTED), (S.ABORTED, D.DISCARDED)}


def test_every_state_occurs(every_world):
    seen = {w.source for w in every_world.worlds} | {w.destination for w in every_world.worlds}
    assert set(TABLE) <= seen


@pytest.mark.parametrize(
    ("state", "event", "broken", "words"),
    [
        pytest.param(
            S.COMMITTING,
            SE.TIMEOUT,
            (S.ABORTED, (C.UNPARK,)),
            "both sides decode",
            id="a source that assumes its commit is lost",
        ),
        pytest.param(
            S.RECLAIMING,
            SE.REFUSED,
            (S.ABORTED, (C.UNPARK,)),
            "nobody decodes",
            id="a source that goes on while it shuts itself out",
        ),
        pytest.param(
            S.RECLAIMING,
            SE.COMMITTED,
            (S.COMMITTED, (C.RELEASE,)),
            "nobody decodes",
            id="a source that releases what its reclaim takes from the destination",
        ),
        pytest.param(
            D.LOADING,
            DE.ABORT,
            (D.DISCARDED, (C.DISCARD,)),
            "a transfer may still write",
            id="a destination that frees blocks under a transfer",
        ),
        pytest.param(
            S.PAUSED,
            SE.TRANSFER_FAILED,
            (S.ABORTED, (C.SEND_ABORT,)),
            "still holds a parked request",
            id="a source that forgets its parked request",
        ),
        pytest.param(
            D.LOADED,
            DE.PEER_LOST,
            (D.DISCARDED, ()),
            "still holds blocks",
            id="a destination that forgets what it holds",
        ),
    ],
)
def test_the_walk_finds_a_broken_row(
    state: State, event: Event, broken: tuple[State, Commands], words: str, monkeypatch
):
    monkeypatch.setitem(TABLE[state], event, broken)
    with pytest.raises(Violation, match=words):
        explore(WITHOUT_WISHES, check)


def test_every_command_has_an_effect_in_the_model():
    source = protocol_world.SOURCE_JOBS | protocol_world.SOURCE_DOES.keys()
    destination = protocol_world.DESTINATION_JOBS | protocol_world.DESTINATION_DOES.keys()
    assert source | destination == set(Command)
