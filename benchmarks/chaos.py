"""Kills and stops every process of an installation in turn, under load, and looks what is lost.

    make chaos
    python -m benchmarks.chaos [--faults 50] [--engine simulated|vllm] [--seed 1] [--short]

An installation of its own (chaos_up.py): two web processes, four engines on two Ray nodes, two
workers with a beat each, store, pool process. Clients send requests without end, by SSE, by
WebSocket and not streamed, for tenants of three classes; when a connection breaks they do what
docs/api.md says (chaos_clients.py). Meanwhile processes get SIGKILL, or SIGSTOP and some time later
SIGCONT, in an order and at times that the seed decides (chaos_faults.py). Most faults wait until
everything is well again, which must be so within HEALTHY_MAX_S; the others come on top of the one
before.

At the end, once all is quiet: is every answer the one that an undisturbed request gives, token by
token? Did each request end? Is a place, a reservation, a KV block, a process or a row left over or
missing? The last line is JSON; exit code 1: a goal was missed, and `problems` says which.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from benchmarks import session
from benchmarks.chaos_audit import Left, audit
from benchmarks.chaos_clients import CONNECT_S, SILENCE_S, Client, Site
from benchmarks.chaos_faults import Blow, Fault, Hit, Part, plan, strike, victim, wake
from benchmarks.chaos_journey import Door, End, Journey, Reference
from benchmarks.chaos_reference import MeasuredReference, SimulatedReference
from benchmarks.chaos_site import TENANTS, ChaosSite, Shape
from tests.tiny_model import tiny_model

HEALTHY_MAX_S: Final = 300.0
"""Everything is well again within so long after a fault; growing waits before restarts are at most
60 s, and a Ray head's death restarts all that imports vLLM."""
VICTIM_MAX_S: Final = 120.0
"""A fault waits so long for a process that it can meet."""
START_MAX_S: Final = 420.0
SETTLE_S: Final = 3.0
"""Between an installation that is well and the next fault: requests are under way again then."""
LOOK_S: Final = 0.5
FULL, SHORT = (4, 14), (3, 6)
"""Instances, clients."""
DOORS: Final = (Door.SSE,) * 6 + (Door.SOCKET,) * 2 + (Door.WHOLE,) * 2
LENGTHS: Final = (40, 120, 240, 400)
"""Output tokens, 1 to 15 s of decoding on simulated engines."""
REAL_LENGTH: Final = 300
REAL_SETTINGS: Final = {"FERRY_KV_CACHE_GIB": "0.1", "FERRY_DTYPE": "float32"}
"""In float32 an answer does not depend on what else is in the batch, nor on a replay's prefill."""
PROMPTS: Final = tuple(
    f"Request number {n}. " + "A ship leaves the harbour and comes back. " * (1 + 3 * n)
    for n in range(8)
)


@dataclass
class Chaos:
    """One run."""

    site: ChaosSite
    clients: int
    faults: list[Fault]
    rng: random.Random
    lengths: tuple[int, ...]
    keys: dict[str, str]
    journeys: list[Journey] = field(default_factory=list)
    hits: list[Hit] = field(default_factory=list)
    recoveries: dict[str, list[float]] = field(default_factory=dict)
    """By part, the seconds until everything was well again."""
    outages: list[tuple[float, float]] = field(default_factory=list)
    """When the store lost its memory."""
    problems: list[str] = field(default_factory=list)
    _is_over: bool = False

    @property
    def _where(self) -> Site:
        return Site(self.site.urls, self.keys, self.site.shape.model.name, PROMPTS)

    async def run(self) -> None:
        """Loads the installation and does all faults; returns when each request has ended."""
        limits = httpx.Limits(max_connections=None)
        timeout = httpx.Timeout(SILENCE_S, connect=CONNECT_S)
        async with (
            httpx.AsyncClient(timeout=timeout, limits=limits) as http,
            asyncio.TaskGroup() as tasks,
        ):
            for number in range(self.clients):
                tasks.create_task(self._client(Client(self._where, http, number), number))
            try:
                await asyncio.sleep(SETTLE_S)
                for fault in self.faults:
                    await self._do(fault)
                await self._healthy("the last fault")
                await asyncio.sleep(SETTLE_S)
            finally:
                self._is_over = True

    async def _client(self, client: Client, number: int) -> None:
        rng = random.Random(f"{self.rng.random()} {number}")
        while not self._is_over:
            journey = Journey(
                number=len(self.journeys),
                door=rng.choice(DOORS),
                tenant=rng.choice(list(TENANTS)),
                prompt=rng.randrange(len(PROMPTS)),
                max_tokens=rng.choice(self.lengths),
                began_s=time.monotonic(),
            )
            self.journeys.append(journey)
            await client.travel(journey)

    async def _do(self, fault: Fault) -> None:
        if fault.is_on_top:
            await asyncio.sleep(fault.gap_s)
        else:
            await self._healthy(str(self.hits[-1].fault) if self.hits else "the start")
            await asyncio.sleep(SETTLE_S + self.rng.random())
        process = await self._victim(fault.part)
        if process is None:
            self.problems.append(f"{fault}: no such process for {VICTIM_MAX_S:.0f} s")
            return
        in_flight = await asyncio.to_thread(self.site.in_flight)
        name = process.name()
        at_s = time.monotonic()
        if not strike(process, fault.blow):
            return
        self.hits.append(Hit(fault, at_s, process.pid, name, in_flight))
        clock = time.strftime("%H:%M:%S")
        print(
            f"{clock} {len(self.hits)} {fault}: pid {process.pid}, {in_flight} requests", flush=True
        )
        if fault.blow is Blow.PAUSE:
            await asyncio.sleep(fault.pause_s)
            if not wake(process):
                print("    it had been ended meanwhile", flush=True)
        if fault.part is Part.STORE:
            self.outages.append((at_s, time.monotonic()))

    async def _victim(self, part: Part) -> Any:
        give_up_s = time.monotonic() + VICTIM_MAX_S
        while time.monotonic() < give_up_s:
            if found := await asyncio.to_thread(victim, self.site, part, self.rng):
                return found
            await asyncio.sleep(LOOK_S)
        return None

    async def _healthy(self, after: str) -> None:
        began_s = time.monotonic()
        why = "not looked at"
        while time.monotonic() - began_s < HEALTHY_MAX_S:
            why = await asyncio.to_thread(self.site.unwell)
            if not why:
                took_s = time.monotonic() - began_s
                if self.hits:
                    self.recoveries.setdefault(self.hits[-1].fault.part, []).append(took_s)
                print(f"    well after {took_s:.1f} s", flush=True)
                return
            await asyncio.sleep(LOOK_S)
        self.problems.append(f"not well {HEALTHY_MAX_S:.0f} s after {after}: {why}")
        print(self.problems[-1], flush=True)


async def measure_prompts(site: ChaosSite, keys: dict[str, str]) -> MeasuredReference:
    """Has real engines answer each prompt alone, before any fault."""
    where = Site(site.urls, keys, site.shape.model.name, PROMPTS)
    answers = {}
    async with httpx.AsyncClient(timeout=httpx.Timeout(120.0)) as http:
        for prompt in range(len(PROMPTS)):
            journey = Journey(-1 - prompt, Door.SSE, "usual", prompt, REAL_LENGTH, time.monotonic())
            await Client(where, http).travel(journey)
            if journey.end is not End.COMPLETED:
                raise RuntimeError(f"the reference of prompt {prompt} failed: {journey.breaks}")
            answers[prompt] = journey
    return MeasuredReference(answers)


def figures(
    run: Chaos, reference: Reference, left: Left, rows: list[dict[str, Any]]
) -> dict[str, Any]:
    """Returns what the run comes to, with all that missed a goal in `problems`."""
    problems = run.problems
    ends = Counter(journey.end for journey in run.journeys)
    wrong = 0
    for journey in run.journeys:
        expected = reference.expected(journey) if journey.request_id else None
        why = journey.wrong(expected) if expected else "; ".join(journey.oddities)
        if why:
            wrong += 1
            problems.append(f"{describe(journey)}: {why}")
        if journey.end is End.HUNG:
            problems.append(f"{describe(journey)}: hung; {journey.breaks[-5:]}")
    left_facts = asdict(left)
    details = left_facts.pop("details")
    for name, count in left_facts.items():
        if count and name != "records_lost_with_store":
            problems.append(f"{name.replace('_', ' ')} left: {count}; {details}")
    codes = Counter(j.code for j in run.journeys if j.end is End.TYPED_ERROR)
    refused = Counter(j.code for j in run.journeys if j.end is End.REFUSED)
    return {
        "faults": len(run.hits),
        "faults_by_part": dict(Counter(f"{h.fault.part} {h.fault.blow}" for h in run.hits)),
        "streams_started": sum(j.is_begun for j in run.journeys),
        "completed": ends[End.COMPLETED],
        "resumed": sum(j.resumes > 0 for j in run.journeys),
        "replayed": sum(bool(row.get("replays")) for row in rows),
        "moved": sum(bool(row["migrations"]) for row in rows),
        "typed_errors": dict(codes),
        "refused": dict(refused),
        "wrong": wrong,
        "hung": ends[End.HUNG],
        "left": left_facts,
        "records": len(rows),
        "well_again_s": {
            part: {"median": round(sorted(v)[len(v) // 2], 1), "longest": round(max(v), 1)}
            for part, v in run.recoveries.items()
        },
        "longest_journey_s": round(
            max((j.ended_s - j.began_s for j in run.journeys if j.ended_s), default=0.0), 1
        ),
        "problems": problems,
    }


def describe(journey: Journey) -> str:
    """Returns a request in words."""
    return (
        f"{journey.request_id or journey.number} ({journey.door}, {journey.tenant},"
        f" {journey.max_tokens} tokens, resumed {journey.resumes} times, {journey.end}"
        f" {journey.code})"
    )


def chaos(
    engine: str,
    faults: int,
    seed: int,
    *,
    is_short: bool,
    keep: Path | None = None,
    only: Sequence[Part] = (),
    ranks: int = 1,
) -> dict[str, Any]:
    """Does a whole run. Returns its figures. `keep`: where logs and requests are kept.

    Raises: RuntimeError when it cannot begin.
    """
    rng = random.Random(seed)
    instances, clients = SHORT if is_short else FULL
    if engine == "vllm":
        # Each takes a gigabyte and a half.
        instances = min(instances, 3)
    model = tiny_model()
    settings = REAL_SETTINGS | {"FERRY_TENSOR_PARALLEL": str(ranks)} if engine == "vllm" else {}
    shape = Shape(engine, instances, model, workers=0 if is_short else 1, settings=settings)
    parts = only or [part for part in Part if part is not Part.RANK or ranks > 1]
    lengths = (REAL_LENGTH,) if engine == "vllm" else LENGTHS
    with tempfile.TemporaryDirectory(prefix="ferry-chaos-") as folder:
        site, run = ChaosSite(Path(folder), shape), None
        try:
            _await_well(site)
            keys = site.make_keys()
            reference: Reference
            if engine == "vllm":
                reference = asyncio.run(measure_prompts(site, keys))
            else:
                reference = SimulatedReference(model)
            census = site.census()
            faults_planned = plan(faults, rng, parts, is_short=is_short)
            run = Chaos(site, clients, faults_planned, rng, lengths, keys)
            asyncio.run(run.run())
            left, rows = audit(site, run.journeys, census, run.outages)
            result = figures(run, reference, left, rows)
        except AssertionError as error:
            raise RuntimeError(str(error)) from None
        finally:
            if keep is not None:
                keep_logs(site, keep, run)
            site.stop()
    return result | {"engine": engine, "instances": instances, "clients": clients, "seed": seed}


def _await_well(site: ChaosSite) -> None:
    give_up_s = time.monotonic() + START_MAX_S
    while why := site.unwell():
        if time.monotonic() > give_up_s or site.process.poll() is not None:
            raise RuntimeError(f"it does not come up: {why}\n{site.output.read_text()[-3000:]}")
        time.sleep(LOOK_S)


def keep_logs(site: ChaosSite, folder: Path, run: Chaos | None) -> None:
    """Keeps the logs, faults and requests, to look into what went wrong."""
    folder.mkdir(parents=True, exist_ok=True)
    for log in (site.output, *(site.var_dir / "log").glob("*.log")):
        (folder / log.name).write_bytes(log.read_bytes())
    for journeys in [run.journeys] if run else []:
        lines = [json.dumps(asdict(journey)) for journey in journeys]
        (folder / "journeys.jsonl").write_text("\n".join(lines))


def table(result: dict[str, Any]) -> str:
    """Returns the figures for people."""
    left = ", ".join(f"{name} {count}" for name, count in result["left"].items())
    return "\n".join(
        (
            f"{result['faults']} faults: {result['faults_by_part']}",
            f"streams: {result['streams_started']} started, {result['completed']} completed,"
            f" {result['resumed']} resumed, {result['replayed']} replayed, {result['moved']} moved",
            f"typed errors: {result['typed_errors']}, refused: {result['refused']}",
            f"wrong {result['wrong']}, hung {result['hung']}; left: {left}",
        )
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--faults", type=int, help="default: 50, with --short 7")
    parser.add_argument("--engine", choices=("simulated", "vllm"), default="simulated")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="fewer parts, clients and faults")
    parser.add_argument("--ranks", type=int, default=1, help="processes of a real engine's model")
    parser.add_argument("--only", type=Part, nargs="+", default=(), help="only these parts")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep logs and requests there")
    options = parser.parse_args()
    faults = options.faults or (7 if options.short else 50)
    return session.run(
        lambda: chaos(
            options.engine,
            faults,
            options.seed,
            is_short=options.short,
            keep=options.keep,
            only=options.only,
            ranks=options.ranks,
        ),
        problems="problems",
        table=table,
    )


if __name__ == "__main__":
    sys.exit(main())
