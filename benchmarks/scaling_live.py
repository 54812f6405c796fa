"""The traces against the live loop: a whole installation (`make up`) with simulated engines.

Worker, store, database, pool process and gateway are the real ones; the engines are processes that
keep a real engine's books and sleep as long as its steps would take. Time runs ten times quicker
than in the simulator: checks, waits and cool-downs are a tenth of the defaults or less.
"""

import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec

from benchmarks.rebalance_load import Door, Outcome, play
from benchmarks.scaling_figures import Change, Figures, reversals
from benchmarks.scaling_traces import TRACES, Sizes, Trace, arrivals_of
from benchmarks.servers import ROOT
from engine_pool import view
from engine_pool.simulator.metrics import percentile
from engine_pool.types import InstanceState, PriorityClass
from tests.integration.installation import Installation, wait_for

LENGTH_S: Final = 45.0
SIZES: Final = Sizes(LENGTH_S, instance_per_s=2.5, prompt_tokens=700, output_tokens=60)
"""Long prompts and short answers fill an engine's memory with few tokens for the gateway: the
machine's cores are for the loop, not for text. An engine serves 3.5 of them a second at most."""
FIRST: Final = 2
"""Instances at each trace's begin."""
CHECK_S: Final = 1.0
POOL: Final[dict[str, Any]] = {
    "instances": FIRST,
    "min_instances": 1,
    "max_instances": 4,
    "scaling_mode": "act",
    "grow_after_s": 0.0,
    "shrink_after_s": 6.0,
    "shrink_cooldown_s": 12.0,
    "zero_after_s": None,
}
ZERO: Final[dict[str, Any]] = {"min_instances": 0, "zero_after_s": 6.0}
OSCILLATION_S: Final = 12.0
"""A tenth of the simulator's."""
LOOK_EVERY_S: Final = 0.25
NONSENSE_EVERY_S: Final = 0.005
"""An engine reports every 100 ms; nearly every check finds what was written over it."""
START_TIMEOUT_S: Final = 480.0
READY_TIMEOUT_S: Final = 180.0
DESK_TIMEOUT_S: Final = 120.0

_DESK: Final = """
import json, sys
from controlplane.fleet.models import Pool, WantedInstance
from controlplane.fleet.publishing import pools_publish_soon
from controlplane.scaling.models import ScalingDecision
print("READY", flush=True)
for line in sys.stdin:
    order = json.loads(line)
    if "pool" in order:
        WantedInstance.objects.filter(by="scaling").delete()
        Pool.objects.update(**order["pool"])
        pools_publish_soon()
    rows = ScalingDecision.objects.filter(pk__gt=order["after"]).order_by("pk")
    names = ("pk", "at", "tick", "fence", "kind", "signal", "instances_before", "instances_after",
             "silent", "is_applied", "reason")
    print(json.dumps(list(rows.values(*names)), default=str), flush=True)
"""


class Desk:
    """A process of the control plane that changes the pool's row and reads decisions."""

    def __init__(self, installation: Installation) -> None:
        self._last = 0
        self._process = subprocess.Popen(
            [sys.executable, "manage.py", "shell", "--no-imports", "-c", _DESK],
            cwd=ROOT,
            env=installation.environ | installation.state.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._read() == "READY", "it says so first"

    def use(self, pool: dict[str, Any]) -> None:
        """Gives the pool these values, and nothing that scaling has stopped."""
        self._ask({"pool": pool})

    def decisions(self) -> list[dict[str, Any]]:
        """Returns the rows since the last question."""
        return self._ask({})

    def close(self) -> None:
        self._process.kill()
        self._process.wait(DESK_TIMEOUT_S)

    def _ask(self, order: dict[str, Any]) -> list[dict[str, Any]]:
        assert self._process.stdin is not None
        print(json.dumps({"after": self._last, **order}), file=self._process.stdin, flush=True)
        rows: list[dict[str, Any]] = json.loads(self._read())
        self._last = rows[-1]["pk"] if rows else self._last
        return rows

    def _read(self) -> str:
        """Raises: RuntimeError when it has ended, or says nothing."""
        watchdog = threading.Timer(DESK_TIMEOUT_S, self._process.kill)
        watchdog.start()
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        watchdog.cancel()
        if not line:
            raise RuntimeError("the control plane does not answer the benchmark")
        return line.strip()


@dataclass
class Looks:
    """What was seen of the pool while a trace ran."""

    serving: list[int] = field(default_factory=list)
    instance_s: float = 0.0
    """Of instances whose engine was there, starting and draining included."""
    nonsense: int = 0
    """Reports that were written over."""


@contextlib.contextmanager
def looking(installation: Installation, silent: tuple[float, float] | None) -> Iterator[Looks]:
    """Looks at the pool while the block runs; `silent`: from when to when, in seconds, one
    instance's reports are made nonsense."""
    looks, ended = Looks(), threading.Event()

    def look() -> None:
        last_s = time.monotonic()
        while not ended.wait(LOOK_EVERY_S):
            states = [s.state for s in installation.statuses()]
            now_s = time.monotonic()
            gone = (InstanceState.STOPPED, InstanceState.LOST)
            looks.instance_s += sum(s not in gone for s in states) * (now_s - last_s)
            looks.serving.append(states.count(InstanceState.SERVING))
            last_s = now_s

    def spoil() -> None:
        assert silent is not None
        store, encode = installation.store(), msgspec.msgpack.Encoder().encode
        began_s = time.monotonic()
        while not ended.wait(NONSENSE_EVERY_S):
            if not silent[0] <= time.monotonic() - began_s < silent[1]:
                continue
            blob = store.hget(view.LOADS, "i-01")
            if blob is not None:
                load = view.decode_load(blob)
                bad = replace(load, at_unix_s=float("nan"), used_tokens=-1)
                store.hset(view.LOADS, "i-01", encode(bad))
                looks.nonsense += 1

    threads = [threading.Thread(target=look)]
    threads += [threading.Thread(target=spoil)] if silent is not None else []
    for thread in threads:
        thread.start()
    try:
        yield looks
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def play_trace(
    trace: Trace, installation: Installation, desk: Desk, door: Door
) -> tuple[Figures, list[str], list[dict[str, Any]]]:
    """Plays one trace; returns its figures, what went wrong, and the decisions."""
    pool = POOL | (ZERO if trace.name == "zero" else {})
    desk.use(POOL | {"scaling_mode": "off"})
    wait_for(lambda: _serving(installation) == FIRST, "two instances serve", READY_TIMEOUT_S)
    desk.use(pool)
    desk.decisions()
    arrivals = arrivals_of(trace, SIZES, seed=1)
    silent = None
    if trace.silent is not None:
        silent = (trace.silent[0] * LENGTH_S, trace.silent[1] * LENGTH_S)
    with looking(installation, silent) as looks:
        outcome = asyncio.run(play(door, arrivals, seed=trace.name, with_classes=False))
    rows = desk.decisions()
    figures, problems = figures_of(trace, outcome, looks, rows, int(pool["min_instances"]))
    return figures, [f"{trace.name}: {problem}" for problem in problems], rows


def figures_of(
    trace: Trace, outcome: Outcome, looks: Looks, rows: list[dict[str, Any]], floor: int
) -> tuple[Figures, list[str]]:
    done = [row for row in rows if row["is_applied"]]
    at_s = [_seconds(row["at"]) for row in done]
    by = [row["instances_after"] - row["instances_before"] for row in done]
    changes = [Change(t, b) for t, b in zip(at_s, by, strict=True)]
    ttft_s = [seen.ttft_ms / 1000 for seen in outcome.seen]
    ticks = [row["tick"] for row in rows]
    problems = list(outcome.failures)
    if min(looks.serving) < floor:
        problems.append(f"{min(looks.serving)} instances served, {floor} are the least")
    if len(set(ticks)) != len(ticks):
        problems.append("two decisions were stored for one check")
    figures: Figures = {
        "ttft_p50_s": round(percentile(ttft_s, 50) or 0.0, 3),
        "ttft_p99_s": round(percentile(ttft_s, 99) or 0.0, 3),
        "instance_s": round(looks.instance_s, 1),
        "most": max(looks.serving),
        "least": min(looks.serving),
        "mean": round(statistics.fmean(looks.serving), 2),
        "changes": len(changes),
        "turns": reversals(changes, LENGTH_S),
        "oscillations": reversals(changes, OSCILLATION_S),
        "holds": sum(row["kind"] == "hold" for row in rows),
        "refused": sum(row["kind"] == "refused" for row in rows),
        "requests": len(outcome.seen),
        "failures": len(outcome.failures),
        "client_late_ms": round(outcome.late_ms, 1),
        "wall_s": round(outcome.wall_s, 1),
    }
    if trace.silent is not None:
        figures["nonsense"] = looks.nonsense
    return figures, problems


def measure(only: str = "") -> tuple[dict[str, Figures], list[str], dict[str, list[str]]]:
    """Plays the traces in one installation; returns figures by trace, problems, and each trace's
    decisions in words. Raises: RuntimeError when it does not come up."""
    figures: dict[str, Figures] = {}
    problems: list[str] = []
    words: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory(prefix="ferry-scaling-") as folder:
        installation = Installation(
            Path(folder),
            FERRY_ENGINE="simulated",
            FERRY_INSTANCES=str(FIRST),
            FERRY_SCALING_CHECK_S=str(CHECK_S),
        )
        try:
            installation.wait_ready(deadline_s=START_TIMEOUT_S)
            desk = Desk(installation)
            try:
                for trace in TRACES:
                    if only in ("", trace.name):
                        found = play_trace(trace, installation, desk, _door(installation))
                        figures[trace.name], wrong, rows = found
                        problems += wrong
                        words[trace.name] = [_in_words(row) for row in rows]
                        _print(trace.name, figures[trace.name], words[trace.name])
            finally:
                desk.close()
        except AssertionError as error:
            raise RuntimeError(str(error)) from None
        finally:
            installation.stop()
    return figures, problems, words


def _door(installation: Installation) -> Door:
    key = installation.login["api_key"]
    answer = httpx.get(f"{installation.url}/v1/models", headers=installation.headers, timeout=30)
    model = answer.json()["data"][0]["id"]
    return Door(f"{installation.url}/v1", model, {PriorityClass.NORMAL: key})


def _serving(installation: Installation) -> int:
    return sum(s.state is InstanceState.SERVING for s in installation.statuses())


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _in_words(row: dict[str, Any]) -> str:
    return f"{row['at'][11:19]} {row['kind']:9} {row['signal']:9} {row['reason']}"


def _print(trace: str, f: Figures, words: list[str]) -> None:
    print(
        f"live {trace:9} TTFT p50 {f['ttft_p50_s']:.2f} p99 {f['ttft_p99_s']:.2f} s  instance-s "
        f"{f['instance_s']:.0f}  {f['least']:.0f} to {f['most']:.0f} serve, {f['mean']:.1f} mean  "
        f"changes {f['changes']:.0f}  oscillations {f['oscillations']:.0f}  requests "
        f"{f['requests']:.0f}  failures {f['failures']:.0f}",
        flush=True,
    )
    for line in words:
        print(f"    {line}", flush=True)
