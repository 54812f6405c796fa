"""What the chaos run calls wrong, and which faults it plans."""

import random

import pytest

from benchmarks.chaos_audit import ADMISSION
from benchmarks.chaos_faults import QUICK, Blow, Part, plan
from benchmarks.chaos_journey import Attempt, Door, End, Expected, Journey
from controlplane.admission.scripts import PREFIX

RIGHT = Expected((1, 2, 3, 4), "abcd")


def journey(**fields: object) -> Journey:
    """Returns a stream that came to its end as it must."""
    made = Journey(1, Door.SSE, "us", 0, 4, 0.0, request_id="r", end=End.COMPLETED)
    made.token_ids, made.text, made.ordinals = [1, 2, 3, 4], "abcd", [1, 2, 3, 4]
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def cut(**fields: object) -> Journey:
    """Returns a stream that ended with an error."""
    return journey(
        **{
            "end": End.TYPED_ERROR,
            "token_ids": [1, 2],
            "text": "ab",
            "ordinals": [1, 2],
        }
        | fields
    )


@pytest.mark.parametrize(
    ("found", "said"),
    [
        pytest.param(journey(), "", id="right"),
        pytest.param(journey(ordinals=[1, 2, 4]), "lost", id="an event was lost"),
        pytest.param(journey(ordinals=[1, 2, 2, 3]), "repeated", id="an event came twice"),
        pytest.param(journey(token_ids=[1, 2, 9, 4]), "token 2 is 9", id="a token changed"),
        pytest.param(journey(token_ids=[1, 2, 3]), "ended after 3 of 4", id="it ended early"),
        pytest.param(journey(token_ids=[1, 2, 3, 4, 5]), "5 tokens", id="it has too many"),
        pytest.param(journey(text="abxd"), "was expected", id="the text changed"),
        pytest.param(journey(oddities=["HTTP 500"]), "HTTP 500", id="an undocumented answer"),
        pytest.param(cut(), "", id="an error after a right beginning"),
        pytest.param(cut(token_ids=[1, 9]), "token 1 is 9", id="an error after a wrong token"),
        pytest.param(cut(text="ax"), "not in the right answer", id="an error after a wrong text"),
        pytest.param(
            journey(door=Door.SOCKET, token_ids=[], ordinals=[0, 1, 2, 2]),
            "out of order",
            id="a socket's event twice",
        ),
        pytest.param(
            journey(door=Door.SOCKET, token_ids=[], ordinals=[0, 2, 5]),
            "",
            id="a socket counts what has no event",
        ),
    ],
)
def test_what_is_wrong_with_an_answer(found: Journey, said: str) -> None:
    why = found.wrong(RIGHT)
    assert said in why
    assert bool(said) is bool(why)


def test_a_request_has_begun_when_one_of_its_tries_was_taken() -> None:
    assert not journey(attempts=[Attempt("a")]).is_begun
    assert journey(attempts=[Attempt("a"), Attempt("b", is_begun=True)]).is_begun


def test_every_part_gets_every_blow_before_any_gets_one_again() -> None:
    parts = [Part.ENGINE, Part.STORE, Part.WEB]
    once = plan(6, random.Random(1), parts, is_short=False)
    assert {(f.part, f.blow) for f in once} == {(p, b) for p in parts for b in Blow}
    assert not once[0].is_on_top


def test_the_same_seed_gives_the_same_faults() -> None:
    plans = [plan(50, random.Random(7), list(Part), is_short=False) for _ in range(2)]
    assert plans[0] == plans[1]
    assert len(plans[0]) == 50


def test_a_pause_has_a_length_and_a_kill_has_none() -> None:
    for fault in plan(60, random.Random(3), list(Part), is_short=False):
        assert (fault.pause_s > 0) is (fault.blow is Blow.PAUSE)


def test_a_short_run_meets_the_parts_that_matter_most() -> None:
    found = plan(len(QUICK), random.Random(2), list(Part), is_short=True)
    assert {(f.part, f.blow) for f in found} == set(QUICK)


def test_it_looks_for_places_where_admission_keeps_them() -> None:
    assert ADMISSION == PREFIX
