"""How a transfer is cut, and how long a sender rests."""

import pytest

from migration.pace import LONGEST_REST_S, Chunk, cut, rest_s, rows_in_chunk


@pytest.mark.parametrize(
    ("rows", "most_rows", "chunks"),
    [
        pytest.param(0, 4, [], id="nothing"),
        pytest.param(3, 4, [Chunk(0, 3)], id="less than one chunk"),
        pytest.param(8, 4, [Chunk(0, 4), Chunk(4, 4)], id="whole chunks"),
        pytest.param(9, 4, [Chunk(0, 4), Chunk(4, 4), Chunk(8, 1)], id="a rest"),
    ],
)
def test_chunks_cover_every_row_once_in_order(rows: int, most_rows: int, chunks: list[Chunk]):
    assert list(cut(rows, most_rows)) == chunks


@pytest.mark.parametrize(
    ("row_bytes", "chunk_bytes", "rows"),
    [
        pytest.param(100, 1000, 10, id="fits"),
        pytest.param(300, 1000, 3, id="whole rows only"),
        pytest.param(2000, 1000, 1, id="a row longer than a chunk goes alone"),
    ],
)
def test_a_chunk_has_whole_rows_and_at_least_one(row_bytes: int, chunk_bytes: int, rows: int):
    assert rows_in_chunk(row_bytes, chunk_bytes) == rows


@pytest.mark.parametrize(
    ("busy_s", "copy_share", "rest"),
    [
        pytest.param(0.01, 1.0, 0.0, id="no rest"),
        pytest.param(0.01, 0.5, 0.01, id="half of the time"),
        pytest.param(0.01, 0.25, 0.03, id="a quarter"),
        pytest.param(30.0, 0.5, LONGEST_REST_S, id="a late receiver costs no long sleep"),
    ],
)
def test_copying_takes_its_share_of_the_time(busy_s: float, copy_share: float, rest: float):
    assert rest_s(busy_s, copy_share) == pytest.approx(rest)
