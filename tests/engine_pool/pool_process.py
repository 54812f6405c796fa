"""A pool process for tests, with real Ray and simulated engines."""

import inspect
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import redis

from engine_pool import view
from engine_pool.types import InstanceState
from tests.engine_pool.conftest import StoreServer
from tests.tiny_model import ROOT, tiny_model

PATIENCE_S = 180.0
STOP_PATIENCE_S = 60.0
FAILED = 1
"""Exit code of a pool process that Ray was too slow for, or whose event loop stood still."""


class Pool:
    """A pool process beside its own Ray and store."""

    def __init__(self, store: StoreServer, folder: Path, **settings: str) -> None:
        self.store = store
        self.redis = redis.Redis.from_url(store.url)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.environ = os.environ | {
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'platform'}",
            "REDIS_URL": store.url,
            "RAY_ADDRESS": f"127.0.0.1:{port}",
            "RAY_AUTH_MODE": "disabled",
            "RAY_worker_niceness": "0",
            "FERRY_ENGINE": "simulated",
            "FERRY_INSTANCES": "2",
            "FERRY_MODEL": str(tiny_model()),
            **settings,
        }
        command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block"]
        command += ["--node-ip-address", "127.0.0.1", "--port", str(port)]
        command += ["--include-dashboard", "false", "--include-log-monitor", "false"]
        command += ["--no-monitor", "--disable-usage-stats", "--temp-dir", str(folder)]
        command += ["--object-store-memory", str(100 * 1024**2), "--min-worker-port", "0"]
        command += ["--max-worker-port", "0", "--dashboard-agent-listen-port", "0"]
        self.output = (folder / "pool.log").open("ab")
        self.ray = self._run(command, subprocess.DEVNULL)
        self.process = self.start()

    def start(self, **environ: str) -> "subprocess.Popen[bytes]":
        """Starts the pool process; Ray and the store go on if they are there already."""
        command = [sys.executable, "-m", "engine_pool.main"]
        self.process = self._run(command, self.output, environ)
        return self.process

    def _run(self, command: list[str], output: object, environ: dict[str, str] | None = None):
        return subprocess.Popen(
            command,
            env=self.environ | (environ or {}),
            cwd=ROOT,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

    def statuses(self) -> dict[str, view.InstanceStatus]:
        if self.process.poll() == FAILED:
            # As whoever runs it would.
            self.start()
        blobs = self.redis.hvals(view.STATUSES)
        return {s.instance: s for s in map(view.decode_status, blobs)}

    def serving(self) -> dict[str, view.InstanceStatus]:
        return {n: s for n, s in self.statuses().items() if s.state is InstanceState.SERVING}

    def end(self) -> None:
        """Ray is killed at once: asked nicely it takes 15 s, and it has nothing to keep."""
        for process, number in ((self.process, signal.SIGTERM), (self.ray, signal.SIGKILL)):
            try:
                os.killpg(process.pid, number)
                process.wait(STOP_PATIENCE_S)
            except ProcessLookupError:
                continue
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
        self.output.close()


def until(claim: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    give_up_s = time.monotonic() + patience_s
    while not claim():
        assert time.monotonic() < give_up_s, f"it does not happen: {_source_of(claim)}"
        time.sleep(0.05)


def _source_of(claim: Callable[[], object]) -> str:
    try:
        return inspect.getsource(claim).strip()
    except (OSError, TypeError):
        return repr(claim)


def is_alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1][:3]
    except FileNotFoundError:
        return False
