"""One move as its source sees it: carries out what the protocol's table says.

Decides nothing that protocol.py and stages.py decide; turns messages, answers of the step thread
and of the memory plane, and timers into events. In the agent's thread.
"""

import logging
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Final

import redis

from engine_pool.token_log import StreamError
from migration import messages
from migration.engine_side import Look, in_epoch
from migration.links import Invitation
from migration.office import Office, PeerLink
from migration.ports import Outgoing, Parked, Refusal, Transfer, TransferFailed
from migration.protocol import ENDS, Command, SourceEvent, SourceState, step
from migration.report import MoveState
from migration.stages import Copy, next_stage, room_tokens
from migration.story import MoveStory, StepTimes, first_report
from migration.wish import MoveWish

log = logging.getLogger(__name__)

S, E = SourceState, SourceEvent

LOOK_AGAIN_S: Final = 0.02
"""Between two looks at a request that computes its prompt: a step or less."""
RECLAIM_AGAIN_S: Final = 0.5
"""Between two questions to a store that does not answer."""
TELL_TOKENS_S: Final = 3.0
"""How long the report of a committed move waits for the destination's first tokens."""
TELL_EVERY_S: Final = 0.25
"""Between two reports of a copy that goes on: the pages look twice a second."""

_SHOWN: Final = {
    S.RESERVING: MoveState.RESERVING,
    S.COPYING: MoveState.COPYING,
    S.PAUSING: MoveState.COPYING,
    S.PAUSED: MoveState.PAUSED,
    S.PAUSED_RECEIVED: MoveState.PAUSED,
    S.PAUSED_LOGGED: MoveState.PAUSED,
    S.COMMITTING: MoveState.COMMITTING,
    S.ASKING: MoveState.COMMITTING,
    S.RECLAIMING: MoveState.COMMITTING,
    S.COMMITTED: MoveState.COMMITTED,
    S.ABORTED: MoveState.ABORTED,
}


class SourceMove:
    """Lives from the first look to the last report. All methods: the agent's thread."""

    def __init__(
        self, office: Office, wish: MoveWish, look: Look, link: PeerLink, invitation: Invitation
    ) -> None:
        self.wish = wish
        self.state: SourceState = S.RESERVING
        self.link = link
        self.is_told = False
        """The last report is out: the agent may forget the move."""
        self.deadline_s = office.clock() + office.settings.stage_timeout_s
        self._office = office
        self._invitation = invitation
        self._request = look.request
        self._expires_in_s = look.expires_in_s
        self._outgoing = look.outgoing
        self._parked: Parked | None = None
        self._channel = ""
        self._is_channel_good = True
        """Open at both ends, as far as is known here, and nothing half sent in it."""
        self._is_sending = self._is_in_stage = False
        self._number = self._copies = 0
        self._sent_blocks = self._held_blocks = 0
        self._plan = (0, 0)
        """First block and number of blocks of the stage that goes on or comes next."""
        self._epoch: int | None = None
        """To go on in, after the log was reclaimed."""
        self._end_error: StreamError | None = None
        self._told_at_s = office.clock()
        steps = StepTimes(*office.side.step_ms())
        base = first_report(
            wish,
            look,
            office.shape,
            source=office.settings.instance,
            source_incarnation=office.settings.incarnation,
            step_before_ms=steps.mean_ms,
            now_unix_s=office.wall_clock(),
        )
        self.story = MoveStory(base, steps, office.clock, office.wall_clock)
        self._commands: dict[Command, Callable[[], None]] = {
            Command.LOOK: self._look,
            Command.LOOK_LATER: self._look_later,
            Command.SEND_STAGE: self._send_stage,
            Command.SEND_BLOCKS: self._send_blocks,
            Command.PARK: self._park,
            Command.SEND_LAST: self._send_last,
            Command.AWAIT_LOG: self._await_log,
            Command.SEND_COMMIT: lambda: self._say(messages.Commit(wish.migration_id)),
            Command.SEND_ABORT: self._send_abort,
            Command.UNPARK: lambda: office.side.unpark(wish.request_id, self._epoch),
            Command.RELEASE: lambda: office.side.release(wish.request_id),
            Command.END_REQUEST: lambda: office.side.end(wish.request_id, self._end_error),
            Command.ASK: self._ask,
            Command.RECLAIM: self._reclaim,
        }

    @property
    def is_over(self) -> bool:
        """Whether the protocol has ended; the story may still go on."""
        return self.state in ENDS

    def begin(self) -> None:
        """Asks the destination for room."""
        self._office.side.watch(self.wish.request_id, self)
        if self._outgoing.is_queued:
            self._send_prepare(None)
            return
        self._channel = self._office.take_channel(self.link)
        if self._channel:
            self._send_prepare(None)
            return
        self._channel = uuid.uuid4().hex[:12]
        self._is_channel_good = False
        self._office.plane.offer(self._channel).add_done_callback(
            lambda offer: self._office.post(partial(self._offered, offer))
        )

    def on_message(self, message: messages.ToSource) -> None:
        """Takes what the destination says."""
        self.story.note_message("destination", type(message).__name__, _note_of(message))
        match message:
            case messages.Ack():
                self._held_blocks = self.story.reserved_blocks = message.held_blocks
                if message.number == 0:
                    self._sent_blocks = self.story.cached_blocks = message.cached_blocks
                if message.number == self._number:
                    self.handle(E.ACK)
            case messages.Received():
                if message.number == self._number:
                    self._stage_received()
                    self.handle(E.RECEIVED)
            case messages.Refused():
                self._is_channel_good = self._is_channel_good and not message.is_channel_broken
                self._because(message.code, message.why)
                self.handle(E.REFUSED)
            case messages.Committed():
                self.handle(E.COMMITTED)
            case messages.Tokens():
                self._hear_tokens(message)
            case messages.Measured():
                pass

    def on_tokens(self, count: int, at_s: float) -> None:
        """Watcher: a token here. In the step thread."""
        self.story.on_tokens(count, at_s)

    def on_ended(self) -> None:
        """Watcher: the request is no longer here. In the step thread."""
        self._office.post(self._gone)

    def on_end_parked(self, error: StreamError | None) -> None:
        """The request is to be ended while it is parked. In the step thread."""
        self._office.post(partial(self._client_left, error))

    def cancel(self) -> None:
        self._because("cancelled", f"the move was cancelled while {self.state.value}")
        self.handle(E.CANCEL)

    def peer_lost(self) -> None:
        self._is_channel_good = False
        self._because("peer_lost", f"{self.wish.destination} was lost while {self.state.value}")
        self.handle(E.PEER_LOST)

    def timed_out(self) -> None:
        if self.state in ENDS:
            self._tell_end()
            return
        if self.state is S.COPYING and self._is_sending:
            # The plane has its own timeout; a large stage may take long and be well.
            self._set_deadline()
            return
        self._because(
            "timed_out", f"{self.wish.destination} did not answer while {self.state.value}"
        )
        self.handle(E.TIMEOUT)

    def tick(self, now_s: float) -> None:
        """Reports a move that goes on, now and then."""
        if self.state not in ENDS and now_s - self._told_at_s >= TELL_EVERY_S:
            self._tell()

    def handle(self, event: SourceEvent) -> None:
        """Takes one step of the protocol."""
        before = self.state
        after, commands = step(before, event)
        assert isinstance(after, SourceState), "a source stays one"
        self.state = after
        for command in commands:
            self._commands[command]()
        if before in ENDS:
            return
        self._set_deadline()
        if self.state is not before:
            self._tell()
        if self.state in ENDS:
            self._end()

    def _because(self, code: str, why: str) -> None:
        if not self.story.abort_code and self.state not in ENDS:
            self.story.abort_code, self.story.abort_reason = code, why

    def _set_deadline(self) -> None:
        settings = self._office.settings
        wait_s = {
            S.PAUSED: settings.pause_timeout_s,
            S.PAUSED_RECEIVED: settings.pause_timeout_s,
            S.PAUSED_LOGGED: settings.pause_timeout_s,
            S.COMMITTING: settings.commit_timeout_s,
            S.ASKING: settings.commit_timeout_s,
            S.RECLAIMING: float("inf"),
        }.get(self.state, settings.stage_timeout_s)
        self.deadline_s = self._office.clock() + wait_s

    def _say(self, message: messages.ToDestination) -> None:
        self.story.note_message("source", type(message).__name__, _note_of(message))
        self._office.send(self.link, message)

    def _offered(self, offer: "Future[str]") -> None:
        if self.state in ENDS:
            self._office.plane.close(self._channel)
        elif (error := offer.exception()) is not None:
            self._because("transfer_failed", str(error))
            self.handle(E.TRANSFER_FAILED)
        else:
            self._is_channel_good = True
            self._send_prepare(offer.result())

    def _send_prepare(self, offer: str | None) -> None:
        out = self._outgoing
        size = self._office.shape.block_size_tokens
        self._say(
            messages.Prepare(
                move=self.wish.migration_id,
                request=in_epoch(self._request, self._request.epoch + 1),
                output_token_ids=out.output_token_ids,
                room_tokens=0 if out.is_queued else room_tokens(out.computed_tokens, size),
                shape=self._office.shape,
                channel=self._channel,
                offer=offer,
                source=self._office.settings.instance,
                source_incarnation=self._office.settings.incarnation,
                expires_in_s=self._expires_in_s,
                reason=self.wish.reason,
                asked_by=self.wish.asked_by,
            )
        )

    def _look(self) -> None:
        self._office.side.look(
            self.wish.request_id, lambda found: self._office.post(partial(self._looked, found))
        )

    def _look_later(self) -> None:
        self._office.apart(self._wait_and_look)

    def _wait_and_look(self) -> None:
        self._office.pause(LOOK_AGAIN_S)
        self._office.post(partial(self.handle, E.LATER))

    def _looked(self, found: Look | Refusal) -> None:
        if self.state is not S.COPYING:
            return
        if isinstance(found, Refusal):
            self._because(found.code, found.why)
            self.handle(E.GONE)
        elif found.outgoing.preemptions != self._outgoing.preemptions:
            self._because("request_preempted", "the request lost its blocks to a preemption")
            self.handle(E.GONE)
        elif not self._channel and not found.outgoing.is_queued:
            self._because("request_started", "the request left the queue; it can be moved again")
            self.handle(E.CANCEL)
        elif found.outgoing.is_prefilling:
            self.handle(E.BUSY)
        else:
            self._outgoing = found.outgoing
            self.handle(self._plan_next(found.outgoing))

    def _plan_next(self, out: Outgoing) -> SourceEvent:
        if out.is_queued:
            return E.LITTLE
        complete = len(out.complete_blocks)
        self.story.blocks_left = max(0, complete - self._sent_blocks)
        stage = next_stage(
            complete_blocks=complete,
            sent_blocks=self._sent_blocks,
            copies=self._copies,
            limits=self._office.settings.limits,
        )
        if isinstance(stage, Copy):
            self._plan = (self._sent_blocks, stage.blocks)
            return E.MORE
        # The blocks of now and the next one, should this one fill up before the pause.
        if complete + 2 > self._held_blocks:
            self._plan = (self._sent_blocks, 0)
            return E.MORE
        return E.LITTLE

    def _send_stage(self) -> None:
        self._number += 1
        first, blocks = self._plan
        size = self._office.shape.block_size_tokens
        room = room_tokens(self._outgoing.computed_tokens, size)
        self._say(messages.Stage(self.wish.migration_id, self._number, room, first, blocks))

    def _send_blocks(self) -> None:
        first, blocks = self._plan
        ids = self._outgoing.complete_blocks[first : first + blocks]
        if blocks:
            self._copies += 1
            self._send(ids, is_last=False)

    def _send(self, ids: tuple[int, ...], *, is_last: bool) -> None:
        self._is_sending = self._is_in_stage = True
        self.story.begin_stage(
            self._number, len(ids), self._office.shape.block_bytes, is_last=is_last
        )
        self._office.plane.send(self._channel, ids, urgent=is_last).add_done_callback(
            lambda sent: self._office.post(partial(self._blocks_sent, sent))
        )

    def _blocks_sent(self, sent: "Future[Transfer]") -> None:
        self._is_sending = False
        error = sent.exception()
        if error is None:
            self.story.note_gather(sent.result().gather_ms)
            return
        if not isinstance(error, TransferFailed):
            log.error("%s: sending blocks failed", self.wish.request_id, exc_info=error)
        self._because("transfer_failed", str(error))
        self.handle(E.TRANSFER_FAILED)

    def _stage_received(self) -> None:
        self._is_in_stage = False
        self.story.end_stage()
        self._sent_blocks += self._plan[1]

    def _park(self) -> None:
        self._office.side.park(
            self.wish.request_id,
            self.on_end_parked,
            lambda parked: self._office.post(partial(self._was_parked, parked)),
        )

    def _was_parked(self, parked: Parked | Refusal) -> None:
        if self.state is not S.PAUSING:
            return
        if isinstance(parked, Refusal):
            self._because(parked.code, parked.why)
            self.handle(E.GONE)
            return
        self.story.note_pause(
            parked.computed_tokens,
            len(parked.output_token_ids),
            StepTimes(*self._office.side.step_ms()),
        )
        self._parked = parked
        if len(parked.blocks) > self._held_blocks:
            self._because("no_blocks", "the request outgrew the room that was made for it")
            self.handle(E.CANCEL)
            return
        self.handle(E.PARKED)

    def _send_last(self) -> None:
        parked = self._parked
        assert parked is not None, "PARKED comes with it"
        self._number += 1
        first = self._sent_blocks
        self._plan = (first, max(0, len(parked.blocks) - first))
        self._say(
            messages.Last(
                move=self.wish.migration_id,
                number=self._number,
                first_block=first,
                blocks=self._plan[1],
                computed_tokens=parked.computed_tokens,
                output_token_ids=parked.output_token_ids,
                state=parked.state,
            )
        )
        if self._plan[1]:
            self._send(parked.blocks[first:], is_last=True)

    def _await_log(self) -> None:
        self._office.log.when_logged(lambda: self._office.post(lambda: self._in_pause(E.LOGGED)))

    def _in_pause(self, event: SourceEvent) -> None:
        if self.state in (S.PAUSED, S.PAUSED_RECEIVED):
            self.handle(event)

    def _send_abort(self) -> None:
        self._say(
            messages.Abort(
                self.wish.migration_id,
                self.story.abort_code or "client_cancelled",
                self.story.abort_reason or "the client left",
                self._is_in_stage or not self._is_channel_good,
            )
        )

    def _gone(self) -> None:
        if self.state in (S.RESERVING, S.COPYING):
            self._because("request_finished", "the request finished before it was moved")
            self.handle(E.GONE)

    def _client_left(self, error: StreamError | None) -> None:
        self._end_error = error
        why = error.message if error else "the client left"
        self._because("client_cancelled", why)
        if self.state in ENDS:
            # It was unparked a moment ago and decodes, or it is the destination's.
            self._office.side.end(self.wish.request_id, error)
        self.handle(E.CLIENT_LEFT)

    def _ask(self) -> None:
        """Asks over a new connection: the old one may be what does not work."""
        self._office.apart(self._reconnect)

    def _reconnect(self) -> None:
        try:
            link = self._office.connect(self._invitation)
        except OSError:
            self._office.post(partial(self.handle, E.PEER_LOST))
            return
        self._office.post(partial(self._ask_over, link))

    def _ask_over(self, link: PeerLink) -> None:
        if self.state is not S.ASKING:
            link.close()
            return
        self.link = link
        self._is_channel_good = False
        self._say(messages.Ask(self.wish.migration_id))

    def _reclaim(self) -> None:
        self._office.apart(self._ask_log)

    def _ask_log(self) -> None:
        try:
            epoch = self._office.log.reclaim(self.wish.request_id, self._request.epoch)
        except (redis.RedisError, OSError):
            self._office.pause(RECLAIM_AGAIN_S)
            self._office.post(partial(self._reclaimed, E.UNKNOWN, None))
            return
        self._office.post(partial(self._reclaimed, E.THEIRS if epoch is None else E.MINE, epoch))

    def _reclaimed(self, event: SourceEvent, epoch: int | None) -> None:
        if self.state is S.RECLAIMING:
            self._epoch = epoch
            self.handle(event)

    def _end(self) -> None:
        office = self._office
        self.story.ended_ms = self.story.now_ms()
        if self.story.source_step_ms is None:
            self.story.note_steps(StepTimes(*office.side.step_ms()))
        is_clean = self._is_channel_good and not self._is_sending and not self._is_in_stage
        if self._channel and is_clean:
            office.give_channel(self.link, self._channel)
        elif self._channel:
            office.plane.close(self._channel)
        if self.state is S.COMMITTED:
            self.story.committed_ms = self.story.ended_ms
            self.story.abort_code = self.story.abort_reason = ""
        else:
            office.side.watch(self.wish.request_id, None)
        if self.state is S.ABORTED or self._outgoing.is_queued:
            self._tell_end()
        else:
            self.deadline_s = office.clock() + TELL_TOKENS_S

    def _hear_tokens(self, message: messages.Tokens) -> None:
        committed_ms = self.story.committed_ms
        if committed_ms is None:
            return
        self.story.destination_token_ms = tuple(
            round(committed_ms + after_ms, 3) for after_ms in message.after_ms
        )
        if message.is_final:
            self._tell_end()

    def _tell(self) -> None:
        """Reports. A committed move is not called ended before its first tokens are known."""
        self._told_at_s = self._office.clock()
        shown = _SHOWN[self.state]
        if shown.is_end and not self.is_told:
            shown = MoveState.COMMITTING
        self._office.reports.report_move(self.story.report(shown))

    def _tell_end(self) -> None:
        if not self.is_told:
            self.is_told = True
            self._tell()


def _note_of(message: messages.Message) -> str:
    match message:
        case messages.Prepare():
            return f"room for {message.room_tokens} tokens" if message.room_tokens else "queued"
        case messages.Stage() | messages.Last():
            return f"{message.blocks} blocks"
        case messages.Ack():
            cached = f", {message.cached_blocks} cached" if message.cached_blocks else ""
            return f"{message.held_blocks} blocks held{cached}"
        case messages.Refused() | messages.Abort():
            return message.why
        case _:
            return ""
