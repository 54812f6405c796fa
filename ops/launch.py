"""Becomes another program, after asking the kernel to end it together with the supervisor.

    python ops/launch.py NICE PROGRAM [ARGUMENT...]

Standard library only and run with -I -S, so that it costs a few milliseconds. NICE below 0 is tried
and may be refused. Errors go where the output goes, so that their order is kept.
"""

import contextlib
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    os.dup2(1, 2)
    nice, program = int(sys.argv[1]), sys.argv[2:]
    if os.uname().sysname == "Linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if nice:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, nice)
    os.execvp(program[0], program)


if __name__ == "__main__":
    main()
