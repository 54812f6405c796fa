"""What is known of a running installation: `var/run/state.json`, and the lock that proves it runs.

The kernel drops the lock when the supervisor ends, however it ends, so a state without a lock is a
left-over. The file holds the store's password: mode 600.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

STATE_FILE = "state.json"
LOCK_FILE = "lock"


class AlreadyRunning(Exception):
    """Another supervisor has this folder; `state` is what it wrote, None while it starts."""

    def __init__(self, state: "RunState | None") -> None:
        super().__init__("already running")
        self.state = state


@dataclass(frozen=True, slots=True)
class RunState:
    pid: int
    """The supervisor's."""
    url: str
    redis_url: str
    ray_address: str
    ray_token_path: str
    """Empty when the Ray cluster is not the supervisor's own."""
    scratch_dir: str
    """The supervisor's folder outside var/, for sockets, whose paths must be short."""
    environ: dict[str, str]
    """What a process needs in its environment to talk to this installation."""


def run_dir(var_dir: Path) -> Path:
    return var_dir / "run"


def write_state(var_dir: Path, state: RunState) -> None:
    path = run_dir(var_dir) / STATE_FILE
    write_secret(path, json.dumps(asdict(state), indent=2))


def read_state(var_dir: Path) -> RunState | None:
    """Returns the state, or None when there is none or it cannot be read."""
    try:
        return RunState(**json.loads((run_dir(var_dir) / STATE_FILE).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def remove_state(var_dir: Path) -> None:
    (run_dir(var_dir) / STATE_FILE).unlink(missing_ok=True)


def write_secret(path: Path, text: str) -> None:
    """Writes a file that only its owner can read, at once: never seen open or half written."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    unfinished.replace(path)


@contextmanager
def hold_lock(var_dir: Path) -> Iterator[None]:
    """Holds the folder's lock. Raises: AlreadyRunning."""
    run_dir(var_dir).mkdir(parents=True, exist_ok=True, mode=0o700)
    with (run_dir(var_dir) / LOCK_FILE).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyRunning(read_state(var_dir)) from None
        yield


def is_locked(var_dir: Path) -> bool:
    """Says whether a supervisor has the folder now."""
    try:
        with hold_lock(var_dir):
            return False
    except AlreadyRunning:
        return True
