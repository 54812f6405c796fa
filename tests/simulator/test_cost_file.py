"""What is written is what is read; a file that cannot be used says which field is wrong."""

import json
from pathlib import Path

import pytest

from engine_pool.simulator.cost_file import (
    CostFileError,
    EngineFacts,
    FitFacts,
    MachineFacts,
    MeasuredCosts,
    read_costs,
    write_costs,
)
from engine_pool.simulator.costs import CopyCosts, StepCosts

COSTS = MeasuredCosts(
    steps=StepCosts(prefill_base_ms=12.5, decode_base_ms=30.0),
    copies=CopyCosts(1.5, 1, 0.02, block_size_tokens=128, kv_token_bytes=23_040),
    copy_slowdown=0.05,
    mixed_step_ratio=0.9,
    engine=EngineFacts(23_168, 128, 64, 8192),
    machine=MachineFacts(2, 1, "2.13.0", "vllm 0.32.0 on cpu", "324f727a70eae085"),
    measured_at="2026-01-02T03:04:05+00:00",
    fits={"decode": FitFacts(18, 0.02, 0.2)},
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "costs.json"
    write_costs(path, COSTS)
    return path


def test_what_was_written_is_read(path):
    assert read_costs(path) == COSTS


def test_copies_may_be_missing(path):
    change(path, "copies", None)
    change(path, "copy_slowdown", None)
    costs = read_costs(path)
    assert costs.copies is None
    assert not [name for name in costs.scenario_section() if name.startswith("copy")]


def test_the_scenario_gets_what_was_measured_and_nothing_else():
    section = COSTS.scenario_section()
    assert section["prefill_base_ms"] == 12.5
    assert section["copy_base_ms"] == 1.5
    assert "time_scale" not in section


def change(path: Path, field: str, value: object) -> None:
    found = json.loads(path.read_text())
    *tables, last = field.split(".")
    table = found
    for name in tables:
        table = table[name]
    if value is KeyError:
        del table[last]
    else:
        table[last] = value
    path.write_text(json.dumps(found))


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("steps", 5, "steps: an object is expected, got 5"),
        ("steps.decode_base_ms", "fast", "steps.decode_base_ms: a number of at least 0"),
        ("steps.decode_base_ms", -1, "steps.decode_base_ms: a number of at least 0"),
        ("steps.decode_base_ms", float("nan"), "steps.decode_base_ms: a number of at least 0"),
        ("steps.decode_base_ms", float("inf"), "steps.decode_base_ms: a number of at least 0"),
        ("steps.decode_base_ms", True, "steps.decode_base_ms: a number of at least 0"),
        ("steps.speed", 1, "steps.speed: no such field"),
        ("copies.full_blocks", 0, "copies.full_blocks: a whole number of at least 1"),
        ("engine.capacity_tokens", 1.5, "engine.capacity_tokens: a whole number of at least 1"),
        ("engine.max_running", KeyError, "engine.max_running: missing"),
        ("machine.torch", 2, "machine.torch: a text is expected, got 2"),
        ("copy_slowdown", -0.1, "copy_slowdown: a number of at least 0"),
        ("mixed_step_ratio", "all", "mixed_step_ratio: a number of at least 0"),
        ("measured_at", 7, "measured_at: a text is expected, got 7"),
        ("fits.decode.points", 0, "fits.decode.points: a whole number of at least 1"),
        ("format", 99, "format: 1 is expected, got 99"),
        ("surprise", 1, "surprise: no such field"),
        ("engine", KeyError, "engine: missing"),
    ],
)
def test_a_field_that_cannot_be_used_is_named(path, field, value, says):
    change(path, field, value)
    with pytest.raises(CostFileError) as raised:
        read_costs(path)
    assert str(raised.value).startswith(f"{path}: {says}")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("{", "not JSON", id="cut off"),
        pytest.param("[]", "the file: an object is expected", id="a list"),
        pytest.param("{}", "copies: missing", id="empty"),
    ],
)
def test_a_file_of_something_else_is_named(path, text, says):
    path.write_text(text)
    with pytest.raises(CostFileError, match=says):
        read_costs(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(CostFileError, match=r"none\.json: No such file"):
        read_costs(tmp_path / "none.json")
