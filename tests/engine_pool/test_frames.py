import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_pool.frames import combine, entry_position
from engine_pool.token_log import StreamError, TokenFrame


def frame(request_id: str, start: int, *tokens: int, **more) -> TokenFrame:
    return TokenFrame(request_id, 1, start, tokens, "i-01", **more)


@pytest.mark.parametrize(
    ("frames", "joined"),
    [
        pytest.param([frame("a", 0, 1), frame("a", 1, 2)], [frame("a", 0, 1, 2)], id="two steps"),
        pytest.param(
            [frame("a", 0, 1), frame("b", 0, 9), frame("a", 1, 2)],
            [frame("a", 0, 1, 2), frame("b", 0, 9)],
            id="two requests",
        ),
        pytest.param(
            [frame("a", 0, 1), frame("a", 1, 2, finish_reason="stop")],
            [frame("a", 0, 1, 2, finish_reason="stop")],
            id="the end comes along",
        ),
        pytest.param(
            [frame("a", 0, 1, cached_tokens=64), frame("a", 1, 2)],
            [frame("a", 0, 1, 2, cached_tokens=64)],
            id="cached tokens stay",
        ),
        pytest.param(
            [frame("a", 0, 1), frame("a", 1, finish_reason="abort")],
            [frame("a", 0, 1), frame("a", 1, finish_reason="abort")],
            id="an end without a token needs its own entry id",
        ),
        pytest.param(
            [frame("a", 0, 1, detail=b"x"), frame("a", 1, 2)],
            [frame("a", 0, 1, detail=b"x"), frame("a", 1, 2)],
            id="details belong to their frame",
        ),
        pytest.param(
            [frame("a", 0, 1), frame("a", 1, error=StreamError("c", "m"))],
            [frame("a", 0, 1), frame("a", 1, error=StreamError("c", "m"))],
            id="errors stay alone",
        ),
    ],
)
def test_combine(frames, joined):
    assert combine(frames) == joined


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3), st.booleans()), max_size=30))
def test_no_token_is_lost_and_entry_ids_rise(steps):
    frames, said = [], {"a": [], "b": [], "c": []}
    for name, count, has_detail in steps:
        tokens = range(len(said[name]), len(said[name]) + count)
        detail = b"d" if has_detail else None
        frames.append(frame(name, len(said[name]), *tokens, detail=detail))
        said[name] += tokens
    out = combine(frames)
    for name, tokens in said.items():
        mine = [f for f in out if f.request_id == name]
        assert [t for f in mine for t in f.token_ids] == tokens
        positions = [entry_position(f) for f in mine]
        assert positions == sorted(set(positions))
