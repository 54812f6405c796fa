"""A morning on a real pool: from a few requests to many and back, and the scaling loop follows.

    python -m benchmarks.spike [--clients 44] [--picture] [--save FILE]

A whole installation with one real vLLM engine (the tests' tiny Llama in float32, with little KV
memory) and the scaling loop in mode act, 1 to 3 instances, with waits that are shorter than the
defaults, so that a morning takes minutes. Clients: a few at night; in the morning as many as fill
one engine several times over; then as few as before. The loop starts engines, and later drains and
stops them; requests that run there move.

Looked for: three engines while it is busy, one at the end, and no stream cut: every answer is
compared, token by token, with the same request's answer before the morning. The last line is JSON;
exit code 1: a goal was missed, and `problems` says which. --picture draws docs/pictures/spike.png.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

import httpx
import redis

from benchmarks import session
from benchmarks.chaos_clients import Client, Site
from benchmarks.chaos_journey import Door, End, Journey
from benchmarks.chaos_reference import MeasuredReference
from benchmarks.spike_plot import draw
from engine_pool.types import InstanceState
from tests.integration.installation import Installation
from tests.integration.operator import Operator
from tests.tiny_model import tiny_model

START_MAX_S: Final = 600.0
MOST, LEAST = 3, 1
NIGHT_CLIENTS: Final = 2
NIGHT_S: Final = 20.0
RISE_S: Final = 20.0
"""In which the clients of the morning come."""
BUSY_MIN_S: Final = 60.0
"""The morning lasts at least so long, and until all engines have served for STEADY_S."""
STEADY_S: Final = 30.0
BUSY_MAX_S: Final = 420.0
CALM_MAX_S: Final = 420.0
"""After the morning: by then one engine is left."""
SAMPLE_S: Final = 0.5
TOKENS: Final = 700
KV_CACHE_GIB: Final = "0.01"
"""10,000 tokens in float32: twelve requests fill an engine."""
PROMPTS: Final = tuple(f"def harbour_{n}(ship, tide): return " for n in range(12))
RULES: Final[dict[str, object]] = {
    "min_instances": LEAST,
    "max_instances": MOST,
    "scaling_mode": "act",
    "grow_after_s": 2.0,
    "grow_cooldown_s": 10.0,
    "shrink_after_s": 15.0,
    "shrink_cooldown_s": 20.0,
}
"""Of the pool; the band is the default's."""
CHECK_S: Final = "2"


@dataclass(frozen=True, slots=True)
class Moment:
    """The pool at one time."""

    at_s: float
    """Since the night began."""
    clients: int
    serving: int
    starting: int
    leaving: int
    """Draining, drained or stopping."""
    running: int
    waiting: int


@dataclass
class Morning:
    """One run."""

    pool: Installation
    site: Site
    most_clients: int
    wanted: int = 0
    """Clients that shall be there now."""
    began_s: float = 0.0
    journeys: list[Journey] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    """When each began, seconds since the night did."""
    problems: list[str] = field(default_factory=list)
    _is_over: bool = False

    @property
    def now_s(self) -> float:
        return time.monotonic() - self.began_s

    async def run(self) -> None:
        """Lets the night, the morning and the calm after it pass."""
        self.began_s = time.monotonic()
        timeout, limits = httpx.Timeout(60.0), httpx.Limits(max_connections=None)
        async with (
            httpx.AsyncClient(timeout=timeout, limits=limits) as http,
            asyncio.TaskGroup() as tasks,
        ):
            for number in range(self.most_clients):
                tasks.create_task(self._client(number, Client(self.site, http)))
            sampling = tasks.create_task(self._sample())
            try:
                self._begin("night", NIGHT_CLIENTS)
                await asyncio.sleep(NIGHT_S)
                self._begin("morning", NIGHT_CLIENTS)
                while self.wanted < self.most_clients:
                    await asyncio.sleep(RISE_S / (self.most_clients - NIGHT_CLIENTS))
                    self.wanted += 1
                await asyncio.sleep(BUSY_MIN_S)
                left_s = BUSY_MAX_S - BUSY_MIN_S
                await self._until(lambda m: m.serving == MOST, left_s, f"{MOST} engines serve")
                await asyncio.sleep(STEADY_S)
                self._begin("calm", NIGHT_CLIENTS)
                await self._until(
                    lambda m: (m.serving, m.starting, m.leaving) == (LEAST, 0, 0),
                    CALM_MAX_S,
                    f"{LEAST} engine is left",
                )
                await asyncio.sleep(NIGHT_S / 2)
            finally:
                self._is_over = True
                sampling.cancel()

    def _begin(self, phase: str, clients: int) -> None:
        self.phases[phase], self.wanted = self.now_s, clients
        print(f"{self.now_s:5.0f} s: {phase}", flush=True)

    async def _client(self, number: int, client: Client) -> None:
        rng = random.Random(number)
        while not self._is_over:
            if number >= self.wanted:
                await asyncio.sleep(SAMPLE_S)
                continue
            prompt = rng.randrange(len(PROMPTS))
            journey = Journey(len(self.journeys), Door.SSE, "us", prompt, TOKENS, time.monotonic())
            self.journeys.append(journey)
            await client.travel(journey)

    async def _sample(self) -> None:
        while True:
            try:
                self.moments.append(await asyncio.to_thread(self._look))
            except redis.RedisError as error:
                self.problems.append(f"the store did not answer: {error}")
            await asyncio.sleep(SAMPLE_S)

    def _look(self) -> Moment:
        states = [status.state for status in self.pool.statuses()]
        leaving = (InstanceState.DRAINING, InstanceState.DRAINED, InstanceState.STOPPING)
        return Moment(
            round(self.now_s, 1),
            self.wanted,
            states.count(InstanceState.SERVING),
            states.count(InstanceState.STARTING),
            sum(state in leaving for state in states),
            self.pool.running(),
            self.pool.waiting(),
        )

    async def _until(self, is_so: Callable[[Moment], bool], within_s: float, what: str) -> None:
        give_up_s = self.now_s + within_s
        while not (self.moments and is_so(self.moments[-1])):
            if self.now_s > give_up_s:
                self.problems.append(f"not within {within_s:.0f} s: {what}")
                return
            await asyncio.sleep(SAMPLE_S)


async def measure(site: Site) -> MeasuredReference:
    """Has the one engine answer each prompt, before the morning. Raises: RuntimeError."""
    async with httpx.AsyncClient(timeout=httpx.Timeout(120.0)) as http:
        journeys = [
            Journey(-1 - n, Door.SSE, "us", n, TOKENS, time.monotonic())
            for n in range(len(PROMPTS))
        ]
        await asyncio.gather(*(Client(site, http).travel(journey) for journey in journeys))
    if not all(journey.end is End.COMPLETED for journey in journeys):
        raise RuntimeError("the reference run failed")
    return MeasuredReference({journey.prompt: journey for journey in journeys})


def spike(clients: int) -> dict[str, Any]:
    """Does the whole run. Returns its figures. Raises: RuntimeError."""
    with tempfile.TemporaryDirectory(prefix="ferry-spike-") as folder:
        pool = Installation(
            Path(folder),
            FERRY_ENGINE="vllm",
            FERRY_INSTANCES=str(LEAST),
            FERRY_MODEL=str(tiny_model()),
            FERRY_DTYPE="float32",
            FERRY_KV_CACHE_GIB=KV_CACHE_GIB,
            FERRY_SCALING_CHECK_S=CHECK_S,
        )
        try:
            pool.wait_ready(deadline_s=START_MAX_S)
            key = {"us": pool.login["api_key"]}
            site = Site((pool.url,), key, tiny_model().name, PROMPTS)
            with Operator(pool) as operator:
                reference = asyncio.run(measure(site))
                pool.wait_idle()
                operator.change_pool("default", **RULES)
                run = Morning(pool, site, clients)
                began_unix_s = time.time()
                asyncio.run(run.run())
                changes = decisions(operator, began_unix_s)
        except AssertionError as error:
            raise RuntimeError(str(error)) from None
        finally:
            pool.stop()
    return figures(run, reference, changes)


def decisions(operator: Operator, began_unix_s: float) -> list[dict[str, Any]]:
    """Waits for nothing; returns the loop's changes, oldest first."""
    rows = operator.get("/scaling/decisions", pool="default", limit="200")["data"]
    found = []
    for row in rows:
        if row["kind"] not in ("grow", "shrink", "undrain") or not row["is_applied"]:
            continue
        at_s = _unix_s(row["at"]) - began_unix_s
        kept = {n: row[n] for n in ("kind", "instances_before", "instances_after", "reason")}
        found.append({"at_s": round(at_s, 1), **kept})
    return sorted(found, key=lambda row: row["at_s"])


def _unix_s(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def figures(
    run: Morning, reference: MeasuredReference, changes: list[dict[str, Any]]
) -> dict[str, Any]:
    """Returns what the run comes to."""
    problems = run.problems
    cut = wrong = 0
    for journey in run.journeys:
        if journey.end is not End.COMPLETED or journey.breaks or journey.resumes:
            cut += 1
            problems.append(f"stream {journey.number}: {journey.end} {journey.breaks}")
        elif why := journey.wrong(reference.expected(journey)):
            wrong += 1
            problems.append(f"stream {journey.number}: {why}")
    most = max(moment.serving for moment in run.moments)
    at_end = run.moments[-1].serving
    if (most, at_end) != (MOST, LEAST):
        problems.append(f"{most} engines at most and {at_end} at the end")
    morning_s, calm_s = run.phases["morning"], run.phases.get("calm", run.now_s)
    return {
        "clients": [NIGHT_CLIENTS, run.most_clients, NIGHT_CLIENTS],
        "streams": len(run.journeys),
        "cut": cut,
        "wrong": wrong,
        "most_engines": most,
        "engines_at_end": at_end,
        "second_engine_after_s": _first(run.moments, morning_s, lambda m: m.serving >= 2),
        "third_engine_after_s": _first(run.moments, morning_s, lambda m: m.serving >= MOST),
        "one_engine_after_s": _first(
            run.moments, calm_s, lambda m: m.serving == LEAST and not m.leaving
        ),
        "ttft_ms": {phase: _ttft_ms(run, phase) for phase in run.phases},
        "decisions": changes,
        "phases": {phase: round(at_s, 1) for phase, at_s in run.phases.items()},
        "series": {
            name: [getattr(m, name) for m in run.moments]
            for name in ("at_s", "clients", "serving", "starting", "leaving", "running", "waiting")
        },
        "requests": [
            [round(j.began_s - run.began_s, 1), round((j.first_event_s - j.began_s) * 1000)]
            for j in run.journeys
            if j.first_event_s
        ],
        "problems": problems,
    }


def _first(
    moments: Sequence[Moment], since_s: float, is_so: Callable[[Moment], bool]
) -> float | None:
    """Returns the seconds from a time until something first was so."""
    found = (m.at_s - since_s for m in moments if m.at_s >= since_s and is_so(m))
    return next((round(at_s, 1) for at_s in found), None)


def _ttft_ms(run: Morning, phase: str) -> dict[str, float]:
    """Returns the times to first token of the requests that began in a phase."""
    names = list(run.phases)
    later = names[names.index(phase) + 1 :]
    begin = run.phases[phase]
    end = run.phases[later[0]] if later else float("inf")
    found = sorted(
        (j.first_event_s - j.began_s) * 1000
        for j in run.journeys
        if j.first_event_s and begin <= j.began_s - run.began_s < end
    )
    if not found:
        return {}
    return {"p50": round(median(found)), "p99": round(found[int(len(found) * 0.99)])}


def table(result: dict[str, Any]) -> str:
    """Returns the figures for people."""
    return "\n".join(
        (
            f"{result['streams']} streams, {result['cut']} cut, {result['wrong']} wrong; engines"
            f" 1 -> {result['most_engines']} -> {result['engines_at_end']}",
            *(f"{d['at_s']:6.1f} s {d['kind']}: {d['reason']}" for d in result["decisions"]),
        )
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--clients", type=int, default=44)
    parser.add_argument("--picture", action="store_true", help="draw docs/pictures/spike.png")
    parser.add_argument("--save", type=Path, metavar="FILE")
    options = parser.parse_args()

    def measure_and_draw() -> dict[str, Any]:
        result = spike(options.clients)
        if options.picture:
            draw(result)
        return result

    return session.run(measure_and_draw, problems="problems", table=table, save=options.save)


if __name__ == "__main__":
    sys.exit(main())
