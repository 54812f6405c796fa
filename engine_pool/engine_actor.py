"""The Ray actor that hosts one engine: a thin door to the step loop and the publisher.

A web process calls `submit`, `abort` and `migrate`, the pool `start`, `ping`, `wait_end` and
`stop`, another engine's actor `invite`. The engine runs in this process (ARCHITECTURE.md,
Processes): it needs neither a second process nor utility calls. A broken engine ends the process,
so that Ray and thereby the pool see it at once.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Final

import msgspec
import psutil
import ray
import ray.exceptions
import ray.util

from engine_pool import sigterm
from engine_pool.class_rules import ClassRules
from engine_pool.config import RAY_NAMESPACE
from engine_pool.door import Door
from engine_pool.engine_spec import EngineSpec
from engine_pool.errors import EngineFailed, InstanceLeaving, InstanceLost
from engine_pool.load_book import LoadBook
from engine_pool.move_desk import MoveDesk, open_desk
from engine_pool.ports import ClassedEngine, Engine, EngineRequest, Pong
from engine_pool.process_guard import ProcessGuard
from engine_pool.publisher import Publisher, PublisherTimes
from engine_pool.ray_nodes import own_node_name
from engine_pool.step_loop import Refused, StepLoop
from engine_pool.store import connect
from engine_pool.token_log import LogTimes, StreamError, TokenLogWriter
from engine_pool.turns import TurnRules
from engine_pool.types import EngineKind, InstanceState
from migration.ports import Refusal, TransferFailed

log = logging.getLogger(__name__)

FLUSH_TIMEOUT_S: Final = 1.0
"""How long the last frames may take on their way out before the process ends."""
STOP_TIMEOUT_S: Final = 2.0
"""Longest wait for the step that is running when the engine is told to stop."""
ASK_TIMEOUT_S: Final = 8.0
"""Longest wait for another engine's invitation or a measurement: below the caller's 10 s."""
DEATH_EXIT_CODE: Final = 70
"""EX_SOFTWARE of sysexits.h: the engine broke."""
DRAINING: Final = InstanceState.DRAINING.value
"""Why its door is closed."""

_decode_requests = msgspec.msgpack.Decoder(list[EngineRequest]).decode


class EngineHost:
    """An engine with its step loop and publisher, without Ray."""

    def __init__(
        self,
        spec: EngineSpec,
        make_engine: Callable[[], Engine],
        on_death: Callable[[BaseException], None],
    ) -> None:
        config = spec.config
        store = connect(config.redis_url)
        self.spec = spec
        self.desk: MoveDesk | Refusal = Refusal("refused", "the engine has not started")
        """Its moves, or why there are none."""
        self.book = LoadBook(spec.instance, spec.incarnation)
        writer = TokenLogWriter(store, LogTimes(config.log_live_s, config.log_ended_s))
        times = PublisherTimes(
            report_interval_s=config.report_interval_ms / 1000,
            report_min_gap_s=config.report_min_gap_ms / 1000,
            store_timeout_s=config.store_timeout_s,
            orphan_grace_s=config.orphan_grace_s,
        )
        self.publisher = Publisher(store, writer, self.book, times, keys=config.keys)
        self.loop = StepLoop(
            make_engine,
            self.book,
            self.publisher,
            max_age_s=config.log_live_s,
            on_death=on_death,
        )

    def start(self) -> None:
        self.loop.start()
        self.publisher.start(self.loop)

    def open_desk(self, address: str) -> None:
        """Lets requests move from and to this engine, which takes requests now. Waits for the
        store."""
        config = self.spec.config
        store = connect(config.redis_url)
        writer = TokenLogWriter(store, LogTimes(config.log_live_s, config.log_ended_s))
        self.desk = open_desk(self.spec, self.loop, self.publisher, store, writer, address)
        if isinstance(self.desk, Refusal):
            log.warning("requests cannot move from or to this engine: %s", self.desk.why)

    def stop(self) -> None:
        """Ends all streams with a typed error, delivers it, frees the engine."""
        if isinstance(self.desk, MoveDesk):
            self.desk.close()
        message = f"The instance {self.spec.instance} was stopped."
        self.loop.fail(None, StreamError(InstanceLost.code, message))
        self.loop.stop(STOP_TIMEOUT_S)
        self.publisher.stop(FLUSH_TIMEOUT_S)
        self.loop.join(STOP_TIMEOUT_S)

    def refresh_load(self) -> None:
        """Has the books show the engine's load of now."""
        self.loop.between_steps(lambda engine: self.book.taken((), engine.load()))

    def flush(self) -> None:
        """Delivers the frames that wait."""
        self.publisher.stop(FLUSH_TIMEOUT_S)


class EngineActor:
    """Hosts one engine in a Ray worker process. All methods are short; the work is in two
    threads."""

    def __init__(self, spec: EngineSpec) -> None:
        logging.basicConfig(
            level=logging.INFO, format=f"{spec.instance} %(levelname)s %(message)s", force=True
        )
        self._spec = spec
        self._began_s = time.monotonic()
        self._process = psutil.Process()
        self._invitations: dict[str, dict[str, object]] = {}
        """By actor; an actor's name holds its incarnation, so they do not change."""
        self._host = EngineHost(spec, lambda: make_engine(spec), self._die)
        self._door = Door(self._host.book)
        self._node = own_node_name()
        self._guard = ProcessGuard(self._told_to_end, self._leave, spec.config.term_grace_s)
        self._guard.start()

    def _told_to_end(self) -> None:
        """SIGTERM: takes nothing new, and the next `ping` tells the pool, which drains it."""
        log.warning("told to end; it is drained for up to %g s", self._spec.config.term_grace_s)
        if isinstance(self._host.desk, MoveDesk):
            self._host.desk.agent.shut(DRAINING)
        self._door.close(DRAINING)

    def _leave(self) -> None:
        """Has what is left go on elsewhere, and ends the process."""
        why = f"the process of {self._spec.instance} was told to end"
        self._host.loop.fail(None, StreamError(InstanceLeaving.code, why))
        self._host.stop()
        os._exit(0)

    def _die(self, error: BaseException) -> None:
        self._host.flush()
        os._exit(DEATH_EXIT_CODE)

    async def start(self) -> dict[str, object]:
        """Starts the engine; returns `ping()` once it takes requests. Raises: EngineFailed."""
        self._host.start()
        await asyncio.wrap_future(self._host.loop.ready)
        await asyncio.to_thread(self._host.open_desk, ray.util.get_node_ip_address())
        log.info("ready after %.1f s", time.monotonic() - self._began_s)
        return await self.ping()

    async def submit(self, blob: bytes) -> Refused:
        """Takes requests (msgpack of list[EngineRequest]) and says which were refused, and why.

        Answers after the step that is running. Raises: msgspec.DecodeError, nothing is taken then.
        """
        requests = _decode_requests(blob)
        if closing := self._door.closing:
            return [(r.request_id, f"{closing.why}: it takes nothing new") for r in requests]
        answer = self._host.loop.submit(requests)
        self._host.publisher.nudge()
        return await asyncio.wrap_future(answer)

    async def abort(self, request_ids: list[str]) -> None:
        """Ends requests before the next step; unknown ids are ignored."""
        self._host.loop.abort(request_ids)

    async def invite(self) -> dict[str, object]:
        """Returns what another engine's agent needs to connect to this one's. Raises:
        EngineFailed when requests cannot move here."""
        return self._desk().invite()

    async def migrate(self, wish: dict[str, object]) -> tuple[str, str] | None:
        """Begins a move (fields of MoveWish). Returns (code, why) when it is refused."""
        desk = self._host.desk
        if isinstance(desk, Refusal):
            return desk.code, desk.why
        try:
            invitation = await self._invitation(str(wish["destination_actor"]))
            async with asyncio.timeout(ASK_TIMEOUT_S):
                refusal = await asyncio.wrap_future(desk.migrate(wish, invitation))
        except (EngineFailed, TimeoutError) as error:
            return "peer_lost", str(error) or "no answer in time"
        return None if refusal is None else (refusal.code, refusal.why)

    async def cancel_move(self, migration_id: str) -> bool:
        """Ends a move that goes on from here. Says whether there is such a move."""
        return await asyncio.wrap_future(self._desk().agent.cancel(migration_id))

    async def measure(self, destination_actor: str, size_bytes: int) -> dict[str, object]:
        """Measures the way to another engine: bytes_per_s and round_trip_ms, or `error`."""
        try:
            invitation = await self._invitation(destination_actor)
            # The name ends with the incarnation, by which a move to it has its link already.
            incarnation = destination_actor.rpartition(":")[2]
            answer = self._desk().measure(incarnation, invitation, size_bytes)
            async with asyncio.timeout(ASK_TIMEOUT_S):
                way = await asyncio.wrap_future(answer)
        except (EngineFailed, TransferFailed, OSError, TimeoutError) as error:
            return {"error": str(error) or "no answer in time"}
        return asdict(way)

    async def forbid_moves(self, why: str) -> None:
        """Lets no further move begin; "": lets them again."""
        if isinstance(self._host.desk, MoveDesk):
            self._host.desk.agent.forbid(why)

    async def close_door(self, why: str) -> None:
        """Takes neither new requests nor moves from now on ("cordoned" or "draining")."""
        if isinstance(self._host.desk, MoveDesk):
            async with asyncio.timeout(ASK_TIMEOUT_S):
                await asyncio.wrap_future(self._host.desk.agent.shut(why))
        self._door.close(why)

    async def open_door(self) -> None:
        """Takes requests and moves again; not once its process was told to end."""
        if sigterm.asked_unix_s() is not None:
            return
        if isinstance(self._host.desk, MoveDesk):
            async with asyncio.timeout(ASK_TIMEOUT_S):
                await asyncio.wrap_future(self._host.desk.agent.shut(""))
        self._door.open()

    async def fail_left(self, code: str, why: str) -> None:
        """Ends all requests that are here with an error; InstanceLeaving's code has them go on
        elsewhere from their logs."""
        self._host.loop.fail(None, StreamError(code, why))

    async def use_classes(self, classes: ClassRules) -> None:
        """Treats priority classes so from the next step on."""
        if isinstance(self._host.loop.engine, ClassedEngine):
            answer = self._host.loop.between_steps(lambda engine: _use_classes(engine, classes))
            async with asyncio.timeout(ASK_TIMEOUT_S):
                await asyncio.wrap_future(answer)

    async def submit_probe(self, request_id: str, prompt_tokens: int, max_tokens: int) -> Refused:
        """Runs a request of the pool's own here. Raises: EngineFailed when requests cannot move."""
        answer = self._desk().submit_probe(request_id, prompt_tokens, max_tokens)
        return await asyncio.wrap_future(answer)

    def _desk(self) -> MoveDesk:
        desk = self._host.desk
        if isinstance(desk, Refusal):
            raise EngineFailed(f"requests cannot move: {desk.why}")
        return desk

    async def _invitation(self, actor: str) -> dict[str, object]:
        """Asks another engine's actor. Raises: EngineFailed, TimeoutError."""
        if actor not in self._invitations:
            try:
                handle = await asyncio.to_thread(ray.get_actor, actor, namespace=RAY_NAMESPACE)
                async with asyncio.timeout(ASK_TIMEOUT_S):
                    self._invitations[actor] = await handle.invite.remote()
            except (ValueError, ray.exceptions.RayError) as error:
                raise EngineFailed(f"{actor} cannot be asked: {type(error).__name__}") from error
        return self._invitations[actor]

    async def ping(self) -> dict[str, object]:
        """Says who this is and how far its work is (the fields of ports.Pong)."""
        book = self._host.book
        running, waiting = book.request_counts()
        closing = self._door.closing
        if closing and book.used_tokens and not (running or waiting):
            # Blocks that a move gave back while the engine rests show in no step.
            self._host.refresh_load()
        moved, ended = self._door.gone()
        told_unix_s = sigterm.asked_unix_s()
        grace_s = self._spec.config.term_grace_s
        desk = self._host.desk
        pong = Pong(
            instance=self._spec.instance,
            incarnation=self._spec.incarnation,
            fingerprint=self._spec.told_fingerprint or self._spec.fingerprint,
            is_ready=self._host.loop.is_ready,
            node=self._node,
            pid=os.getpid(),
            rss_bytes=self._process.memory_info().rss,
            running=running,
            waiting=waiting,
            steps_total=book.steps_total,
            last_token_unix_s=book.last_token_unix_s,
            is_store_away=self._host.publisher.is_store_away,
            max_model_len=self._host.loop.max_model_len,
            used_tokens=book.used_tokens,
            moves=desk.agent.moves if isinstance(desk, MoveDesk) else 0,
            door=closing.why if closing else "",
            door_since_unix_s=closing.at_unix_s if closing else None,
            requests_at_closing=closing.requests if closing else 0,
            moved_away=moved,
            ended=ended,
            leaving_since_unix_s=told_unix_s,
            leave_deadline_unix_s=None if told_unix_s is None else told_unix_s + grace_s,
            launched_unix_s=self._spec.launched_unix_s,
            installation=self._spec.installation,
        )
        return asdict(pong)

    async def wait_end(self) -> None:
        """Never returns: its failure tells the pool that the process is gone, within a second."""
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """Ends all streams with a typed error and frees the engine. The caller kills the actor
        next."""
        await asyncio.to_thread(self._host.stop)


def _use_classes(engine: Engine, classes: ClassRules) -> None:
    assert isinstance(engine, ClassedEngine), "it was when it was asked"
    engine.use_classes(classes)


def make_engine(spec: EngineSpec) -> Engine:
    """Builds the engine of a spec; minutes for a large model. Raises: whatever keeps it from
    starting."""
    if spec.config.engine is EngineKind.VLLM:
        # vLLM and torch take seconds and 600 MB to import: only where a real engine runs.
        from engine_pool.vllm_adapter import VllmEngine

        return VllmEngine(spec)
    from engine_pool.simulator.live_engine import SimulatedEngine, SimulatedLimits

    assert spec.sample_text is not None, "the launcher gives simulated engines their text"
    limits = SimulatedLimits(max_running=spec.config.max_running, max_model_len=spec.max_model_len)
    return SimulatedEngine(spec.sample_text, limits, rules=TurnRules.of(spec.config))
