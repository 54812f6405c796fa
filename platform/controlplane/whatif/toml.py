"""Writes a scenario as the simulator's command reads it. Pure."""

import json

from controlplane.whatif.values import Scenario


def toml_of(scenario: Scenario) -> str:
    """Returns the scenario as TOML; a value of None is left out, as the format has none."""
    plain = {key: value for key, value in scenario.items() if not isinstance(value, dict)}
    parts = [_lines(plain)]
    for name, values in scenario.items():
        if isinstance(values, dict):
            parts.append(f"[{name}]\n{_lines(values)}")
    return "\n".join(parts)


def _lines(values: Scenario) -> str:
    # JSON's texts, numbers, true and false are TOML's too.
    return "".join(
        f"{key} = {json.dumps(value, ensure_ascii=False)}\n"
        for key, value in values.items()
        if value is not None
    )
