"""Runs a supervisor over parts given as JSON, for the tests: it must be a process of its own."""

import asyncio
import json
import signal
import sys
from pathlib import Path

from ops.parts import Part
from ops.processes import MARK
from ops.supervisor import SetupFailed, Supervisor


async def main() -> int:
    folder = Path(sys.argv[1])
    parts = [
        Part(**{**part, "command": tuple(part["command"])}) for part in json.loads(sys.argv[2])
    ]
    supervisor = Supervisor(
        parts,
        {MARK: str(folder)},
        run_dir=folder,
        log_dir=folder,
        scratch_dir=folder,
        show_all=True,
    )
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    supervisor.installation_ready.set()
    status = 0
    try:
        await supervisor.run()
        print("all started", flush=True)
        await stop.wait()
    except* SetupFailed as failed:
        print(failed.exceptions[0], flush=True)
        status = 1
    await supervisor.stop()
    return status


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
