"""Scenarios of simulated runs, from TOML or a dict: pool, workload, costs, policy, scaling.

Every field has a default, so that an empty scenario runs. A field that is unknown or not as
expected is a ScenarioError that names it as `section.field`.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

from engine_pool.policy.settings import (
    DispatchRule,
    HeadroomRule,
    PolicySettings,
    RebalanceRule,
    ScalingRule,
)
from engine_pool.simulator.cost_file import CostFileError, read_costs
from engine_pool.simulator.costs import CopyCosts, StepCosts
from engine_pool.simulator.engine_model import EngineLimits
from engine_pool.simulator.scenario_fields import ScenarioError, read_section
from engine_pool.simulator.scenario_sections import (
    CostsSection,
    PolicySection,
    PoolSection,
    ScalingSection,
    WorkloadSection,
)
from engine_pool.types import PriorityClass
from migration.stages import StageLimits

_STAGE_LIMITS = StageLimits(copies_max=8, last_blocks=1)
"""As the pool's own settings (config.py: migration_copies_max, migration_last_blocks)."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that a run depends on."""

    name: str = ""
    seed: int = 1
    pool: PoolSection = field(default_factory=PoolSection)
    workload: WorkloadSection = field(default_factory=WorkloadSection)
    costs: CostsSection = field(default_factory=CostsSection)
    policy: PolicySection = field(default_factory=PolicySection)
    scaling: ScalingSection = field(default_factory=ScalingSection)

    def to_dict(self) -> dict[str, object]:
        """Returns what `scenario_of` reads."""
        return asdict(self)

    def engine_limits(self) -> EngineLimits:
        pool = self.pool
        return EngineLimits(
            capacity_tokens=pool.capacity_tokens,
            block_size_tokens=pool.block_size_tokens,
            max_running=pool.max_running,
            max_prefill_tokens=pool.max_prefill_tokens,
            watermark=pool.watermark,
            copy_slowdown=self.costs.copy_slowdown,
        )

    def step_costs(self) -> StepCosts:
        return StepCosts(**{f.name: getattr(self.costs, f.name) for f in fields(StepCosts)})

    def copy_costs(self) -> CopyCosts:
        costs = self.costs
        return CopyCosts(
            base_ms=costs.copy_base_ms,
            full_blocks=costs.copy_full_blocks,
            ms_per_token=costs.copy_ms_per_token,
            time_scale=costs.time_scale,
            block_size_tokens=self.pool.block_size_tokens,
        )

    def stage_limits(self) -> StageLimits:
        return _STAGE_LIMITS

    def policy_settings(self) -> PolicySettings:
        p, s = self.policy, self.scaling
        return PolicySettings(
            dispatch=DispatchRule(
                kind=p.dispatch,
                queue=p.queue,
                watermark=self.pool.watermark,
                headroom=HeadroomRule({PriorityClass.HIGH: p.high_target_load_tokens}),
                packs_classes=p.packs_classes,
                is_elastic=p.elastic_headroom,
                lent_share=p.lent_share,
                is_late_binding=p.late_binding,
                late_floor_steps=p.late_floor_steps,
                late_pass_s=p.late_pass_s,
            ),
            rebalance=RebalanceRule(
                is_on=p.migration,
                below_steps=p.below_steps,
                above_steps=p.above_steps,
                interval_ms=p.rebalance_interval_ms,
                moves_per_instance=p.moves_per_instance,
                tokens_per_round=p.tokens_per_round,
                defragments=p.defragments,
            ),
            scaling=ScalingRule(
                is_on=s.enabled,
                low_steps=s.low_steps,
                high_steps=s.high_steps,
                min_instances=s.min_instances,
                max_instances=s.max_instances,
                check_interval_s=s.check_interval_s,
                grow_after_s=s.grow_after_s,
                shrink_after_s=s.shrink_after_s,
                survivors_share=s.survivors_share,
                grow_cooldown_s=s.grow_cooldown_s,
                shrink_cooldown_s=s.shrink_cooldown_s,
            ),
        )


def load_scenario(path: Path) -> Scenario:
    """Reads a TOML file; files that it names are relative to it. Raises: ScenarioError."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ScenarioError("file", f"{path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ScenarioError("file", f"{path}: not TOML: {error}") from error
    return scenario_of({"name": path.stem, **values}, path.parent)


def scenario_of(values: Mapping[str, object], folder: Path | None = None) -> Scenario:
    """Makes a scenario of what a file or a form says. Raises: ScenarioError."""
    sections = ("pool", "workload", "costs", "policy", "scaling")
    for key in values:
        if key not in (*sections, "name", "seed"):
            names = ", ".join(sections)
            raise ScenarioError(key, f"no such section; there are name, seed, {names}")
    name, seed = values.get("name", ""), values.get("seed", 1)
    if not isinstance(name, str):
        raise ScenarioError("name", f"expected a text, got {name!r}")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ScenarioError("seed", f"expected a whole number, got {seed!r}")
    workload = read_section(WorkloadSection, "workload", values.get("workload", {}))
    scenario = Scenario(
        name=name,
        seed=seed,
        pool=read_section(PoolSection, "pool", values.get("pool", {})),
        workload=replace(workload, file=_path(workload.file, folder)),
        costs=_read_costs(values.get("costs", {}), folder),
        policy=read_section(PolicySection, "policy", values.get("policy", {})),
        scaling=read_section(ScalingSection, "scaling", values.get("scaling", {})),
    )
    _check_together(scenario)
    return scenario


def _path(file: str, folder: Path | None) -> str:
    return str(folder / file) if file and folder is not None else file


def _read_costs(values: object, folder: Path | None) -> CostsSection:
    costs = read_section(CostsSection, "costs", values)
    if not costs.file:
        return costs
    path = Path(_path(costs.file, folder))
    try:
        measured = read_costs(path).scenario_section()
    except CostFileError as error:
        raise ScenarioError("costs.file", str(error)) from error
    assert isinstance(values, Mapping), "it is a section"
    return read_section(CostsSection, "costs", {**measured, **values, "file": str(path)})


def _check_together(scenario: Scenario) -> None:
    """Checks what no field can say alone."""
    pool, workload, scaling = scenario.pool, scenario.workload, scenario.scaling
    if pool.capacity_tokens < pool.block_size_tokens:
        least = pool.block_size_tokens
        problem = f"expected at least one block ({least}), got {pool.capacity_tokens}"
        raise ScenarioError("pool.capacity_tokens", problem)
    if workload.kind == "trace" and not workload.file:
        raise ScenarioError("workload.file", "expected the trace's CSV file, got nothing")
    if workload.kind == "lengths" and workload.rate_per_s is None:
        raise ScenarioError("workload.rate_per_s", "expected a number, got nothing")
    policy = scenario.policy
    if policy.above_steps < policy.below_steps:
        problem = f"expected at least below_steps ({policy.below_steps:g}), got "
        raise ScenarioError("policy.above_steps", f"{problem}{policy.above_steps:g}")
    if scaling.max_instances < scaling.min_instances:
        problem = f"expected at least min_instances ({scaling.min_instances}), got "
        raise ScenarioError("scaling.max_instances", f"{problem}{scaling.max_instances}")
    if scaling.high_steps < scaling.low_steps:
        problem = f"expected at least low_steps ({scaling.low_steps:g}), got "
        raise ScenarioError("scaling.high_steps", f"{problem}{scaling.high_steps:g}")
