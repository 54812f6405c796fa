"""Starts the parts of an installation, restarts what dies, stops them all; circus does the work.

What circus does not do is added here: a wait before a restart that grows, an order among the parts,
and an end for processes that outlive their parents (Ray's workers do).
"""

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from circus.arbiter import Arbiter
from circus.process import DEAD_OR_ZOMBIE
from circus.watcher import Watcher
from tornado.ioloop import IOLoop

from ops.parts import Part, launch_command, part_environ
from ops.processes import adopt_orphans, kill_marked
from ops.settings import ROOT
from ops.terminal import PartLog, say

CHECK_S = 0.25
"""How often circus looks whether a part has ended."""
BACKOFF_FIRST_S = 1.0
BACKOFF_MAX_S = 60.0
HEALTHY_AFTER_S = 60.0
"""A part that ran this long was well: its next restart waits the shortest time again."""


def backoff_s(quick_ends: int) -> float:
    """Returns the wait before the next restart after `quick_ends` >= 1 short lives in a row."""
    return float(min(BACKOFF_FIRST_S * 2 ** (quick_ends - 1), BACKOFF_MAX_S))


class SupervisedPart(Watcher):  # type: ignore[misc]
    """One part under circus: a process that is restarted with a growing wait."""

    def __init__(self, part: Part, environ: Mapping[str, str], run_dir: Path, log: PartLog) -> None:
        program, *arguments = launch_command(part)
        super().__init__(
            part.name,
            program,
            args=arguments,
            env=dict(environ),
            copy_env=True,
            working_dir=str(ROOT),
            graceful_timeout=part.stop_timeout_s,
            stdout_stream={"stream": log},
            singleton=True,
            autostart=False,
            hooks={"after_reap": (self._after_reap, True)},
        )
        self.part = part
        self.ready = asyncio.Event()
        self.failed: int | None = None
        """The exit code of a part that runs once and failed."""
        self.on_restart: Callable[[str], None] = lambda name: None
        self._run_dir = run_dir
        self._started_s = 0.0
        self._not_before_s = 0.0
        self._quick_ends = 0
        self._kill_at_s: float | None = None
        """When a process that was told to end is killed; None: nobody told it."""

    async def begin(self) -> None:
        self._started_s = time.monotonic()
        if not self.part.ready_line and not self.part.once:
            self.ready.set()
        await self._start()

    def saw_line(self, line: str) -> None:
        if self.part.ready_line and self.part.ready_line in line:
            self.ready.set()

    def restart_now(self) -> None:
        """Ends the process, by force when it does not go; it comes back like one that died."""
        self._kill_at_s = time.monotonic() + self.part.stop_timeout_s
        for process in self.get_active_processes():
            process.send_signal(signal.SIGTERM)

    def _after_reap(self, exit_code: int | None, **_: object) -> bool:
        if self.is_stopping() or self.is_stopped():
            return True
        if self.part.once:
            self.respawn = False
            self.failed = None if exit_code == 0 else (exit_code or -1)
            self.ready.set()
            return True
        self._kill_at_s = None
        ran_s = time.monotonic() - self._started_s
        self._quick_ends = 1 if ran_s >= HEALTHY_AFTER_S else self._quick_ends + 1
        wait_s = backoff_s(self._quick_ends)
        self._not_before_s = time.monotonic() + wait_s
        line = f"{self.name} ended: {_cause(exit_code)}; restart in {wait_s:.0f} s"
        logging.getLogger("ferry").warning(line)
        say(line)
        return True

    def reap_process(self, pid: int, status: int | None = None) -> None:
        """Overrides circus's, which closes the pipe and leaves its number with the event loop: the
        next pipe with it, another part's, would be refused, and that part never started again."""
        process = self.processes.get(pid)
        if process is not None and self.stream_redirector:
            self.stream_redirector.remove_redirections(process)
        super().reap_process(pid, status)

    async def manage_processes(self) -> None:
        """Overrides circus's: nothing is spawned before its time, nor beside left-overs."""
        if self.is_stopped() or self.is_stopping():
            return
        for process in list(self.processes.values()):
            if not process.is_alive():
                self.reap_process(process.pid)
            elif process.status == DEAD_OR_ZOMBIE:
                # Its first thread has ended and the others have not.
                return
            elif self._kill_at_s is not None and time.monotonic() >= self._kill_at_s:
                self._kill_at_s = None
                process.send_signal(signal.SIGKILL)
        if self.processes:
            # Circus would drop one that dies at this moment, without a word in the log.
            return
        if self.respawn:
            if time.monotonic() < self._not_before_s:
                return
            kill_marked(self._run_dir, self.name, timeout_s=1.0)
            self._started_s = time.monotonic()
            self.on_restart(self.name)
        await super().manage_processes()


def _cause(exit_code: int | None) -> str:
    if exit_code is None:
        return "exit code unknown"
    if exit_code < 0:
        return f"killed by {signal.Signals(-exit_code).name}"
    return f"exit code {exit_code}"


class Supervisor:
    """All parts of one installation. Everything happens on the running event loop."""

    def __init__(
        self,
        parts: Sequence[Part],
        environ: Mapping[str, str],
        *,
        run_dir: Path,
        log_dir: Path,
        scratch_dir: Path,
        show_all: bool,
    ) -> None:
        adopt_orphans()
        self._run_dir = run_dir
        self._parts: dict[str, SupervisedPart] = {}
        for part in parts:
            self._add(part, part_environ(part, environ), log_dir, show_all)
        # Circus's control sockets: in a folder that only this user can enter.
        self._arbiter = Arbiter(
            list(self._parts.values()),
            f"ipc://{scratch_dir}/control",
            f"ipc://{scratch_dir}/events",
            check_delay=CHECK_S,
            loop=IOLoop.current(),
            proc_name=" ".join(sys.argv),
        )
        # Circus takes the signals when it is made; here the caller decides when to stop.
        self._arbiter.ctrl.sys_hdl.stop()
        self.installation_ready = asyncio.Event()
        """Set by the caller when the whole installation answers."""

    def _add(self, part: Part, environ: Mapping[str, str], log_dir: Path, show_all: bool) -> None:
        def saw_line(line: str) -> None:
            self._parts[part.name].saw_line(line)

        log = PartLog(part.name, log_dir, show_all=show_all, on_line=saw_line)
        watcher = SupervisedPart(part, environ, self._run_dir, log)
        watcher.on_restart = self._restart_dependants
        self._parts[part.name] = watcher

    async def run(self) -> None:
        """Starts each part as soon as what it needs answers. Raises: SetupFailed. Does not wait
        for the parts to end."""
        await self._arbiter.start()
        async with asyncio.TaskGroup() as group:
            for part in self._parts.values():
                group.create_task(self._begin_when_ready(part))

    async def _begin_when_ready(self, watcher: SupervisedPart) -> None:
        for need in watcher.part.needs:
            if need == "ready":
                await self.installation_ready.wait()
            elif need in self._parts:
                await self._parts[need].ready.wait()
        await watcher.begin()
        if watcher.part.once:
            await watcher.ready.wait()
            if watcher.failed is not None:
                raise SetupFailed(watcher.name, _cause(watcher.failed))

    def _restart_dependants(self, name: str) -> None:
        for watcher in self._parts.values():
            if name in watcher.part.restarts_with:
                say(f"{watcher.name} is restarted, because {name} was")
                watcher.restart_now()

    def pids(self, name: str) -> list[int]:
        watcher = self._parts.get(name)
        return list(watcher.processes) if watcher else []

    async def stop(self) -> None:
        """Stops all parts, rank by rank, and kills what is left of them."""
        self._arbiter._stopping = True  # circus then starts nothing any more
        by_rank: dict[int, list[SupervisedPart]] = {}
        for watcher in self._parts.values():
            by_rank.setdefault(watcher.part.stop_rank, []).append(watcher)
        for rank in sorted(by_rank):
            await asyncio.gather(*(_stop_part(watcher) for watcher in by_rank[rank]))
        kill_marked(self._run_dir)
        await self._arbiter.stop()


async def _stop_part(watcher: SupervisedPart) -> Any:
    return await watcher._stop(True)


class SetupFailed(Exception):
    """A part that must run to its end at start failed."""

    def __init__(self, name: str, cause: str) -> None:
        super().__init__(f"{name} failed: {cause}; see its log")
