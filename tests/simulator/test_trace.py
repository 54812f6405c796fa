"""Traces of two publishers are read; a bad row is named by file, line and column."""

from pathlib import Path

import pytest

from engine_pool.simulator.trace import TraceError, TraceRow, read_trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51,10,0
2023-11-16 18:15:52.5,7,1
"""
BURST_GPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45.5,GPT-4,1087,0,1087,API log
118,ChatGPT,417,276,693,Conversation log
"""


def written(folder: Path, content: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(content)
    return path


def test_azure_traces_are_read(tmp_path: Path) -> None:
    rows = read_trace(written(tmp_path, AZURE))
    assert [(r.prompt_tokens, r.output_tokens) for r in rows] == [(374, 44), (396, 109), (7, 1)]
    assert rows[1].at_s - rows[0].at_s == pytest.approx(4.314579, abs=1e-5)
    assert rows[2].at_s - rows[0].at_s == pytest.approx(5.81941, abs=1e-5)


def test_burst_gpt_traces_are_read_without_their_failed_requests(tmp_path: Path) -> None:
    rows = read_trace(written(tmp_path, BURST_GPT))
    assert rows == [TraceRow(5.0, 472, 18), TraceRow(118.0, 417, 276)]


def test_only_the_first_rows_are_read_when_that_is_asked_for(tmp_path: Path) -> None:
    assert len(read_trace(written(tmp_path, AZURE), first=2)) == 2


def test_the_excerpt_in_the_repository_is_a_trace() -> None:
    folder = Path(__file__).parents[2] / "scenarios" / "traces"
    rows = read_trace(folder / "azure_conversation_excerpt.csv")
    assert len(rows) == 400


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        pytest.param(
            AZURE.replace("396", "-3"),
            "line 3: ContextTokens: a whole number, at least 1, is expected, got '-3'",
            id="negative",
        ),
        pytest.param(
            AZURE.replace("109", "many"),
            "line 3: GeneratedTokens: a whole number, at least 0, is expected, got 'many'",
            id="not a number",
        ),
        pytest.param(
            AZURE.replace("2023-11-16 18:15:50.9951690", "yesterday"),
            "line 3: TIMESTAMP: a date and time is expected, got 'yesterday'",
            id="not a date",
        ),
        pytest.param(
            BURST_GPT.replace("118", "soon"),
            "line 4: Timestamp: seconds is expected, got 'soon'",
            id="not seconds",
        ),
        pytest.param(
            BURST_GPT.replace("118", "nan"),
            "line 4: Timestamp: seconds is expected, got 'nan'",
            id="no number at all",
        ),
        pytest.param(
            AZURE + "2023-11-16 18:15:53\n",
            "line 6: ContextTokens: a whole number, at least 1, is expected, got ''",
            id="short row",
        ),
        pytest.param("a,b\n1,2\n", "line 1: the columns TIMESTAMP, Con", id="other columns"),
        pytest.param("", "line 1: the columns", id="empty"),
        pytest.param(AZURE.splitlines()[0], "no request in it", id="no rows"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, content: str, complaint: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(TraceError) as error:
        read_trace(path)
    assert str(error.value).startswith(f"{path}: ")
    assert complaint in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"nowhere\.csv: No such file"):
        read_trace(tmp_path / "nowhere.csv")


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(b"TIMESTAMP,\xff\xfe\x00")
    with pytest.raises(TraceError, match="not a CSV file in UTF-8"):
        read_trace(path)
