"""The numbering of events: pure."""

import json

import pytest

from controlplane.gateway.call import Migration
from controlplane.gateway.sse import DONE, PING, Mark, Numbering, move_comment, parse_mark


def chunk(index: int | None, text: str = "x", created: int = 5) -> str:
    choices = [] if index is None else [{"index": index, "delta": {"content": text}}]
    body = {"id": "r", "created": created, "model": "m", "choices": choices}
    return f"data: {json.dumps(body, separators=(',', ':'))}\n\n"


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        pytest.param("chatcmpl-1:3", Mark("chatcmpl-1", (3,)), id="one choice"),
        pytest.param(" r:1.0.2 ", Mark("r", (1, 0, 2)), id="several"),
        pytest.param("r", None, id="no ordinal"),
        pytest.param("r:", None, id="empty ordinal"),
        pytest.param("r:-1", None, id="negative"),
        pytest.param("r:1..2", None, id="hole"),
        pytest.param("r:1\nx: y", None, id="line break"),
        pytest.param("../r:1", None, id="strange id"),
    ],
)
def test_only_our_own_marks_are_read(text: str, mark: Mark | None) -> None:
    assert parse_mark(text) == mark


def ids(events: list[str | None]) -> list[str]:
    return [e.split("\n")[0].removeprefix("id: ") for e in events if e and e != DONE]


def test_one_choice_counts_every_chunk() -> None:
    numbering = Numbering("r", 1, 5)
    events = [numbering.event(c) for c in (chunk(0), chunk(0), chunk(None), DONE)]
    assert ids(events) == ["r:1", "r:2", "r:3"]
    assert events[-1] == DONE


def test_each_choice_counts_for_itself() -> None:
    numbering = Numbering("r", 2, 5)
    events = [numbering.event(chunk(i)) for i in (0, 0, 1, None)]
    assert ids(events) == ["r:1.0.0", "r:2.0.0", "r:2.1.0", "r:2.1.1"]


@pytest.mark.parametrize("cut", range(7))
def test_a_replay_in_another_order_gives_the_rest_exactly(cut: int) -> None:
    live = [chunk(0, "a"), chunk(1, "A"), chunk(0, "b"), chunk(0, "c"), chunk(1, "B"), chunk(None)]
    replay = [chunk(1, "A"), chunk(1, "B"), chunk(0, "a"), chunk(0, "b"), chunk(0, "c"), live[-1]]
    first = Numbering("r", 2, 5)
    had = [e for e in (first.event(c) for c in live[:cut]) if e]
    mark = parse_mark(had[-1].split("\n")[0].removeprefix("id: ")) if had else None
    second = Numbering("r", 2, 5, mark)
    rest = [e for e in (second.event(c) for c in replay) if e]

    def of_choice(events: list[str], index: int | None) -> list[str]:
        bodies = [json.loads(e.split("data: ")[1]) for e in events]
        return [
            json.dumps(b)
            for b in bodies
            if (b["choices"][0]["index"] if b["choices"] else None) == index
        ]

    for index in (0, 1, None):
        expected = of_choice([f"id: x\n{c}" for c in live], index)
        assert of_choice(had, index) + of_choice(rest, index) == expected


def test_a_mark_of_a_resumed_stream_keeps_what_was_had_before() -> None:
    numbering = Numbering("r", 2, 5, Mark("r", (2, 1, 0)))
    events = [numbering.event(chunk(i)) for i in (0, 0, 0)]
    assert events[:2] == [None, None]
    assert ids(events) == ["r:3.1.0"]


def test_a_replay_keeps_the_time_of_the_request() -> None:
    numbering = Numbering("r", 1, 5)
    event = numbering.event(chunk(0, '"created":77', created=99))
    assert event is not None
    body = json.loads(event.split("data: ")[1])
    assert body["created"] == 5
    assert body["choices"][0]["delta"]["content"] == '"created":77'


def test_nothing_follows_a_failure() -> None:
    numbering = Numbering("r", 1, 5)
    failure = 'data: {"error": {"message": "m"}}\n\n'
    assert numbering.event(failure) == failure
    assert numbering.event(DONE) is None
    assert numbering.has_failed


def told(numbering: Numbering, *steps: str | Migration) -> list[str | None]:
    """Returns the events of chunks, with moves between them."""
    made = []
    for step in steps:
        if isinstance(step, Migration):
            numbering.migrated(step)
        else:
            made.append(numbering.event(step))
    return made


MOVE = Migration(1, "i-01", "i-02", 1, 8.25)
COMMENT = ': request.migrated {"from": "i-01", "to": "i-02", "at_token": 1, "gap_ms": 8.25}\n'
STEPS = (chunk(1, "A"), chunk(0, "a"), MOVE, chunk(0, "b"), chunk(1, "B"), DONE)


def test_who_has_not_asked_hears_of_no_move() -> None:
    plain = told(Numbering("r", 2, 5), *(s for s in STEPS if isinstance(s, str)))
    assert told(Numbering("r", 2, 5), *STEPS) == plain


def test_a_move_stands_before_the_next_chunk_of_its_choice() -> None:
    plain = told(Numbering("r", 2, 5), *STEPS)
    asked = told(Numbering("r", 2, 5, tell_move=move_comment), *STEPS)
    assert asked[3] == f"{COMMENT}{plain[3]}"
    assert [e for i, e in enumerate(asked) if i != 3] == [e for i, e in enumerate(plain) if i != 3]


@pytest.mark.parametrize(
    ("mark", "count"),
    [
        pytest.param(Mark("r", (1, 1, 0)), 1, id="before the move"),
        pytest.param(Mark("r", (1, 2, 0)), 0, id="after it"),
    ],
)
def test_a_resumed_stream_tells_of_moves_after_its_mark_alone(mark: Mark, count: int) -> None:
    events = told(Numbering("r", 2, 5, mark, tell_move=move_comment), *STEPS)
    assert sum(e.count(COMMENT) for e in events if e) == count


def test_a_stream_of_one_choice_tells_of_every_move() -> None:
    numbering = Numbering("r", 1, 5, tell_move=move_comment)
    back = Migration(0, "i-02", "i-01", 1, None)
    (event,) = told(numbering, MOVE, back, chunk(0))
    assert event is not None
    assert event.startswith(f"{COMMENT}{move_comment(back)}id: r:1\n")


def test_a_ping_is_no_event() -> None:
    # openai-python fails at the blank line of a comment that follows an event with an id.
    assert b"\n\n" not in PING
    assert PING.startswith(b":")
    assert PING.endswith(b"\n")
