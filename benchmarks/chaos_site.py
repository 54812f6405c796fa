"""The installation that the chaos run breaks: two web processes, two Ray nodes, two workers."""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import psutil
import redis

from benchmarks.servers import ROOT
from engine_pool.types import InstanceLoad, InstanceState, InstanceStatus
from ops import checks
from ops.processes import PART_MARK, find_marked
from tests.integration.installation import Installation

PROGRAMS: Final = (
    *("web python", "web-2 python", "store valkey-server", "pool python"),
    *("ray gcs_server", "ray raylet", "ray-2 raylet"),
    *("worker celery", "worker-2 celery", "beat beat", "beat-2 beat"),
)
"""Part and program of each process that a healthy installation has, engines left out."""
ENGINE_TITLE: Final = "ray::Engine"
"""How the titles of engines' processes begin."""
READY_TIMEOUT_S: Final = 5.0
FRESH_S: Final = 5.0
"""The pages call an older report stale."""
KEYS_TIMEOUT_S: Final = 120.0
TENANTS: Final = {"urgent": "high", "usual": "normal", "patient": "low"}
"""Tenant -> class of its requests."""
CONCURRENCY: Final = 40
"""A tenant's limit: never reached, so that a refusal by it means leaked places."""
MAKE_KEYS: Final = (
    "from controlplane.tenants.first_login import SETUP\n"
    "from controlplane.tenants.services import key_create, tenant_create\n"
    "for slug, name in {tenants}.items():\n"
    "    tenant = tenant_create(access=SETUP, name=slug, slug=slug, highest_class=name,"
    " default_class=name, concurrency={concurrency})\n"
    "    print('KEY', slug, key_create(access=SETUP, tenant=tenant, name='chaos')[1])\n"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """How large the installation is."""

    engine: str
    instances: int
    model: Path
    nodes: int = 1
    """Ray nodes besides the head."""
    workers: int = 1
    """Workers besides the first."""
    settings: Mapping[str, str] | None = None


class ChaosSite(Installation):
    """Starts it; nothing is waited for yet."""

    program = "benchmarks.chaos_up"

    def __init__(self, var_dir: Path, shape: Shape) -> None:
        self.shape = shape
        self.second_port = checks.free_port()
        super().__init__(
            var_dir,
            FERRY_ENGINE=shape.engine,
            FERRY_INSTANCES=str(shape.instances),
            FERRY_MODEL=str(shape.model),
            CHAOS_WEB_PORT=str(self.second_port),
            CHAOS_NODES=str(shape.nodes),
            CHAOS_WORKERS=str(shape.workers),
            **(shape.settings or {}),
        )

    @property
    def urls(self) -> tuple[str, ...]:
        return self.url, f"http://127.0.0.1:{self.second_port}"

    def make_keys(self) -> dict[str, str]:
        """Makes a tenant a class and returns a key of each. Raises: RuntimeError."""
        code = MAKE_KEYS.format(tenants=TENANTS, concurrency=CONCURRENCY)
        done = subprocess.run(
            [sys.executable, "manage.py", "shell", "--no-imports", "-c", code],
            cwd=ROOT,
            env=self.environ | self.state.environ,
            capture_output=True,
            text=True,
            timeout=KEYS_TIMEOUT_S,
            check=False,
        )
        lines = [line.split() for line in done.stdout.splitlines() if line.startswith("KEY ")]
        if len(lines) != len(TENANTS):
            raise RuntimeError(f"no keys could be made:\n{done.stderr[-2000:]}")
        return {slug: key for _, slug, key in lines}

    def known_statuses(self) -> list[InstanceStatus]:
        """Returns the pool's instances, none while the store is away."""
        try:
            return self.statuses()
        except redis.RedisError:
            return []

    def in_flight(self) -> int:
        """Returns the requests that engines have, -1 while the store is away."""
        try:
            return self.running() + self.waiting()
        except redis.RedisError:
            return -1

    def unwell(self) -> str:
        """Says what is not as it should be; "" when everything is."""
        here = self.census()
        expected = [p for p in PROGRAMS if self._has(p.split()[0])]
        if missing := [program for program in expected if not here[program]]:
            return f"missing: {', '.join(missing)}"
        for url in self.urls:
            try:
                answer = httpx.get(f"{url}/readyz", timeout=READY_TIMEOUT_S)
            except httpx.HTTPError as error:
                return f"{url}: {type(error).__name__}"
            if answer.status_code != 200:
                return f"{url}: {answer.text[:100]}"
        try:
            return self._unwell_pool(self.statuses(), self.loads())
        except redis.RedisError as error:
            return f"store: {type(error).__name__}"

    def _has(self, part: str) -> bool:
        """Says whether this installation has the part."""
        number = int(part.rpartition("-")[2]) if part[-1].isdigit() else 1
        workers = self.shape.workers + 1
        many = {"ray": self.shape.nodes + 1, "worker": workers, "beat": workers, "web": 2}
        return number <= many.get(part.partition("-")[0], 1)

    def _unwell_pool(self, statuses: list[InstanceStatus], loads: list[InstanceLoad]) -> str:
        serving = {s.instance: s for s in statuses if s.state is InstanceState.SERVING}
        if len(serving) < self.shape.instances:
            states = ", ".join(f"{s.instance} {s.state.value} ({s.cause})" for s in statuses)
            return f"{len(serving)} of {self.shape.instances} instances serve: {states}"
        fresh_after = time.time() - FRESH_S
        fresh = {(x.instance, x.incarnation) for x in loads if x.at_unix_s > fresh_after}
        stale = [i for i, s in serving.items() if (i, s.incarnation) not in fresh]
        return f"no fresh report of {', '.join(stale)}" if stale else ""

    def engine_processes(self) -> list[psutil.Process]:
        """Returns all processes of engines, also of ones that nobody knows of any more."""
        return [p for p in self._alive() if _title(p) == ENGINE_TITLE]

    def _alive(self) -> list[psutil.Process]:
        return find_marked(self.run_dir)

    def census(self) -> Counter[str]:
        """Returns how many processes there are, by part and program. Ray's spare workers, which
        come and go, are not counted."""
        found: Counter[str] = Counter()
        for process in self._alive():
            try:
                title = _title(process)
                part = process.environ().get(PART_MARK, "")
            except psutil.Error:
                continue
            if title == ENGINE_TITLE:
                found[ENGINE_TITLE] += 1
            elif not title.startswith("ray::"):
                found[f"{part} {title}"] += 1
        return found


def _title(process: psutil.Process) -> str:
    """Returns what a process is, without what differs between two of a kind."""
    try:
        first = (process.cmdline() or [process.name()])[0]
    except psutil.Error:
        return ""
    if first.startswith("[celery"):
        return "beat" if "beat" in first[:20] else "celery"
    if first.startswith(ENGINE_TITLE):
        return ENGINE_TITLE
    return first.split()[0] if first.startswith("ray::") else process.name()
