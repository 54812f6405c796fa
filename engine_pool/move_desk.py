"""Puts an engine's moves together: its books, its KV memory, its agent, its door for other agents.

An engine without `moves` (another implementation) or without KV memory that can be copied has no
desk; the reason is told to whoever wants a move.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict
from typing import Final, Protocol, cast, runtime_checkable

import msgspec
import redis

from engine_pool.engine_spec import EngineSpec
from engine_pool.move_facts import write_shape
from engine_pool.ports import Engine
from engine_pool.publisher import Publisher
from engine_pool.step_loop import Refused, StepLoop
from engine_pool.token_log import TokenLogWriter
from engine_pool.types import EngineKind
from migration.agent import MigrationAgent
from migration.engine_side import EngineSide
from migration.links import Invitation, LinkListener, connect
from migration.office import AgentSettings
from migration.ports import KvPlane, MovingEngine, Refusal
from migration.stages import StageLimits, Way
from migration.wish import MoveWish

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S: Final = 0.5
"""For the agent's thread to end; the process ends anyway."""


@runtime_checkable
class MovableEngine(Engine, Protocol):
    """An engine whose requests can move."""

    @property
    def moves(self) -> MovingEngine: ...


class LoggedTokens:
    """The agent's LogDoor: publisher and token log of this process."""

    def __init__(self, publisher: Publisher, writer: TokenLogWriter) -> None:
        self._publisher = publisher
        self._writer = writer

    def when_logged(self, tell: Callable[[], None]) -> None:
        self._publisher.when_logged(tell)

    def reclaim(self, request_id: str, epoch: int) -> int | None:
        return self._writer.reclaim(request_id, epoch)


class MoveDesk:
    """One an engine process, opened when the engine takes requests."""

    def __init__(
        self,
        spec: EngineSpec,
        loop: StepLoop,
        publisher: Publisher,
        writer: TokenLogWriter,
        host: str,
        plane: KvPlane,
    ) -> None:
        """`writer`: of a connection of its own; the agent waits with it."""
        moves = cast(MovableEngine, loop.engine).moves
        self._loop = loop
        self._moves = moves
        self.agent = MigrationAgent(
            agent_settings(spec),
            EngineSide(loop, lambda engine: cast(MovableEngine, engine).moves),
            plane,
            moves.shape,
            LoggedTokens(publisher, writer),
            publisher,
            connect,
        )
        self._listener = LinkListener(
            host,
            lambda link: None,
            self.agent.on_message,
            self.agent.on_closed,
            timeout_s=spec.config.migration_pause_timeout_s,
        )
        self.agent.start()

    def invite(self) -> dict[str, object]:
        """Returns what another engine needs to connect (fields of links.Invitation)."""
        return asdict(self._listener.invitation)

    def migrate(
        self, wish: dict[str, object], invitation: dict[str, object]
    ) -> "Future[Refusal | None]":
        """Begins a move (MigrationAgent.migrate)."""
        return self.agent.migrate(
            msgspec.convert(wish, MoveWish), msgspec.convert(invitation, Invitation)
        )

    def measure(
        self, incarnation: str, invitation: dict[str, object], size_bytes: int
    ) -> "Future[Way]":
        """Measures the way to another engine (MigrationAgent.measure)."""
        return self.agent.measure(incarnation, msgspec.convert(invitation, Invitation), size_bytes)

    def submit_probe(
        self, request_id: str, prompt_tokens: int, max_tokens: int
    ) -> "Future[Refused]":
        """Runs a request of the pool's own here, for a self-test."""
        probe = self._moves.probe(request_id, prompt_tokens, max_tokens)
        return self._loop.submit([probe])

    def close(self) -> None:
        self._listener.close()
        self.agent.stop(CLOSE_TIMEOUT_S)


def open_desk(
    spec: EngineSpec,
    loop: StepLoop,
    publisher: Publisher,
    store: "redis.Redis[bytes]",
    writer: TokenLogWriter,
    host: str,
) -> MoveDesk | Refusal:
    """Opens the desk of an engine that takes requests. Refusal: its requests cannot move."""
    engine = loop.engine
    if not isinstance(engine, MovableEngine):
        return Refusal("refused", "this kind of engine cannot move requests")
    plane = _open_plane(engine, spec, host)
    if isinstance(plane, Refusal):
        return plane
    try:
        write_shape(store, spec.instance, engine.moves.shape, spec.config.keys)
    except redis.RedisError as error:
        # Only the pre-flight page misses it.
        log.warning("the shape of the KV blocks was not written: %s", type(error).__name__)
    return MoveDesk(spec, loop, publisher, writer, host, plane)


def _open_plane(engine: Engine, spec: EngineSpec, host: str) -> KvPlane | Refusal:
    # Each of these imports belongs to one kind of engine: torch is no load for a simulated one.
    if spec.config.engine is EngineKind.SIMULATED:
        from engine_pool.simulator.plane import SimulatedPlane

        return SimulatedPlane()
    from engine_pool.vllm_adapter import VllmEngine
    from engine_pool.vllm_plane import plane_terms

    terms = plane_terms(spec.config, host)
    plane = engine.open_plane(terms) if isinstance(engine, VllmEngine) else None
    return plane or Refusal("refused", "the KV memory of this engine cannot be copied")


def agent_settings(spec: EngineSpec) -> AgentSettings:
    """Returns the settings of one engine's agent."""
    config = spec.config
    return AgentSettings(
        instance=spec.instance,
        incarnation=spec.incarnation,
        is_on=config.migration,
        at_once=config.migrations_at_once,
        limits=StageLimits(config.migration_copies_max, config.migration_last_blocks),
        stage_timeout_s=config.migration_stage_timeout_s,
        pause_timeout_s=config.migration_pause_timeout_s,
        commit_timeout_s=config.migration_commit_timeout_s,
    )
