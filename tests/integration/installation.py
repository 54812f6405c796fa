"""A whole installation for tests: what `make up` starts, and a second web process beside it."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import redis
from openai import OpenAI

from engine_pool import view
from engine_pool.types import InstanceLoad, InstanceStatus
from ops import checks, run_state
from ops.parts import RAY_OBJECT_STORE_BYTES, web_part
from ops.postgresql import programs
from ops.processes import MARK, PART_MARK, find_marked, kill_marked

ROOT = Path(__file__).resolve().parents[2]
START_DEADLINE_S = 240.0
"""Generous: CI's machine has two cores, and real engines load a model."""
DEADLINE_S = 120.0
"""For what takes a second or two on an idle machine."""
NODE_TRIES = 3
"""Ray gives a node some seconds to start, which a busy machine may not have."""


def wait_for(what: Callable[[], Any], because: str, deadline_s: float = DEADLINE_S) -> Any:
    """Polls until `what` returns something true, and returns that."""
    end_s = time.monotonic() + deadline_s
    while True:
        found = what()
        if found:
            return found
        assert time.monotonic() < end_s, f"waited {deadline_s:.0f} s in vain: {because}"
        time.sleep(0.1)


def node_command(head: str, address: str, name: str) -> tuple[str, ...]:
    """Returns the command that joins another Ray node of this machine to an installation's.

    `head`: as in its RAY_ADDRESS. `address`: the node's own, by which drivers find theirs.
    """
    return (
        *(sys.executable, "-m", "ops.ray_head", "start", "--block", "--address", head),
        *("--node-ip-address", address, "--node-name", name),
        *("--object-store-memory", str(RAY_OBJECT_STORE_BYTES)),
        *("--include-log-monitor", "false", "--dashboard-agent-listen-port", "0"),
        *("--min-worker-port", "0", "--max-worker-port", "0", "--disable-usage-stats"),
    )


def clean_environ(**settings: str) -> dict[str, str]:
    """Returns this process's environment without settings of Ferry's, and with these."""
    ours = ("FERRY_", "RAY_", "REDIS_", "DATABASE_", "DJANGO_")
    return {n: v for n, v in os.environ.items() if not n.startswith(ours)} | settings


class Installation:
    """One installation in its own folder and on its own ports. Call `stop` at the end."""

    program = "ops.up"
    """The module that starts it."""

    def __init__(self, var_dir: Path, **settings: str) -> None:
        self.var_dir = var_dir
        self.run_dir = run_state.run_dir(var_dir)
        self.port = checks.free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.environ = clean_environ(
            FERRY_VAR_DIR=str(var_dir), FERRY_PORT=str(self.port), **settings
        )
        self.output = var_dir / "up.log"
        self._others: list[subprocess.Popen[bytes]] = []
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", self.program],
                cwd=ROOT,
                env=self.environ,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_ready(self, url: str = "", deadline_s: float = START_DEADLINE_S) -> None:
        url = url or self.url

        def ready() -> bool:
            assert self.process.poll() is None, f"it ended:\n{self.output.read_text()}"
            try:
                return httpx.get(f"{url}/readyz", timeout=5).status_code == 200
            except httpx.HTTPError:
                return False

        wait_for(ready, f"{url} is ready", deadline_s)

    @property
    def state(self) -> run_state.RunState:
        found = run_state.read_state(self.var_dir)
        assert found is not None
        return found

    @property
    def login(self) -> dict[str, str]:
        login: dict[str, str] = json.loads((self.var_dir / "first-login.json").read_text())
        return login

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.login['api_key']}"}

    def client(self, url: str = "", **options: Any) -> OpenAI:
        settings: dict[str, Any] = {"timeout": DEADLINE_S, "max_retries": 0} | options
        return OpenAI(base_url=f"{url or self.url}/v1", api_key=self.login["api_key"], **settings)

    def start_second_web(self) -> str:
        """Starts another web process of the same installation and returns its address."""
        return self.start_web("web-2")[0]

    def start_web(self, name: str, **settings: str) -> "tuple[str, subprocess.Popen[bytes]]":
        """Starts another web process, which nobody starts again when it dies; returns its address
        too. `settings`: variables of its own."""
        port = checks.free_port()
        part = web_part("127.0.0.1", port, name)
        environ = self.environ | self.state.environ
        environ |= {
            "PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}",
            "DJANGO_SETTINGS_MODULE": "controlplane.settings",
            MARK: str(self.run_dir),
            "FERRY_PART": part.name,
            **settings,
        }
        with (self.var_dir / "log" / f"{name}.log").open("wb") as output:
            process = subprocess.Popen(
                part.command, cwd=ROOT, env=environ, stdout=output, stderr=subprocess.STDOUT
            )
        self._others.append(process)
        url = f"http://127.0.0.1:{port}"
        self.wait_ready(url)
        return url, process

    def start_node(self, name: str, address: str) -> None:
        """Starts another Ray node on this machine, which nobody starts again when it dies.

        `address`: of its own, such as 127.0.0.2. Its processes are the part of its name.
        """
        environ = self.environ | self.state.environ | {MARK: str(self.run_dir), PART_MARK: name}
        command = node_command(self.state.ray_address, address, name)
        log = self.var_dir / "log" / f"{name}.log"
        for _ in range(NODE_TRIES):
            with log.open("wb") as output:
                node = subprocess.Popen(
                    command, cwd=ROOT, env=environ, stdout=output, stderr=subprocess.STDOUT
                )
            self._others.append(node)
            if _has_joined(node, log):
                return
            kill_marked(self.run_dir, name)
        raise AssertionError(f"{name} does not join:\n{log.read_text()[-3000:]}")

    def processes(self, part: str) -> list[psutil.Process]:
        return find_marked(self.run_dir, part)

    def store(self) -> "redis.Redis[bytes]":
        return redis.Redis.from_url(self.state.redis_url, socket_timeout=5)

    def statuses(self) -> list[InstanceStatus]:
        return [view.decode_status(blob) for blob in self.store().hvals(view.STATUSES)]

    def loads(self) -> list[InstanceLoad]:
        return [view.decode_load(blob) for blob in self.store().hvals(view.LOADS)]

    def running(self) -> int:
        return sum(len(load.running) for load in self.loads())

    def waiting(self) -> int:
        return sum(len(load.waiting) for load in self.loads())

    def wait_idle(self) -> None:
        wait_for(lambda: self.running() + self.waiting() == 0, "no engine has work")

    def database_text(self) -> str:
        """Returns all rows of all tables, as SQL."""
        if url := self.environ.get("DATABASE_URL"):
            dump = [programs() / "pg_dump", "--inserts", "--no-owner", url]
            return subprocess.run(dump, check=True, stdout=subprocess.PIPE, text=True).stdout
        with sqlite3.connect(self.var_dir / "ferry.sqlite3") as database:
            return "\n".join(database.iterdump())

    def stop(self) -> int:
        """Stops it as Ctrl-C does. Returns the exit code; kills what does not obey."""
        for other in self._others:
            other.kill()
            other.wait(DEADLINE_S)
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
        try:
            return self.process.wait(DEADLINE_S)
        finally:
            self.process.kill()
            kill_marked(self.run_dir)


def _has_joined(node: "subprocess.Popen[bytes]", log: Path) -> bool:
    """Waits until a Ray node has joined, or has given up. Says which."""
    wait_for(
        lambda: "Ray runtime started" in log.read_text() or node.poll() is not None,
        "the node has joined, or given up",
        START_DEADLINE_S,
    )
    return node.poll() is None
