"""Finds a running installation from any shell, for management commands."""

import os
import sys

from django.conf import settings

from ops.run_state import RunState, read_state

_AGAIN = "FERRY_COMMAND_HAS_STATE"
"""Set once the installation's settings are in the environment."""


def enter_installation() -> RunState | None:
    """Starts the command again with the settings of what runs in this folder (`make up`), once.

    None: nothing runs here; the settings are those of the environment, like every part's.
    """
    state = read_state(settings.VAR_DIR)
    if state is not None and _AGAIN not in os.environ:
        environ = {**os.environ, **state.environ, _AGAIN: "1"}
        os.execve(sys.executable, [sys.executable, *sys.argv], environ)
    return state
