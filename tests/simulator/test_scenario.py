"""A scenario's errors name the field; every field reaches what it is for."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine_pool.policy.settings import DispatchKind, PolicySettings, QueueRule
from engine_pool.simulator.cost_file import (
    EngineFacts,
    FitFacts,
    MachineFacts,
    MeasuredCosts,
    write_costs,
)
from engine_pool.simulator.costs import CopyCosts, StepCosts
from engine_pool.simulator.run import workload_of
from engine_pool.simulator.scenario import Scenario, load_scenario, scenario_of
from engine_pool.simulator.scenario_fields import ScenarioError
from engine_pool.types import PriorityClass

SCENARIOS = Path(__file__).parents[2] / "scenarios"


@pytest.mark.parametrize(
    ("values", "where", "complaint"),
    [
        pytest.param({"pool": {"instances": 0}}, "pool.instances", "at least 1", id="too few"),
        pytest.param({"pool": {"instances": "4"}}, "pool.instances", "got '4'", id="a text"),
        pytest.param({"pool": {"instances": True}}, "pool.instances", "got True", id="a flag"),
        pytest.param({"pool": {"instance": 4}}, "pool.instance", "no such field", id="unknown"),
        pytest.param({"pols": {}}, "pols", "no such section", id="unknown section"),
        pytest.param({"pool": 3}, "pool", "expected a section [pool]", id="not a section"),
        pytest.param({"name": 3}, "name", "expected a text, got 3", id="name"),
        pytest.param({"seed": 1.5}, "seed", "expected a whole number", id="seed"),
        pytest.param(
            {"pool": {"capacity_tokens": 8}},
            "pool.capacity_tokens",
            "one block (16)",
            id="no block",
        ),
        pytest.param({"workload": {"rate_per_s": 0}}, "workload.rate_per_s", "0.001", id="rate"),
        pytest.param(
            {"workload": {"rate_per_s": float("nan")}}, "workload.rate_per_s", "got nan", id="nan"
        ),
        pytest.param(
            {"workload": {"rate_per_s": float("inf")}}, "workload.rate_per_s", "got inf", id="inf"
        ),
        pytest.param(
            {"workload": {"input": "XL"}}, "workload.input", '"S" or "M" or "L"', id="mix"
        ),
        pytest.param(
            {"workload": {"high_share": 1.2}}, "workload.high_share", "at most 1", id="share"
        ),
        pytest.param({"workload": {"kind": "trace"}}, "workload.file", "CSV file", id="no file"),
        pytest.param({"costs": {"time_scale": 0}}, "costs.time_scale", "above 0", id="no time"),
        pytest.param(
            {"costs": {"file": "nowhere.json"}}, "costs.file", "No such file", id="no cost file"
        ),
        pytest.param(
            {"policy": {"migration": "yes"}}, "policy.migration", "true or false", id="not a flag"
        ),
        pytest.param(
            {"policy": {"dispatch": "random"}},
            "policy.dispatch",
            '"freest" or "round_robin", got \'random\'',
            id="dispatch",
        ),
        pytest.param(
            {"policy": {"above_steps": 10}}, "policy.above_steps", "at least below_steps", id="band"
        ),
        pytest.param(
            {"scaling": {"min_instances": 9, "max_instances": 3}},
            "scaling.max_instances",
            "at least min_instances (9), got 3",
            id="most under least",
        ),
        pytest.param(
            {"scaling": {"low_steps": 100, "high_steps": 50}},
            "scaling.high_steps",
            "at least low_steps (100)",
            id="scaling band",
        ),
    ],
)
def test_an_error_names_the_field(values: dict[str, object], where: str, complaint: str) -> None:
    with pytest.raises(ScenarioError) as error:
        scenario_of(values)
    assert error.value.where == where
    assert complaint in error.value.problem
    assert str(error.value).startswith(f"{where}: ")


def test_a_request_that_no_instance_holds_is_refused_before_the_run() -> None:
    scenario = scenario_of({"pool": {"capacity_tokens": 3200}, "workload": {"requests": 1000}})
    with pytest.raises(ScenarioError, match=r"pool.capacity_tokens: request \d+ gets \d+ tokens"):
        workload_of(scenario)


def test_an_empty_scenario_has_the_policies_own_defaults() -> None:
    settings = scenario_of({}).policy_settings()
    assert settings == PolicySettings()


def test_every_policy_field_changes_a_rule() -> None:
    settings = scenario_of(
        {
            "pool": {"watermark": 0.02},
            "policy": {
                "dispatch": "round_robin",
                "queue": "head",
                "packs_classes": False,
                "elastic_headroom": False,
                "high_target_load_tokens": 99,
                "late_binding": True,
                "late_floor_steps": 3,
                "late_pass_s": 4,
                "migration": False,
                "below_steps": 5,
                "above_steps": 6,
                "rebalance_interval_ms": 7,
                "moves_per_instance": 8,
                "tokens_per_round": 9,
                "defragments": False,
            },
            "scaling": {
                "enabled": True,
                "min_instances": 2,
                "max_instances": 3,
                "low_steps": 4,
                "high_steps": 5,
                "check_interval_s": 6,
                "grow_after_s": 7,
                "shrink_after_s": 8,
                "survivors_share": 0.25,
                "grow_cooldown_s": 9,
                "shrink_cooldown_s": 10,
            },
        }
    ).policy_settings()
    dispatch, rebalance, scaling = settings.dispatch, settings.rebalance, settings.scaling
    assert (dispatch.kind, dispatch.queue) == (DispatchKind.ROUND_ROBIN, QueueRule.HEAD)
    assert (dispatch.packs_classes, dispatch.is_elastic) == (False, False)
    assert dispatch.watermark == 0.02
    assert dispatch.headroom.target_load_tokens == {PriorityClass.HIGH: 99}
    assert (dispatch.is_late_binding, dispatch.late_floor_steps) == (True, 3)
    assert dispatch.late_pass_s == 4
    assert (rebalance.is_on, rebalance.defragments) == (False, False)
    assert (rebalance.below_steps, rebalance.above_steps, rebalance.interval_ms) == (5, 6, 7)
    assert (rebalance.moves_per_instance, rebalance.tokens_per_round) == (8, 9)
    assert (scaling.is_on, scaling.min_instances, scaling.max_instances) == (True, 2, 3)
    assert (scaling.low_steps, scaling.high_steps, scaling.check_interval_s) == (4, 5, 6)
    assert (scaling.grow_after_s, scaling.shrink_after_s) == (7, 8)
    assert (scaling.grow_cooldown_s, scaling.shrink_cooldown_s) == (9, 10)
    assert scaling.survivors_steps == 4.25


def test_what_a_scenario_writes_it_reads() -> None:
    scenario = scenario_of(
        {"name": "a", "seed": 3, "workload": {"cv": 4}, "policy": {"queue": "head"}}
    )
    assert scenario_of(scenario.to_dict()) == scenario


MEASURED = MeasuredCosts(
    steps=StepCosts(decode_base_ms=7.0),
    copies=CopyCosts(ms_per_token=0.5),
    copy_slowdown=0.5,
    engine=EngineFacts(4096, 16, 8, 2048),
    machine=MachineFacts(2, 1, "2.0", "0.1", "abc"),
    measured_at="2026-01-01T00:00:00Z",
    fits={"decode": FitFacts(10, 0.1, 0.2)},
)


def test_measured_costs_are_used_and_the_section_goes_before_them(tmp_path: Path) -> None:
    write_costs(tmp_path / "costs.json", MEASURED)
    (tmp_path / "it.toml").write_text(
        '[costs]\nfile = "costs.json"\ndecode_ms_per_sequence = 0.25\n'
    )
    scenario = load_scenario(tmp_path / "it.toml")
    assert scenario.name == "it"
    assert scenario.step_costs() == replace(MEASURED.steps, decode_ms_per_sequence=0.25)
    assert scenario.copy_costs() == MEASURED.copies
    assert scenario.engine_limits().copy_slowdown == 0.5


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.toml")), ids=lambda p: p.stem)
def test_the_scenarios_in_the_repository_can_be_run(path: Path) -> None:
    scenario = load_scenario(path)
    assert isinstance(scenario, Scenario)
    assert scenario.name
    assert len(workload_of(scenario)) == scenario.workload.requests
