"""A real PostgreSQL server with its data in a folder of its own, for one test run."""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from ops.checks import free_port

SERVER_USER = "postgres"
"""PostgreSQL refuses to run as root; Debian's package makes this user."""
START_TIMEOUT_S = 30.0
OPTIONS = {
    "listen_addresses": "127.0.0.1",
    # Nobody keeps this data: what a commit waits for is not written to the disk.
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "max_connections": "200",
}


def programs() -> Path:
    """Returns the folder of the newest server installed. Raises: RuntimeError without one."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), reverse=True)
    if folders:
        return folders[0].parent
    if found := shutil.which("postgres"):
        return Path(found).resolve().parent
    raise RuntimeError("PostgreSQL is not installed: `make test` installs it")


@contextlib.contextmanager
def running_postgresql(folder: Path) -> Iterator[str]:
    """Runs a server while the block runs; gives its DATABASE_URL. `folder` must be empty."""
    user = SERVER_USER if os.geteuid() == 0 else None
    if user:
        # Its own folder, and the way to it, must be open to the server's user.
        shutil.chown(folder, user)
        for parent in folder.parents:
            if parent == Path(parent.anchor):
                break
            parent.chmod(parent.stat().st_mode | 0o011)
    data, port = folder / "data", free_port()
    subprocess.run(
        [programs() / "initdb", "-D", data, "-U", "ferry", "--auth=trust", "--no-sync"],
        user=user,
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=60,
    )
    options = [f"-c{name}={value}" for name, value in OPTIONS.items()]
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [programs() / "postgres", "-D", data, "-p", str(port), "-k", folder, *options],
            user=user,
            cwd=folder,
            stdout=log,
            stderr=log,
        )
        try:
            _wait_until_ready(server, port)
            yield f"postgres://ferry@127.0.0.1:{port}/postgres"
        finally:
            server.terminate()
            server.wait(30)


def _wait_until_ready(server: "subprocess.Popen[bytes]", port: int) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    ask = [programs() / "pg_isready", "-h", "127.0.0.1", "-p", str(port), "-q"]
    while subprocess.run(ask, check=False, timeout=10).returncode:
        assert server.poll() is None, "PostgreSQL ended while it started"
        assert time.monotonic() < deadline_s, "PostgreSQL does not answer"
        time.sleep(0.2)
