"""Whether a wish can be carried out: the simulator's own checks, and this installation's limits."""

import functools
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from django.conf import settings

from controlplane.whatif import files
from controlplane.whatif.limits import INSTANCES_MAX, NAME_MAX_CHARS, REQUESTS_MAX
from controlplane.whatif.values import Scenario, WhatIfRefused, Wish
from engine_pool.simulator import scenario as simulator
from engine_pool.simulator.run import workload_of
from engine_pool.simulator.scenario_fields import ScenarioError

logger = logging.getLogger(__name__)

LABEL_MAX_CHARS: Final = 40


def check_wish(wish: Wish) -> Wish:
    """Returns the wish with every value in its scenarios. Raises: WhatIfRefused naming the field.

    Takes as long as drawing the workload does, a part of a second.
    """
    scenario = check_scenario(wish.scenario)
    baseline = None
    if wish.baseline is not None:
        try:
            baseline = check_scenario(wish.baseline)
        except WhatIfRefused as refusal:
            field = f"baseline.{refusal.field}" if refusal.field else "baseline"
            raise WhatIfRefused(str(refusal), field=field) from None
    name = wish.name.strip() or str(scenario["name"]).strip() or "What if"
    return Wish(
        name=name[:NAME_MAX_CHARS],
        scenario=scenario,
        baseline=baseline,
        baseline_label=wish.baseline_label.strip()[:LABEL_MAX_CHARS] if baseline else "",
    )


def check_scenario(values: Scenario) -> Scenario:
    """Returns the scenario with every value. Raises: WhatIfRefused naming `section.field`."""
    paths = files.with_paths(values)
    try:
        read = simulator.scenario_of(paths)
        _check_size(read)
        workload_of(read)
    except ScenarioError as error:
        raise _refusal(error) from None
    return _as_json(read)


def complete(values: Scenario) -> Scenario:
    """Returns the scenario with every value, whether or not it could be simulated here.

    Raises: WhatIfRefused naming the field.
    """
    paths = files.with_paths(values)
    try:
        return _as_json(simulator.scenario_of(paths))
    except ScenarioError as error:
        raise _refusal(error) from None


@functools.cache
def presets() -> dict[str, Scenario]:
    """Returns the scenarios that come with Ferry, by their file's name; only those that can run."""
    found = {}
    for path in sorted(Path(settings.BASE_DIR, "scenarios").glob("*.toml")):
        try:
            found[path.stem] = check_scenario(_as_json(simulator.load_scenario(path)))
        except (ScenarioError, WhatIfRefused) as error:
            logger.warning("the scenario %s is not offered: %s", path.name, error)
    return found


def _check_size(scenario: simulator.Scenario) -> None:
    requests = scenario.workload.requests
    if requests > REQUESTS_MAX:
        raise ScenarioError(
            "workload.requests", f"at most {REQUESTS_MAX:,} are simulated here, got {requests:,}"
        )
    sizes = {"pool.instances": scenario.pool.instances}
    if scenario.scaling.enabled:
        sizes["scaling.max_instances"] = scenario.scaling.max_instances
    for field, instances in sizes.items():
        if instances > INSTANCES_MAX:
            raise ScenarioError(
                field, f"at most {INSTANCES_MAX} are simulated here, got {instances:,}"
            )


def _as_json(scenario: simulator.Scenario) -> dict[str, Any]:
    """Returns plain values; files by their names, as they were given."""
    told = replace(
        scenario,
        workload=replace(scenario.workload, file=Path(scenario.workload.file).name),
        costs=replace(scenario.costs, file=Path(scenario.costs.file).name),
    ).to_dict()
    plain: dict[str, Any] = json.loads(json.dumps(told))
    return plain


def _refusal(error: ScenarioError) -> WhatIfRefused:
    return WhatIfRefused(files.without_paths(error.problem), field=error.where)
