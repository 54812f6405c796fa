"""Starts the servers that a benchmark compares, each as its own users start it, and ends them."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from benchmarks.load import Target

ROOT = Path(__file__).resolve().parents[1]
MODEL_DIR = ROOT / "var" / "models" / "SmolLM2-135M-Instruct"
MODEL_NAME = "SmolLM2-135M-Instruct"
START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 20.0
KV_CACHE_GIB = 1
MAX_RUNNING = 64
MAX_MODEL_LEN = 4096


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@contextlib.contextmanager
def vllm_server() -> Iterator[Target]:
    """vLLM's own OpenAI server with its defaults, but for the sizes that both servers share."""
    port = free_port()
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server",
        "--model", str(MODEL_DIR), "--served-model-name", MODEL_NAME,
        "--host", "127.0.0.1", "--port", str(port),
        "--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", str(MAX_RUNNING),
        "--disable-uvicorn-access-log",
    ]  # fmt: skip
    environ = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": str(KV_CACHE_GIB)}
    with _running("vllm", command, environ, f"http://127.0.0.1:{port}/health"):
        yield Target("vllm", f"http://127.0.0.1:{port}/v1", MODEL_NAME)


@contextlib.contextmanager
def ferry_server(instances: int) -> Iterator[Target]:
    """A whole Ferry installation, as `make up` starts it, with its state in a folder of its own."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="ferry-bench-") as var:
        environ = {
            **os.environ,
            "FERRY_VAR_DIR": var,
            "FERRY_PORT": str(port),
            "FERRY_INSTANCES": str(instances),
            "FERRY_MODEL": str(MODEL_DIR),
            "FERRY_KV_CACHE_GIB": str(KV_CACHE_GIB),
            "FERRY_MAX_RUNNING": str(MAX_RUNNING),
            "FERRY_MAX_MODEL_LEN": str(MAX_MODEL_LEN),
        }
        command = [sys.executable, "-m", "ops.up"]
        with _running("ferry", command, environ, f"http://127.0.0.1:{port}/readyz"):
            login = json.loads((Path(var) / "first-login.json").read_text())
            yield Target("ferry", f"http://127.0.0.1:{port}/v1", MODEL_NAME, login["api_key"])


@contextlib.contextmanager
def _running(
    name: str, command: list[str], environ: dict[str, str], ready_url: str
) -> Iterator[None]:
    """Runs a server in its own process group while the block runs. Raises: RuntimeError."""
    log = Path(tempfile.gettempdir()) / f"ferry-bench-{name}-{os.getpid()}.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            command, cwd=ROOT, env=environ, stdout=output, stderr=output, start_new_session=True
        )
        try:
            print(f"starting {name}, log in {log}", flush=True)
            wait_ready(name, server, ready_url, log)
            yield
        finally:
            os.killpg(server.pid, signal.SIGINT)
            try:
                server.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait(STOP_TIMEOUT_S)


def wait_ready(name: str, server: "subprocess.Popen[bytes]", ready_url: str, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"{name} ended with {server.returncode}; its log: {log}")
        if _answers(ready_url):
            return
        time.sleep(0.5)
    raise RuntimeError(f"{name} was not ready after {START_TIMEOUT_S:.0f} s; its log: {log}")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
