"""`make down`: stops the installation of this folder, from any shell.

python -m ops.down
"""

import os
import shutil
import signal
import sys
import time

from engine_pool.errors import ConfigError
from ops import run_state
from ops.processes import kill_marked
from ops.settings import current
from ops.terminal import say

WAIT_S = 15.0
"""The supervisor needs 10 s at most."""
_POLL_S = 0.1


def main() -> int:
    try:
        var_dir = current().var_dir
    except ConfigError as error:
        say(str(error))
        return 1
    if not var_dir.is_dir():
        say("nothing runs here")
        return 0
    state = run_state.read_state(var_dir)
    was_running = run_state.is_locked(var_dir)
    if was_running and state:
        os.kill(state.pid, signal.SIGTERM)
        deadline_s = time.monotonic() + WAIT_S
        while run_state.is_locked(var_dir) and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
        if run_state.is_locked(var_dir):
            os.kill(state.pid, signal.SIGKILL)
    elif was_running:
        say("Ferry is being started here; try again in a moment, or press Ctrl-C there")
        return 1
    left = kill_marked(run_state.run_dir(var_dir))
    if state:
        shutil.rmtree(state.scratch_dir, ignore_errors=True)
    run_state.remove_state(var_dir)
    say("stopped" if was_running or left else "nothing runs here")
    return 0


if __name__ == "__main__":
    sys.exit(main())
