"""The table of migration/protocol.py, row by row; what the machines do together:
test_protocol_model.py."""

import pytest

from migration.protocol import (
    ENDS,
    TABLE,
    DestinationEvent,
    DestinationState,
    Event,
    ProtocolError,
    SourceEvent,
    SourceState,
    State,
    step,
)
from migration.protocol import Command as C
from migration.protocol import DestinationEvent as DE
from migration.protocol import DestinationState as D
from migration.protocol import SourceEvent as SE
from migration.protocol import SourceState as S

LIVING_SOURCES = [s for s in SourceState if s not in ENDS]
LIVING_DESTINATIONS = [s for s in DestinationState if s not in ENDS]
EVENTS: tuple[Event, ...] = (*SourceEvent, *DestinationEvent)

MUST_ANSWER = [
    *((s, (SE.CANCEL, SE.CLIENT_LEFT, SE.PEER_LOST, SE.TIMEOUT, SE.TRANSFER_FAILED, SE.REFUSED))
      for s in LIVING_SOURCES),
    *((s, (SE.GONE,)) for s in (S.RESERVING, S.COPYING, S.PAUSING)),
    *((s, (SE.COMMITTED,)) for s in (S.COMMITTING, S.ASKING, S.RECLAIMING)),
    *((d, (DE.ABORT, DE.ASK, DE.PEER_LOST, DE.TIMEOUT)) for d in LIVING_DESTINATIONS),
    *((d, (DE.TRANSFER_FAILED, DE.WRITTEN)) for d in (D.HELD, D.LOADING, D.DISCARDING)),
    *((d, (DE.ROOM, DE.NO_ROOM)) for d in (D.HOLDING, D.HELD, D.DISCARDING)),
]  # fmt: skip


def is_source(state: State) -> bool:
    return isinstance(state, SourceState)


@pytest.mark.parametrize(("state", "events"), MUST_ANSWER)
def test_a_living_state_answers_whatever_may_come_to_it(state, events):
    assert set(events) <= set(TABLE[state])


@pytest.mark.parametrize("state", list(TABLE))
def test_a_row_leads_to_a_state_of_its_own_machine_on_its_own_events(state):
    for event, (after, _) in TABLE[state].items():
        assert type(after) is type(state)
        assert isinstance(event, SourceEvent) is is_source(state)


ANSWERED_ENDS = {
    (S.COMMITTED, SE.CLIENT_LEFT): (C.SEND_ABORT,),
    (D.ADOPTED, DE.ASK): (C.SEND_COMMITTED,),
    (D.ADOPTED, DE.ABORT): (C.END_REQUEST,),
    (D.DISCARDED, DE.ASK): (C.SEND_REFUSED,),
    (D.DISCARDED, DE.COMMIT): (C.SEND_REFUSED,),
}


@pytest.mark.parametrize("state", sorted(ENDS))
def test_an_end_stays_an_end_and_only_a_few_late_events_are_answered(state):
    for event in SourceEvent if is_source(state) else DestinationEvent:
        assert step(state, event) == (state, ANSWERED_ENDS.get((state, event), ()))


@pytest.mark.parametrize("state", list(TABLE))
def test_an_event_without_a_row_is_an_error_that_names_both(state):
    for event in EVENTS:
        is_own = isinstance(event, SourceEvent) is is_source(state)
        if is_own and (event in TABLE[state] or state in ENDS):
            continue
        side = "source" if is_source(state) else "destination"
        with pytest.raises(ProtocolError) as caught:
            step(state, event)
        assert str(caught.value) == f"{side} in state '{state}' cannot get '{event}'"


def test_an_event_of_the_other_side_is_foreign_even_if_it_reads_the_same():
    assert SE.TIMEOUT == DE.TIMEOUT
    for state, foreign in ((S.COPYING, DE.TIMEOUT), (D.HELD, SE.TIMEOUT), (D.ADOPTED, SE.TIMEOUT)):
        with pytest.raises(ProtocolError):
            step(state, foreign)


def reachable(state: State) -> set[State]:
    found, todo = {state}, [state]
    while todo:
        for after, _ in TABLE[todo.pop()].values():
            if after not in found:
                found.add(after)
                todo.append(after)
    return found


def test_every_state_is_reachable_from_the_first():
    assert reachable(S.RESERVING) == set(SourceState)
    assert reachable(D.HOLDING) == set(DestinationState)


@pytest.mark.parametrize("state", list(TABLE))
def test_every_state_leads_to_an_end(state):
    assert reachable(state) & ENDS


@pytest.mark.parametrize("state", LIVING_SOURCES)
def test_a_timer_alone_brings_a_source_to_an_end_or_to_the_log(state):
    while state not in ENDS and state is not S.RECLAIMING:
        after, _ = step(state, SE.TIMEOUT)
        assert after is not state
        state = after


@pytest.mark.parametrize("state", [S.RESERVING, S.COPYING, S.PAUSING, S.PAUSED, S.PAUSED_LOGGED,
                                   S.PAUSED_RECEIVED])  # fmt: skip
@pytest.mark.parametrize(
    "event", [SE.CANCEL, SE.TIMEOUT, SE.PEER_LOST, SE.TRANSFER_FAILED, SE.REFUSED]
)
def test_whatever_happens_before_the_commit_the_request_goes_on_at_the_source(state, event):
    after, commands = step(state, event)
    assert after is S.ABORTED
    is_standing = state not in (S.RESERVING, S.COPYING)
    assert (C.UNPARK in commands) is is_standing
    assert (C.SEND_ABORT in commands) is (event is not SE.REFUSED)
    assert not {C.RELEASE, C.END_REQUEST} & set(commands)


@pytest.mark.parametrize("state", LIVING_SOURCES)
def test_a_client_that_leaves_ends_its_request_wherever_it_is(state):
    assert step(state, SE.CLIENT_LEFT) == (S.ABORTED, (C.SEND_ABORT, C.END_REQUEST))


def test_only_an_answer_that_cannot_change_lets_a_source_go_on_or_let_go_after_its_commit():
    deciding = {
        (state, event)
        for state in (S.COMMITTING, S.ASKING, S.RECLAIMING)
        for event, (_, commands) in TABLE[state].items()
        if {C.UNPARK, C.RELEASE} & set(commands)
    }
    assert deciding == {
        (S.COMMITTING, SE.COMMITTED),
        (S.COMMITTING, SE.REFUSED),
        (S.ASKING, SE.COMMITTED),
        (S.ASKING, SE.REFUSED),
        (S.RECLAIMING, SE.MINE),
        (S.RECLAIMING, SE.THEIRS),
    }


def test_a_move_of_two_stages_goes_through_its_states_in_order():
    state: State = S.RESERVING
    told = []
    for event in (SE.ACK, SE.BUSY, SE.LATER, SE.MORE, SE.ACK, SE.RECEIVED, SE.LITTLE, SE.PARKED,
                  SE.LOGGED, SE.RECEIVED, SE.COMMITTED):  # fmt: skip
        state, commands = step(state, event)
        told += commands
    assert state is S.COMMITTED
    assert told == [C.LOOK, C.LOOK_LATER, C.LOOK, C.SEND_STAGE, C.SEND_BLOCKS, C.LOOK, C.PARK,
                    C.SEND_LAST, C.AWAIT_LOG, C.SEND_COMMIT, C.RELEASE]  # fmt: skip


def test_a_destination_receives_before_it_lets_blocks_come_and_adopts_on_commit():
    state: State = D.HOLDING
    told = []
    for event in (DE.ROOM, DE.STAGE, DE.ROOM, DE.WRITTEN, DE.LAST, DE.WRITTEN, DE.COMMIT,
                  DE.ADOPTED):  # fmt: skip
        state, commands = step(state, event)
        told += commands
    assert state is D.ADOPTED
    assert told == [C.SEND_ACK, C.RESERVE, C.RECEIVE, C.SEND_ACK, C.SEND_RECEIVED, C.RECEIVE,
                    C.SEND_RECEIVED, C.ADOPT, C.SEND_COMMITTED]  # fmt: skip
