"""An engine in a process of its own, as in an installation but without Ray: an `EngineHost` with
its step loop, publisher and agent, told what to do through a pipe. A test may kill it."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import cast

from engine_pool.engine_actor import EngineHost, make_engine
from engine_pool.engine_spec import EngineSpec
from engine_pool.move_desk import MoveDesk
from engine_pool.ports import Engine, EngineRequest
from engine_pool.simulator import plane as simulated
from engine_pool.simulator.costs import CopyCosts
from engine_pool.simulator.live_engine import SimulatedEngine, SimulatedLimits
from engine_pool.step_loop import Refused
from engine_pool.token_log import Appended, TokenFrame, TokenLogWriter
from engine_pool.types import EngineKind
from migration.links import Invitation, Link
from migration.ports import Transfer
from migration.wish import MoveWish
from tests.migration.gates import LONGEST_S, MessageGate, Valve

HOST = "127.0.0.1"
START_S = 200.0
"""A real engine on a busy machine; below pytest's own limit."""
FOR_EVER_S = 1e6
COPY_TIME_SCALE = 0.1
"""Of the published times of copies."""
MODULE = "tests.migration.engine_process"


@dataclass(frozen=True, slots=True)
class Rooms:
    """What an engine's books say between two steps."""

    used_tokens: int
    running: tuple[str, ...]
    waiting: tuple[str, ...]
    parked: tuple[str, ...]
    held: tuple[str, ...]

    @property
    def are_empty(self) -> bool:
        return not (self.used_tokens or self.running or self.waiting or self.parked or self.held)


class _HeldPlane(simulated.SimulatedPlane):
    """Copies that begin while the valve is shut end only with their channel."""

    def __init__(self, valve: Valve) -> None:
        super().__init__(CopyCosts(time_scale=COPY_TIME_SCALE))
        self._valve = valve

    def _copy(self, channel: str, blocks: int) -> "Future[Transfer]":
        if not self._valve.is_shut:
            return super()._copy(channel, blocks)
        return self._wait(channel, blocks * simulated.BLOCK_BYTES, FOR_EVER_S * 1000)


class _Served:
    """The other end of the pipe: every public method is a command."""

    def __init__(self, spec: EngineSpec) -> None:
        self.valves = {name: Valve() for name in ("log", "reclaim", "copies", "steps")}
        self.gate = MessageGate(Link.send)
        self.refused: list[str] = []
        """Requests whose frames the log did not take, once for each time."""
        self._pace = 1.0
        self._pauses = threading.Event()
        self._put_gates_in()
        self._host = EngineHost(spec, lambda: self._make_engine(spec), self._die)
        self._host.start()
        self._host.loop.ready.result(START_S)
        self._host.open_desk(HOST)
        assert isinstance(self._host.desk, MoveDesk)
        self._desk = self._host.desk

    def _put_gates_in(self) -> None:
        """Stands in the way of what this process does; it is no other's."""
        log, reclaim, copies = (self.valves[name] for name in ("log", "reclaim", "copies"))
        append_really, reclaim_really = TokenLogWriter.append, TokenLogWriter.reclaim

        def append(
            writer: TokenLogWriter, frames: Sequence[TokenFrame], firsts: frozenset[str]
        ) -> Appended:
            log.come_by()
            appended = append_really(writer, frames, firsts)
            self.refused += appended.refused
            return appended

        def take_back(writer: TokenLogWriter, request_id: str, epoch: int) -> int | None:
            reclaim.come_by()
            return reclaim_really(writer, request_id, epoch)

        TokenLogWriter.append = append  # type: ignore[method-assign, assignment]
        TokenLogWriter.reclaim = take_back  # type: ignore[method-assign, assignment]
        Link.send = lambda link, blob: self.gate.send(link, blob)  # type: ignore[method-assign, assignment]
        simulated.SimulatedPlane = lambda: _HeldPlane(copies)  # type: ignore[misc, assignment]

    def _make_engine(self, spec: EngineSpec) -> Engine:
        if spec.config.engine is EngineKind.VLLM:
            self._hold_real_copies()
            return make_engine(spec)
        assert spec.sample_text is not None
        limits = SimulatedLimits(
            max_running=spec.config.max_running, max_model_len=spec.max_model_len
        )
        return SimulatedEngine(spec.sample_text, limits, sleep=self._sleep)

    def _hold_real_copies(self) -> None:
        # numpy and torch take seconds to import: only where a real engine needs them anyway.
        from engine_pool.vllm_kv import VllmKv

        gather_really, copies = VllmKv.gather, self.valves["copies"]

        def gather(kv: VllmKv, block_ids: Sequence[int], buffer: object) -> None:
            copies.come_by()
            gather_really(kv, block_ids, buffer)

        VllmKv.gather = gather  # type: ignore[method-assign, assignment]

    def _sleep(self, seconds: float) -> None:
        self._pauses.wait(seconds * self._pace)

    @staticmethod
    def _die(error: BaseException) -> None:
        os._exit(70)

    def invite(self) -> dict[str, object]:
        return self._desk.invite()

    def submit(self, requests: list[EngineRequest]) -> Refused:
        return self._host.loop.submit(requests).result(LONGEST_S)

    def submit_probe(self, request_id: str, prompt_tokens: int, max_tokens: int) -> Refused:
        probe = self._desk.submit_probe(request_id, prompt_tokens, max_tokens)
        return probe.result(LONGEST_S)

    def abort(self, request_ids: list[str]) -> None:
        self._host.loop.abort(request_ids)

    def migrate(self, wish: MoveWish, invitation: dict[str, object]) -> str:
        """Returns why not, "" when it has begun."""
        answer = self._desk.agent.migrate(wish, Invitation(**invitation))  # type: ignore[arg-type]
        refusal = answer.result(LONGEST_S)
        return f"{refusal.code}: {refusal.why}" if refusal else ""

    def cancel(self, migration_id: str) -> bool:
        return self._desk.agent.cancel(migration_id).result(LONGEST_S)

    def state(self, migration_id: str) -> str:
        """Returns the state of this side's machine, "" when it knows no such move."""
        agent, found = self._desk.agent, Future[str]()

        def look() -> None:
            move = agent._sources.get(migration_id) or agent._destinations.get(migration_id)
            found.set_result(move.state.value if move else "")

        agent._post(look)
        return found.result(LONGEST_S)

    def refusals(self) -> list[str]:
        return list(self.refused)

    def rooms(self) -> Rooms:
        return self._host.loop.between_steps(_rooms).result(LONGEST_S)

    def hurry(self, pace: float) -> None:
        """Makes the steps of a simulated engine take that part of their time."""
        self._pace = pace

    def shut(self, name: str) -> None:
        self.valves[name].shut()
        if name == "steps":
            self._host.loop.between_steps(lambda engine: self.valves["steps"].come_by())

    def is_reached(self, name: str) -> bool:
        return self.valves[name].is_reached

    def hold(self, message: str) -> None:
        self.gate.hold(message)

    def lose(self, message: str) -> None:
        self.gate.lose(message)

    def stopped(self) -> list[str]:
        return list(self.gate.stopped)

    def let(self) -> None:
        self.gate.let()

    def open_all(self) -> None:
        """Holds nothing back any more."""
        for valve in self.valves.values():
            valve.open()
        self.gate.let()

    def cut(self) -> None:
        self.gate.cut()


def _rooms(engine: Engine) -> Rooms:
    load = engine.load()
    running = tuple(r.request_id for r in load.running)
    waiting = tuple(r.request_id for r in load.waiting)
    if isinstance(engine, SimulatedEngine):
        engine.check_integrity()
        parked, held = engine._books.parked, engine._books.held
    else:
        from engine_pool.vllm_adapter import VllmEngine

        moves = cast(VllmEngine, engine).moves
        parked, held = moves._parked, moves._held
    return Rooms(load.used_tokens, running, waiting, tuple(parked), tuple(held))


def _serve(pipe: Connection, spec: EngineSpec) -> None:
    served = _Served(spec)
    pipe.send(None)
    while True:
        try:
            name, args = pipe.recv()
        except EOFError:
            os._exit(0)
        command: Callable[..., object] = getattr(served, name)
        try:
            pipe.send(command(*args))
        except Exception as error:  # noqa: BLE001
            # The test is to fail with it, not this process.
            pipe.send(error)


class EngineProcess:
    """Such a process, seen from the test."""

    def __init__(self, spec: EngineSpec) -> None:
        context = multiprocessing.get_context("forkserver")
        # What takes a second to import is imported once for all processes.
        context.set_forkserver_preload([MODULE])
        self.name = spec.instance
        self.incarnation = spec.incarnation
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, spec), daemon=True)
        self._process.start()
        theirs.close()

    def wait_ready(self) -> None:
        self._take(START_S)

    def ask(self, command: str, *args: object) -> object:
        """Has a method of `_Served` run there, and returns what it returns."""
        self._pipe.send((command, args))
        return self._take()

    def submit(self, *requests: EngineRequest) -> None:
        assert self.ask("submit", list(requests)) == []

    def rooms(self) -> Rooms:
        return cast(Rooms, self.ask("rooms"))

    def state(self, migration_id: str) -> str:
        return cast(str, self.ask("state", migration_id))

    def has_stopped(self, message: str, times: int = 1) -> bool:
        """Says whether so many messages of that name were held back or lost."""
        return cast(list[str], self.ask("stopped")).count(message) >= times

    def kill(self) -> None:
        """kill -9, and waits for the end."""
        self._process.kill()
        self._process.join(LONGEST_S)
        assert self._process.exitcode is not None

    def stop(self) -> None:
        """Lets it take no further step of any thread."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def _take(self, timeout_s: float = LONGEST_S) -> object:
        assert self._pipe.poll(timeout_s), f"{self.name} does not answer"
        answer = self._pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer
