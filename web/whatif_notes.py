"""What stands around a what-if run: the load it starts from, how far it is, and what the simulator
assumes and does not know. Pure."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import PurePath
from typing import Any, NamedTuple

from controlplane.fleet.tiles import number
from controlplane.whatif.models import RunState, SimulationRun
from controlplane.whatif.present import COSTS_FILE, WINDOW, RecentLoad, nearest_mix
from engine_pool.simulator.workload import MIXES
from web.move_units import plural
from web.whatif_words import remaining


class Note(NamedTuple):
    what: str
    words: str


def load_words(load: RecentLoad | None) -> str:
    """Says where the form's load comes from."""
    minutes = number(WINDOW.total_seconds() / 60)
    if load is None:
        return (
            f"Too few requests came in the last {minutes} min to tell the load, so it is a named "
            "mix at half a request a second for each instance."
        )
    prompt, output = nearest_mix(load.prompt_tokens), nearest_mix(load.output_tokens)
    return (
        f"{plural(load.requests, 'request')} of the last {minutes} min: prompts of "
        f"{number(round(load.prompt_tokens))} and answers of {number(round(load.output_tokens))} "
        f"tokens on average; the nearest mixes are {prompt} ({MIXES[prompt].mean_tokens}) and "
        f"{output} ({MIXES[output].mean_tokens})."
    )


def progress_words(run: SimulationRun, before: int, now: datetime) -> str:
    """Says what a run that has not ended waits for, or how far it is."""
    if run.state == RunState.QUEUED:
        if before:
            return f"It begins after {plural(before, 'other run')}: one is simulated at a time."
        return "It begins within a second or two, if the worker runs."
    if run.state != RunState.RUNNING or run.started_at is None:
        return ""
    if run.cancel_wanted_by:
        return f"{run.cancel_wanted_by} cancelled it; it ends within a second or two."
    left = remaining(run.progress, (now - run.started_at).total_seconds())
    return f"{run.progress * 100:.0f} %{f', {left}' if left else ''}"


def assumptions(scenario: Mapping[str, Any]) -> list[Note]:
    """Returns what the numbers rest on."""
    return [
        Note("Step times", _step_times(scenario["costs"])),
        Note("Load", _load(scenario["workload"])),
        Note(
            "Decisions",
            "Those of the live pool, by the same functions: dispatch, rebalancing, priorities and "
            f"scaling. They see each instance {number(scenario['policy']['report_interval_ms'])} ms"
            " late, and know what they sent there since.",
        ),
        Note(
            "Moves",
            "By the live protocol: copies while the request decodes, then a pause. Both engines "
            f"decode {number(scenario['costs']['copy_slowdown'] * 100)} % slower meanwhile.",
        ),
        Note(
            "Not known here",
            "Cached prefixes, lost instances, clients that leave or wait for answers before they "
            "ask again, the gateway's own time, and other work on the same machine.",
        ),
        Note(
            "How far to trust it",
            f"One load of one seed. A P99 rests on the slowest {_slowest(scenario['workload'])}; "
            "over seeds the ratio of two P99s at the same point spanned 0.9 to 31. Compare with "
            "several seeds, near the load that the pool just bears: below it every policy is the "
            "same, and far past it none helps.",
        ),
    ]


def _slowest(load: Mapping[str, Any]) -> str:
    return f"{number(max(1, load['requests'] // 100))} of {plural(load['requests'], 'request')}"


def _step_times(costs: Mapping[str, Any]) -> str:
    scale = costs["time_scale"]
    times = "" if scale == 1 else f", times {number(scale)}"
    if costs["file"]:
        return f"Measured: {PurePath(costs['file']).name}{times}."
    one = scale * (costs["decode_base_ms"] + costs["decode_ms_per_sequence"])
    prompt = scale * (costs["prefill_base_ms"] + 256 * costs["prefill_ms_per_token"])
    return (
        f"Fits of published measurements of LLaMA-7B on an A10{times}: {number(one)} ms for a step "
        f"of one request, {number(prompt)} ms for a prompt of 256 tokens. Your engines differ: "
        f"measure them by python -m engine_pool.calibrate --out {COSTS_FILE}, and put the file "
        "into the folder for what-if runs (FERRY_WHATIF_DIR)."
    )


def _load(load: Mapping[str, Any]) -> str:
    if load["kind"] == "trace":
        return f"The first {number(load['requests'])} requests of {PurePath(load['file']).name}."
    prompt, output = MIXES[load["input"]].mean_tokens, MIXES[load["output"]].mean_tokens
    return (
        f"Power laws with a long tail: prompts of {prompt} tokens on average, cut at "
        f"{number(load['input_cap_tokens'])}, answers of {output}, cut at "
        f"{number(load['output_cap_tokens'])}, drawn apart. Arrivals do not wait for answers."
    )
