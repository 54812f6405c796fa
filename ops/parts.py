"""The parts of an installation: which commands, in which environment, in which order. Pure.

Start: everything at once, but a part waits for the parts it `needs`. The web process is the slowest
to start (it imports vLLM's front end, some ten seconds of one core), so it goes first and with a
higher priority. Stop: by `stop_rank`, clients before servers.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ops.processes import MARK, PART_MARK
from ops.run_state import run_dir
from ops.settings import ROOT, UpSettings

STORE_MAX_MEMORY = "1gb"
"""Token logs of an hour of traffic take far less. A full store refuses writes, which is seen and
answered as an error; an evicted token log would be a silent gap."""
RAY_OBJECT_STORE_BYTES = 100 * 1024**2
"""Ray's minimum is 75 MiB; requests are a few kB and no engine puts objects into it."""
WEB_GRACE_S = 1
"""How long answers may go on after a stop, whatever FERRY_WEB_GRACE_S says: there is no other web
process that they could go on at, and stops must be over within 10 s altogether."""
WEB_CLOSE_S = 1
"""After that, for connections whose clients have not taken the last words yet."""
KEEP_ALIVE_S = 75
"""How long the web server keeps an idle connection: longer than clients and proxies do (5 to 60 s),
so that none sends a request over a connection that is being closed."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where this run of the installation keeps its things, found at start."""

    settings: UpSettings
    model_dir: str
    served_name: str
    redis_url: str
    store_config: Path
    ray_port: int
    ray_token: Path
    scratch_dir: Path
    """Short, since the paths of Unix sockets below it may have 107 characters."""
    store_server: str
    """The store's program."""


@dataclass(frozen=True, slots=True)
class Part:
    """One supervised process."""

    name: str
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()
    """Parts that must answer first; "ready" stands for the whole installation."""
    stop_rank: int = 0
    """Parts of the lowest rank stop first, all of a rank together."""
    stop_timeout_s: float = 3.0
    start_nice: int = 0
    restarts_with: tuple[str, ...] = ()
    """When one of these ends, this part is restarted too, since it cannot live on without it."""
    environ: Mapping[str, str] = field(default_factory=dict)
    ready_line: str = ""
    """The part answers once its output has this text; empty: once its process runs."""
    once: bool = False
    """Runs to its end instead of serving; it answers by ending with exit code 0."""


def list_parts(places: Places) -> tuple[Part, ...]:
    """Returns the parts to start, in that order."""
    settings = places.settings
    setup = (sys.executable, "-m", "ops.setup", "--url", settings.url)
    parts = [
        Part("setup", setup, once=True),
        web_part(settings.host, settings.port, restarts_with=("ray",)),
    ]
    if not settings.redis_url:
        parts.append(
            Part(
                "store",
                (places.store_server, str(places.store_config)),
                stop_rank=2,
                stop_timeout_s=1.0,
                ready_line="Ready to accept connections",
            )
        )
    if not settings.ray_address:
        parts.append(
            Part("ray", _ray_command(places), stop_rank=1, ready_line="Ray runtime started")
        )
    parts += [
        Part(
            "pool",
            (sys.executable, "-m", "engine_pool.main"),
            # Not "ray": this process waits for Ray itself, and loads what it needs meanwhile.
            needs=("store",),
            restarts_with=("ray",),
        ),
        Part("worker", worker_command(), needs=("setup", "store", "ready")),
        Part("beat", beat_command(settings), needs=("setup", "store", "ready")),
    ]
    return tuple(parts)


def web_part(host: str, port: int, name: str = "web", restarts_with: tuple[str, ...] = ()) -> Part:
    """Returns a web process; several may run, on ports of their own.

    A process that has joined a Ray cluster cannot join the one that comes after it.
    """
    command = (
        *(sys.executable, "-m", "uvicorn", "controlplane.asgi:application"),
        *("--host", host, "--port", str(port), "--loop", "uvloop", "--http", "httptools"),
        *("--no-access-log", "--no-server-header"),
        *("--timeout-graceful-shutdown", str(WEB_CLOSE_S)),
        *("--timeout-keep-alive", str(KEEP_ALIVE_S)),
        *_proxy_options(os.environ.get("FERRY_TRUSTED_PROXIES", "")),
    )
    return Part(
        name,
        command,
        needs=(),
        restarts_with=restarts_with,
        stop_timeout_s=WEB_GRACE_S + WEB_CLOSE_S + 2,
        environ={"FERRY_WEB_GRACE_S": str(WEB_GRACE_S)},
        start_nice=-19,
    )


def _proxy_options(trusted: str) -> tuple[str, ...]:
    """Returns whose word about a client's address and TLS counts: nobody's unless it was said.

    `trusted`: addresses and networks, separated by commas.
    """
    names = ",".join(name.strip() for name in trusted.split(",") if name.strip())
    return ("--forwarded-allow-ips", names) if names else ("--no-proxy-headers",)


def _ray_command(places: Places) -> tuple[str, ...]:
    return (
        *(sys.executable, "-m", "ops.ray_head", "start", "--head", "--block"),
        *("--node-ip-address", "127.0.0.1", "--port", str(places.ray_port)),
        *("--object-store-memory", str(RAY_OBJECT_STORE_BYTES)),
        *("--include-dashboard", "false", "--include-log-monitor", "false"),
        *("--no-monitor", "--dashboard-agent-listen-port", "0"),
        *("--min-worker-port", "0", "--max-worker-port", "0"),
        *("--disable-usage-stats", "--temp-dir", str(places.scratch_dir / "ray")),
    )


def worker_command(hostname: str = "worker@%h") -> tuple[str, ...]:
    """Returns what runs a worker. Two of one host need names of their own."""
    return (
        *(sys.executable, "-m", "celery", "-A", "controlplane.celery", "worker"),
        *("--pool", "threads", "--concurrency", "2", "--loglevel", "INFO"),
        *("--hostname", hostname, "--without-mingle", "--without-gossip"),
    )


def beat_command(settings: UpSettings, name: str = "beat") -> tuple[str, ...]:
    """Returns what gives out periodic tasks: a part of its own, since nobody would start a worker's
    child again that has died. Each one keeps a schedule of its own."""
    schedule = run_dir(settings.var_dir) / f"celery{name}-schedule"
    return (
        *(sys.executable, "-m", "celery", "-A", "controlplane.celery", "beat"),
        # No file of its pid: one that a killed beat leaves would keep the next from starting.
        *("--schedule", str(schedule), "--pidfile", "", "--loglevel", "INFO"),
    )


def common_environ(places: Places) -> dict[str, str]:
    """Returns what every part needs in its environment besides what it inherits."""
    settings = places.settings
    own_ray = not settings.ray_address
    python_path = f"{ROOT}:{ROOT / 'platform'}"
    return {
        "PYTHONPATH": python_path,
        "PYTHONUNBUFFERED": "1",
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "FERRY_VAR_DIR": str(settings.var_dir),
        "FERRY_ENGINE": settings.pool.engine.value,
        "FERRY_INSTANCES": str(settings.pool.instances),
        "FERRY_MODEL": places.model_dir,
        "FERRY_SERVED_MODEL_NAME": places.served_name,
        "FERRY_KV_CACHE_GIB": str(settings.pool.kv_cache_gib),
        "FERRY_ENGINE_MEMORY_GIB": str(settings.pool.engine_memory_gib),
        "REDIS_URL": places.redis_url,
        "RAY_ADDRESS": f"127.0.0.1:{places.ray_port}" if own_ray else settings.ray_address,
        **(
            {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(places.ray_token)}
            if own_ray
            else {}
        ),
        # Ray's workers would run at niceness 15, the engines among them.
        "RAY_worker_niceness": "0",
        # No part of Ferry calls home.
        "RAY_USAGE_STATS_ENABLED": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
        MARK: str(run_dir(settings.var_dir)),
        # Ray's agents and Celery give themselves titles, which would overwrite that mark.
        "SPT_NOENV": "1",
    }


def part_environ(part: Part, common: Mapping[str, str]) -> dict[str, str]:
    return {**common, **part.environ, PART_MARK: part.name}


def launch_command(part: Part) -> tuple[str, ...]:
    """Returns the part's command behind the launcher, which ties its life to the supervisor's."""
    launcher = (sys.executable, "-I", "-S", str(ROOT / "ops" / "launch.py"))
    return (*launcher, str(part.start_nice), *part.command)
