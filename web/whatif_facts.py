"""What was asked of a what-if run, and where its two sides differ, in words. Pure."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final, NamedTuple

from controlplane.fleet.tiles import number
from web.move_units import plural

Scenario = Mapping[str, Any]
OFF: Final = "off"


def percent(share: float) -> str:
    return f"{number(share * 100)} %"


class Fact(NamedTuple):
    name: str
    value: str
    baseline: str
    """Empty: the same, or nothing to compare with."""


def changes(scenario: Scenario, baseline: Scenario) -> list[str]:
    """Returns what differs, each as "4 instances instead of 3"."""
    found = []
    for fact in facts(scenario, baseline):
        if fact.baseline:
            found.append(_change(fact))
    return found


def facts(scenario: Scenario, baseline: Scenario | None = None) -> list[Fact]:
    """Returns what was asked; of a comparison also where the other side differs."""
    shown = _facts(scenario)
    other = {} if baseline is None else _facts(baseline)
    return [
        Fact(name, value, other[name] if name in other and other[name] != value else "")
        for name, value in shown.items()
    ]


def _facts(scenario: Scenario) -> dict[str, str]:
    pool, load, policy = scenario["pool"], scenario["workload"], scenario["policy"]
    scaling, costs = scenario["scaling"], scenario["costs"]
    told = {
        "Instances": number(pool["instances"]),
        "KV cache": f"{number(pool['capacity_tokens'])} tokens each",
        "Batch": f"at most {plural(pool['max_running'], 'request')}",
        "Requests": number(load["requests"]),
        "Arrivals": _arrivals(load),
    }
    if load["kind"] == "trace":
        told["Lengths"] = f"trace {PurePath(load['file']).name}"
    else:
        told["Lengths"] = f"prompt {load['input']}, output {load['output']}"
    told |= {
        "High class": percent(load["high_share"]),
        "Dispatch": "in turn" if policy["dispatch"] == "round_robin" else "to the freest",
        "Moves": _moves(policy),
        "Priorities": "on" if policy["priorities"] else OFF,
        "Late binding": "on" if policy["late_binding"] else OFF,
        "Scaling": _scaling(scaling),
        "Speed": f"{number(costs['time_scale'])} x the A10's times",
        "Seed": str(scenario["seed"]),
    }
    return told


def _arrivals(load: Scenario) -> str:
    if load["kind"] == "trace" and load["as_recorded"]:
        return "as recorded"
    rate = f"{number(load['rate_per_s'])} a second"
    return rate if load["kind"] == "trace" else f"{rate}, CV {number(load['cv'])}"


def _moves(policy: Scenario) -> str:
    if not policy["migration"]:
        return OFF
    below, above = number(policy["below_steps"]), number(policy["above_steps"])
    every = number(policy["rebalance_interval_ms"])
    return f"from under {below} to over {above} steps, each {every} ms"


def _scaling(scaling: Scenario) -> str:
    if not scaling["enabled"]:
        return OFF
    low, high = number(scaling["low_steps"]), number(scaling["high_steps"])
    return f"{scaling['min_instances']} to {scaling['max_instances']}, band {low} to {high} steps"


def _change(fact: Fact) -> str:
    if fact.name == "Instances":
        return f"{plural(int(fact.value.replace(',', '')), 'instance')} instead of {fact.baseline}"
    name = fact.name if fact.name == "KV cache" else fact.name.lower()
    if fact.value == OFF:
        return f"no {name}"
    # What it was changed from says nothing more.
    if fact.baseline == OFF:
        return name
    return f"{name} {fact.value} instead of {fact.baseline}"
