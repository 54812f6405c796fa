"""Moves in virtual time: the protocol's own two state machines (migration/protocol.py), driven by
messages that take a while and by the costs of copies.

The shell's part only: what each command does to the two engines, and when what it asked for is
answered. Nobody dies and no client leaves in a simulated run, so those commands do not occur.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from engine_pool.simulator.costs import CopyCosts
from engine_pool.simulator.engine_model import Engine
from engine_pool.simulator.move_record import Move
from engine_pool.simulator.sim_request import Place, SimRequest
from migration.protocol import (
    ENDS,
    Command,
    Commands,
    DestinationEvent,
    DestinationState,
    SourceEvent,
    SourceState,
    step,
)
from migration.stages import Pause, StageLimits, next_stage, room_tokens

LOOK_LATER_S: Final = 0.02
"""Until a request that computes its prompt is looked at again: under one decode step."""

NO_ROOM: Final = "no_room"
FINISHED: Final = "request_finished"
PREEMPTED: Final = "request_preempted"


class Clock(Protocol):
    """What moves need of the world."""

    @property
    def now_s(self) -> float: ...

    def move_event(self, after_s: float, act: Callable[[], None]) -> None:
        """Calls `act` so much later."""

    def touch_engine(self, engine: Engine) -> float:
        """Brings an engine up to now, before it is changed; returns now."""

    def move_ended(self, move: Move) -> None:
        """Neither side does anything for it any more."""


@dataclass(slots=True)
class Mover:
    """Carries out the commands of both sides of all moves."""

    clock: Clock
    costs: CopyCosts
    message_s: float
    limits: StageLimits
    block_size_tokens: int
    active: dict[int, Move] = field(default_factory=dict)
    """Moves whose source has not ended, by request."""

    def start(
        self, request: SimRequest, source: Engine, destination: Engine, reason: str, now_s: float
    ) -> Move:
        """Begins a move of a request that is in no other."""
        assert not request.is_moving, f"{request.request_id} moves already"
        is_queued = request.place is Place.QUEUED
        move = Move(request, source, destination, reason, now_s, is_queued)
        request.is_moving = True
        self.active[request.index] = move
        tokens = 0 if is_queued else source.tokens_of(request) - 1
        room = 0 if is_queued else room_tokens(tokens, self.block_size_tokens)
        self._message(lambda: self._reserve(move, room))
        return move

    def request_gone(self, request: SimRequest, code: str) -> None:
        """Tells a request's move that it finished or lost its blocks."""
        move = self.active.get(request.index)
        if move is not None:
            move.abort_code = code
            self._tell_source(move, SourceEvent.GONE)

    def _message(self, arrive: Callable[[], None]) -> None:
        self.clock.move_event(self.message_s, arrive)

    def _tell_source(self, move: Move, event: SourceEvent) -> None:
        state, commands = step(move.source_state, event)
        assert isinstance(state, SourceState)
        was_over = move.is_over
        move.source_state = state
        if state in ENDS and self.active.get(move.request.index) is move:
            del self.active[move.request.index]
        self._carry_out(move, commands)
        self._end(move, was_over)

    def _tell_destination(self, move: Move, event: DestinationEvent) -> None:
        state, commands = step(move.destination_state, event)
        assert isinstance(state, DestinationState)
        was_over = move.is_over
        move.destination_state = state
        self._carry_out(move, commands)
        self._end(move, was_over)

    def _end(self, move: Move, was_over: bool) -> None:
        if move.is_over and not was_over and move.ended_s is None:
            move.ended_s = self.clock.now_s
            if move.adopted_s is None:
                # Not before the destination has let go: a second move there would find its room.
                move.request.is_moving = False
            self.clock.move_ended(move)

    def _carry_out(self, move: Move, commands: Commands) -> None:
        for command in commands:
            _DO[command](self, move)

    # The source

    def _look(self, move: Move) -> None:
        self.clock.touch_engine(move.source)
        r = move.request
        if r.place is Place.QUEUED:
            self._tell_source(move, SourceEvent.LITTLE)
        elif r.place is not Place.DECODING:
            self._tell_source(move, SourceEvent.BUSY)
        else:
            # The token that was sampled last has no KV before the next step.
            complete = (move.source.tokens_of(r) - 1) // self.block_size_tokens
            stage = next_stage(
                complete_blocks=complete,
                sent_blocks=move.sent_blocks,
                copies=move.copies,
                limits=self.limits,
            )
            if isinstance(stage, Pause):
                self._tell_source(move, SourceEvent.LITTLE)
            else:
                move.stage_blocks = stage.blocks
                self._tell_source(move, SourceEvent.MORE)

    def _look_later(self, move: Move) -> None:
        def again() -> None:
            self._tell_source(move, SourceEvent.LATER)

        self.clock.move_event(LOOK_LATER_S, again)

    def _send_stage(self, move: Move) -> None:
        tokens = move.source.tokens_of(move.request) - 1
        room = room_tokens(tokens, self.block_size_tokens)

        def arrive() -> None:
            self._tell_destination(move, DestinationEvent.STAGE)
            self._reserve(move, room)

        self._message(arrive)

    def _send_blocks(self, move: Move) -> None:
        move.copies += 1
        self._copy(move, move.stage_blocks, 0.0)

    def _park(self, move: Move) -> None:
        now_s = self.clock.touch_engine(move.source)

        def parked(at_s: float) -> None:
            move.parked_s = at_s
            if move.request.blocks:
                move.request.last_token_before_move_s = at_s
            self._tell_source(move, SourceEvent.PARKED)

        move.source.park(move.request, now_s, parked)

    def _send_last(self, move: Move) -> None:
        r = move.request
        computed = r.tokens - 1 if r.blocks else 0
        blocks = move.source.blocks_for(computed)
        move.last_blocks = blocks - move.sent_blocks if blocks else 0
        self._message(lambda: self._tell_destination(move, DestinationEvent.LAST))
        self._copy(move, move.last_blocks, self.message_s)

    def _copy(self, move: Move, blocks: int, begins_after_s: float) -> None:
        """Sends blocks; both ends are slower meanwhile."""
        ends = (move.source, move.destination)
        for engine in ends:
            engine.begin_copy(self.clock.touch_engine(engine))
        move.is_receiving = True

        def written() -> None:
            for engine in ends:
                engine.end_copy(self.clock.touch_engine(engine))
            move.is_receiving = False
            move.sent_blocks += blocks
            if move.is_awaiting_quiet:
                self._tell_destination(move, DestinationEvent.QUIET)
            else:
                self._tell_destination(move, DestinationEvent.WRITTEN)

        self.clock.move_event(begins_after_s + self.costs.copy_ms(blocks) / 1000, written)

    def _await_log(self, move: Move) -> None:
        self._message(lambda: self._tell_source(move, SourceEvent.LOGGED))

    def _send_commit(self, move: Move) -> None:
        self._message(lambda: self._tell_destination(move, DestinationEvent.COMMIT))

    def _send_abort(self, move: Move) -> None:
        self._message(lambda: self._tell_destination(move, DestinationEvent.ABORT))

    def _unpark(self, move: Move) -> None:
        move.request.last_token_before_move_s = None
        move.source.unpark(move.request, self.clock.touch_engine(move.source))

    def _release(self, move: Move) -> None:
        move.left_s = self.clock.touch_engine(move.source)
        move.source.release(move.request, move.left_s)

    # The destination

    def _reserve(self, move: Move, tokens: int) -> None:
        """Answers whether there is room, unless the move is over at this side."""
        if move.destination_state not in (DestinationState.HOLDING, DestinationState.HELD):
            return
        engine = move.destination
        now_s = self.clock.touch_engine(engine)
        has_room = engine.standing.is_open and engine.hold(
            move.request, engine.blocks_for(tokens), now_s
        )
        event = DestinationEvent.ROOM if has_room else DestinationEvent.NO_ROOM
        if not has_room:
            move.abort_code = move.abort_code or NO_ROOM
        self._tell_destination(move, event)

    def _send_ack(self, move: Move) -> None:
        self._message(lambda: self._tell_source(move, SourceEvent.ACK))

    def _send_received(self, move: Move) -> None:
        self._message(lambda: self._tell_source(move, SourceEvent.RECEIVED))

    def _adopt(self, move: Move) -> None:
        engine, r = move.destination, move.request
        now_s = self.clock.touch_engine(engine)
        if engine.can_take_over(r):
            engine.adopt(r, now_s)
            move.adopted_s = now_s
            r.moves += 1
            # Over for the request: its new engine may give it away again at once.
            r.is_moving = False
            del self.active[r.index]
            self._tell_destination(move, DestinationEvent.ADOPTED)
        else:
            move.abort_code = NO_ROOM
            self._tell_destination(move, DestinationEvent.NOT_ADOPTED)

    def _send_committed(self, move: Move) -> None:
        self._message(lambda: self._tell_source(move, SourceEvent.COMMITTED))

    def _send_refused(self, move: Move) -> None:
        self._message(lambda: self._tell_source(move, SourceEvent.REFUSED))

    def _stop_receiving(self, move: Move) -> None:
        if move.is_receiving:
            move.is_awaiting_quiet = True
        else:
            self._tell_destination(move, DestinationEvent.QUIET)

    def _discard(self, move: Move) -> None:
        engine = move.destination
        if move.request.index in engine.held_blocks:
            engine.discard(move.request, self.clock.touch_engine(engine))

    def _nothing(self, move: Move) -> None:
        """RECEIVE: the source's copy brings the blocks. RESERVE: `_send_stage` knows how much."""


_DO: Final[dict[Command, Callable[[Mover, Move], None]]] = {
    Command.LOOK: Mover._look,
    Command.LOOK_LATER: Mover._look_later,
    Command.SEND_STAGE: Mover._send_stage,
    Command.SEND_BLOCKS: Mover._send_blocks,
    Command.PARK: Mover._park,
    Command.SEND_LAST: Mover._send_last,
    Command.AWAIT_LOG: Mover._await_log,
    Command.SEND_COMMIT: Mover._send_commit,
    Command.SEND_ABORT: Mover._send_abort,
    Command.UNPARK: Mover._unpark,
    Command.RELEASE: Mover._release,
    Command.RESERVE: Mover._nothing,
    Command.SEND_ACK: Mover._send_ack,
    Command.RECEIVE: Mover._nothing,
    Command.SEND_RECEIVED: Mover._send_received,
    Command.ADOPT: Mover._adopt,
    Command.SEND_COMMITTED: Mover._send_committed,
    Command.SEND_REFUSED: Mover._send_refused,
    Command.STOP_RECEIVING: Mover._stop_receiving,
    Command.DISCARD: Mover._discard,
}
