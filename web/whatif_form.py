"""The form of a what-if run: how it is filled, and how it is read. Pure.

What a scenario has and the form has not is kept from the scenario that the form began with.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from web.whatif_fields import BUILT_IN, COMPARE, DRAWN, FIELDS, GROUPS, TRACE, Field

Scenario = dict[str, Any]
Values = Mapping[str, str]
"""As a browser sends them; a switch that is off is absent."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A field as the page has it: what stands in it, what is wrong with it."""

    field: Field
    value: str
    error: str
    choices: tuple[tuple[str, str], ...]

    @property
    def id(self) -> str:
        return f"f-{self.field.name.replace('.', '-')}"


def values_of(scenario: Scenario) -> dict[str, str]:
    """Returns what stands in the form for a scenario that has every value."""
    return {
        name: text
        for name, field in FIELDS.items()
        if (text := _text(field, _get(scenario, name))) is not None
    }


def read(values: Values, base: Scenario) -> tuple[Scenario, dict[str, str]]:
    """Returns the scenario that the form asks for, on top of `base`, and errors by field."""
    scenario, errors = deepcopy(base), {}
    for name, field in FIELDS.items():
        try:
            _set(scenario, name, _read(field, values.get(name, "").strip()))
        except ValueError as error:
            errors[name] = str(error)
    _settle_files(scenario, base)
    return scenario, errors


def put_back(scenario: Scenario, name: str, base: Scenario) -> None:
    """Gives a field the value that it had before, so that what else is wrong shows too."""
    _set(scenario, name, _get(base, name))


def groups(
    values: Values, errors: Mapping[str, str], files: Mapping[str, list[str]]
) -> list[tuple[str, list[Shown]]]:
    """Returns the form as the page shows it. `files`: what may be chosen, by field."""
    shown = []
    for title, fields in GROUPS:
        row = []
        for field in fields:
            choices = field.choices
            if field.name in files:
                first = DRAWN if field.name == TRACE else BUILT_IN
                choices = (first, *((name, name) for name in files[field.name]))
            row.append(
                Shown(field, values.get(field.name, ""), errors.get(field.name, ""), choices)
            )
        shown.append((title, row))
    return shown


def baseline_of(compare: str, scenario: Scenario, now: Scenario) -> Scenario | None:
    """Returns what the scenario is compared with, under the same load and step times."""
    if compare == "now":
        kept = {key: scenario[key] for key in ("name", "seed", "workload", "costs")}
        return deepcopy({**now, **kept, "policy": {**now["policy"]}})
    if compare not in ("still", "in_turn"):
        return None
    other = deepcopy(scenario)
    other["policy"]["migration"] = False
    if compare == "in_turn":
        other["policy"]["dispatch"] = "round_robin"
    return other


def in_words(problem: str) -> str:
    """Returns the simulator's complaint as a sentence."""
    words = problem[:1].upper() + problem[1:]
    return words if words.endswith(".") else f"{words}."


def label_of(compare: str) -> str:
    return next((label for key, _, label in COMPARE if key == compare), "")


def compare_of(label: str) -> str:
    """Returns the choice that a run with this label was asked for with."""
    return next((key for key, _, known in COMPARE if known == label), "now")


def _text(field: Field, value: Any) -> str | None:
    if field.kind == "switch":
        return "on" if value else None
    if value is None:
        return ""
    if field.kind == "share":
        return f"{value * 100:.10g}"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _read(field: Field, text: str) -> Any:
    if field.kind == "switch":
        return text == "on"
    if field.kind == "choice":
        return text
    plain = text.replace(",", "")
    if field.kind == "whole":
        if not plain.isascii() or not plain.removeprefix("-").isdigit():
            raise ValueError(f"Expected a whole number, got {_quoted(text)}.")
        return int(plain)
    try:
        value = float(plain)
    except ValueError:
        raise ValueError(f"Expected a number, got {_quoted(text)}.") from None
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError(f"Expected a number, got {_quoted(text)}.")
    return value / 100 if field.kind == "share" else value


def _quoted(text: str) -> str:
    return f"“{text[:40]}”" if text else "nothing"


def _settle_files(scenario: Scenario, base: Scenario) -> None:
    """A trace is named by its file alone; other costs than the base's begin anew."""
    workload, costs = scenario["workload"], scenario["costs"]
    workload["kind"] = "trace" if workload["file"] else "lengths"
    if costs["file"] != base.get("costs", {}).get("file", ""):
        scenario["costs"] = {"file": costs["file"], "time_scale": costs.get("time_scale", 1.0)}


def _get(scenario: Scenario, name: str) -> Any:
    section, _, key = name.rpartition(".")
    return scenario.get(section, {}).get(key) if section else scenario.get(key)


def _set(scenario: Scenario, name: str, value: Any) -> None:
    section, _, key = name.rpartition(".")
    place = scenario.setdefault(section, {}) if section else scenario
    place[key] = value
