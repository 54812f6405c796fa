"""What must hold before anything is started; each failure is one line that says what to do."""

import os
import socket
import sys
from collections.abc import Iterable
from pathlib import Path

import psutil

from engine_pool.config import PoolConfig
from engine_pool.types import EngineKind

WEB_AND_REST_GIB = 1.5
"""Measured: a web process 0.75 GiB, Ray, pool and worker together 0.6 GiB, the store little."""
SIMULATED_ENGINE_GIB = 0.15
"""Measured: a Ray actor with a simulated engine is a Python process without torch."""
RANK_GIB = 0.7
"""Measured: a worker process of tensor parallelism without its share of the weights. An engine has
one a rank, and none without tensor parallelism."""
_CGROUP_V2 = Path("/sys/fs/cgroup")
_GIB = 1024**3


class CannotStart(Exception):
    """The installation cannot start; the message is one line for the person."""


def check_python() -> None:
    if sys.version_info[:2] != (3, 11):
        found = ".".join(map(str, sys.version_info[:2]))
        raise CannotStart(f"Ferry needs Python 3.11, this is {found}")


def check_port(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except PermissionError:
            raise CannotStart(f"port {port} needs root rights; choose another: PORT=8000") from None
        except OSError as error:
            if "in use" in str(error):
                raise CannotStart(
                    f"port {port} of {host} is taken by another program; choose another: "
                    f"PORT={port + 1 if port < 65535 else 8000} make up"
                ) from None
            raise CannotStart(f"cannot listen on {host}:{port}: {error.strerror}") from None


def needed_gib(pool: PoolConfig) -> float:
    """Returns the memory that an installation takes, GiB. On a GPU the weights are not in it."""
    if pool.engine is EngineKind.SIMULATED:
        return pool.instances * SIMULATED_ENGINE_GIB + WEB_AND_REST_GIB
    workers = pool.tensor_parallel if pool.tensor_parallel > 1 else 0
    engine = pool.engine_memory_gib + pool.kv_cache_gib + workers * RANK_GIB
    return pool.instances * engine + WEB_AND_REST_GIB


def check_memory(pool: PoolConfig, available_gib: float) -> None:
    needed = needed_gib(pool)
    if needed > available_gib:
        raise CannotStart(
            f"too little memory: {pool.instances} engine{'s' if pool.instances != 1 else ''} need "
            f"{needed:.1f} GiB and {available_gib:.1f} GiB are free; lower INSTANCES, KV_CACHE_GIB "
            "or ENGINE_MEMORY_GIB"
        )


def available_gib() -> float:
    """Returns the free memory, GiB: of the machine, or of the container's limit if that is less."""
    free = psutil.virtual_memory().available
    return min([free, *_cgroup_free_bytes()]) / _GIB


def _cgroup_free_bytes() -> Iterable[int]:
    """Yields what each memory limit above this process leaves; page cache counts as free."""
    for folder in _cgroup_folders():
        try:
            limit = (folder / "memory.max").read_text().strip()
            used = int((folder / "memory.current").read_text())
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        if limit.isdigit():
            yield int(limit) - used + int(stat.get("inactive_file", 0))


def _cgroup_folders() -> Iterable[Path]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        if line.startswith("0::"):
            folder = _CGROUP_V2 / line[3:].lstrip("/")
            yield folder
            yield from (parent for parent in folder.parents if parent.is_relative_to(_CGROUP_V2))


def check_var_dir(var_dir: Path) -> None:
    try:
        var_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotStart(f"cannot make the folder {var_dir}: {error.strerror}") from None
    if not os.access(var_dir, os.W_OK):
        raise CannotStart(f"the folder {var_dir} cannot be written to")


def free_port() -> int:
    """Returns a port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
