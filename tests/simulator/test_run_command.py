"""The command `python -m engine_pool.simulator.run`, and runs that somebody follows."""

import json
from pathlib import Path

import pytest

from engine_pool.simulator.run import main, run
from tests.simulator.bench import small

TOML = """
name = "tiny"
[pool]
instances = 2
[workload]
requests = 60
rate_per_s = 2.0
high_share = 0.2
"""


@pytest.fixture
def scenario_file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TOML)
    return path


def test_the_command_prints_a_summary_and_json_last(
    scenario_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(scenario_file), "--seed", "5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("tiny (seed 5): 60 requests")
    last = json.loads(lines[-1])
    assert last["scenario"]["seed"] == 5
    assert set(last["by_class"]) == {"high", "normal"}
    assert last["summary"]["requests"] == 60
    assert "series" not in last, "a line that people may read"


def test_the_whole_report_is_written_to_a_file(scenario_file: Path, tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    assert main([str(scenario_file), "--json", str(target)]) == 0
    found = json.loads(target.read_text())
    assert set(found) == {"scenario", "summary", "by_class", "series", "moves", "wall_s"}
    assert len(found["series"]["time_s"]) > 100


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        pytest.param("[pool]\ninstances = -1\n", "pool.instances: expected a whole", id="value"),
        pytest.param("[pool\n", "file: ", id="not toml"),
        pytest.param(
            '[workload]\nkind = "trace"\nfile = "no.csv"\n', "workload.file: ", id="no trace"
        ),
    ],
)
def test_a_bad_file_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, complaint: str
) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(content)
    assert main([str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    said = [line for line in captured.err.splitlines() if "%|" not in line and line.strip()]
    assert len(said) == 1
    assert said[0].startswith(f"{path}: {complaint}")


def test_a_missing_file_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none.toml")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_progress_goes_from_little_to_all() -> None:
    shares: list[float] = []
    run(small(), shares.append)
    assert shares == sorted(shares)
    assert 50 <= len(shares) <= 101
    assert shares[-1] == 1.0


class Cancelled(Exception):
    pass


def test_a_run_ends_when_its_follower_raises() -> None:
    def cancel(share: float) -> None:
        if share > 0.2:
            raise Cancelled

    with pytest.raises(Cancelled):
        run(small(), cancel)
