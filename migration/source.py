"""One move as its source sees it: carries out what the protocol's table says.

Decides nothing that protocol.py and stages.py decide; turns messages, answers of the step thread
and of the memory plane, and timers into events. In the agent's thread.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from engine_pool.token_log import StreamError
from migration import messages
from migration.copying import Copying
from migration.doubt import Doubt
from migration.engine_side import Look, in_epoch
from migration.links import Invitation
from migration.office import Office, PeerLink
from migration.ports import Parked, Refusal
from migration.protocol import ENDS, Command, SourceEvent, SourceState, step
from migration.report import SHOWN, MoveState
from migration.stages import room_tokens
from migration.story import MoveStory, StepTimes, first_report, note_of
from migration.wish import MoveWish

S, E = SourceState, SourceEvent

LOOK_AGAIN_S: Final = 0.02
"""Between two looks at a request that computes its prompt: a step or less."""
TELL_TOKENS_S: Final = 3.0
"""How long the report of a committed move waits for the destination's first tokens."""
TELL_EVERY_S: Final = 0.25
"""Between two reports of a state that goes on: the pages look twice a second."""
TELL_CHANGE_S: Final = 0.1
"""Between two reports when the state has changed. One for each state would cost a quick move more
than its copy does: they take the interpreter from the engine's steps."""


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
        self._request = look.request
        self._expires_in_s = look.expires_in_s
        self._outgoing = look.outgoing
        self._parked: Parked | None = None
        self._epoch: int | None = None
        """To go on in, after the log was reclaimed."""
        self._end_error: StreamError | None = None
        self._told_at_s = office.clock()
        self._told_state: SourceState | None = None
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
        self._copying = Copying(office, link, self.story, self._transfer_failed)
        self._doubt = Doubt(office, invitation, wish.request_id, look.request.epoch)
        self._commands = self._command_table()

    def _command_table(self) -> dict[Command, Callable[[], None]]:
        side, request_id = self._office.side, self.wish.request_id
        return {
            Command.LOOK: self._look,
            Command.LOOK_LATER: lambda: self._office.apart(self._wait_and_look),
            Command.SEND_STAGE: self._send_stage,
            Command.SEND_BLOCKS: lambda: self._copying.send(
                self._outgoing.complete_blocks, is_last=False
            ),
            Command.PARK: lambda: side.park(request_id, self.on_end_parked, self._post_parked),
            Command.SEND_LAST: self._send_last,
            Command.AWAIT_LOG: lambda: self._office.log.when_logged(
                lambda: self._office.post(self._logged)
            ),
            Command.SEND_COMMIT: lambda: self._say(messages.Commit(self.wish.migration_id)),
            Command.SEND_ABORT: self._send_abort,
            Command.UNPARK: lambda: side.unpark(request_id, self._epoch),
            Command.RELEASE: lambda: side.release(request_id),
            Command.END_REQUEST: lambda: side.end(request_id, self._end_error),
            Command.ASK: lambda: self._doubt.ask(self._ask_over, lambda: self.handle(E.PEER_LOST)),
            Command.RECLAIM: lambda: self._doubt.reclaim(self._reclaimed),
        }

    @property
    def is_over(self) -> bool:
        """Whether the protocol has ended; the story may still go on."""
        return self.state in ENDS

    def begin(self) -> None:
        """Asks the destination for room."""
        self._office.side.watch(self.wish.request_id, self)
        self._tell()
        if self._outgoing.is_queued:
            self._send_prepare(None)
        else:
            self._copying.open(self._send_prepare)

    def on_message(self, message: messages.ToSource) -> None:
        """Takes what the destination says."""
        self.story.note_message("destination", type(message).__name__, note_of(message))
        match message:
            case messages.Ack():
                self._copying.note_room(message.number, message.held_blocks, message.cached_blocks)
                if message.number == self._copying.number:
                    self.handle(E.ACK)
            case messages.Received():
                if message.number == self._copying.number:
                    self._copying.note_received()
                    self.handle(E.RECEIVED)
            case messages.Refused():
                self._copying.note_refused(is_channel_broken=message.is_channel_broken)
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
        """Gives the move up if it is not too late."""
        self._because("cancelled", f"the move was cancelled while {self.state.value}")
        self.handle(E.CANCEL)

    def peer_lost(self) -> None:
        """Notes that the link to the destination is gone."""
        self._copying.is_broken = True
        self._because("peer_lost", f"{self.wish.destination} was lost while {self.state.value}")
        self.handle(E.PEER_LOST)

    def timed_out(self) -> None:
        """Notes that the deadline is over."""
        if self.state in ENDS:
            self._tell_end()
            return
        if self.state is S.COPYING and self._copying.is_sending:
            # The plane has its own timeout; a large stage may take long and be well.
            self._set_deadline()
            return
        why = f"{self.wish.destination} did not answer while {self.state.value}"
        self._because("timed_out", why)
        self.handle(E.TIMEOUT)

    def tick(self, now_s: float) -> None:
        """Reports a move that goes on, now and then."""
        silent_s = now_s - self._told_at_s
        if self.state not in ENDS and (
            silent_s >= TELL_EVERY_S
            or (self.state is not self._told_state and silent_s >= TELL_CHANGE_S)
        ):
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
        self.story.note_message("source", type(message).__name__, note_of(message))
        self._office.send(self.link, message)

    def _transfer_failed(self, why: str) -> None:
        self._because("transfer_failed", why)
        self.handle(E.TRANSFER_FAILED)

    def _send_prepare(self, offer: str | None) -> None:
        if self.state in ENDS:
            return
        out, settings = self._outgoing, self._office.settings
        size = self._office.shape.block_size_tokens
        self._say(
            messages.Prepare(
                move=self.wish.migration_id,
                request=in_epoch(self._request, self._request.epoch + 1),
                output_token_ids=out.output_token_ids,
                room_tokens=0 if out.is_queued else room_tokens(out.computed_tokens, size),
                shape=self._office.shape,
                channel=self._copying.channel,
                offer=offer,
                source=settings.instance,
                source_incarnation=settings.incarnation,
                expires_in_s=self._expires_in_s,
                reason=self.wish.reason,
                asked_by=self.wish.asked_by,
            )
        )

    def _look(self) -> None:
        self._office.side.look(
            self.wish.request_id, lambda found: self._office.post(partial(self._looked, found))
        )

    def _wait_and_look(self) -> None:
        self._office.pause(LOOK_AGAIN_S)
        self._office.post(self._look_again)

    def _look_again(self) -> None:
        if self.state is S.COPYING:
            self.handle(E.LATER)

    def _looked(self, found: Look | Refusal) -> None:
        if self.state is not S.COPYING:
            return
        if isinstance(found, Refusal):
            self._because(found.code, found.why)
            self.handle(E.GONE)
            return
        out = found.outgoing
        if out.preemptions != self._outgoing.preemptions:
            self._because("request_preempted", "the request lost its blocks to a preemption")
            self.handle(E.GONE)
        elif not self._copying.channel and not out.is_queued:
            self._because("request_started", "the request left the queue; it can be moved again")
            self.handle(E.CANCEL)
        elif out.is_prefilling:
            self.handle(E.BUSY)
        else:
            self._outgoing = out
            has_more = not out.is_queued and self._copying.plan(out)
            self.handle(E.MORE if has_more else E.LITTLE)

    def _send_stage(self) -> None:
        copying = self._copying
        copying.announce()
        size = self._office.shape.block_size_tokens
        room = room_tokens(self._outgoing.computed_tokens, size)
        self._say(
            messages.Stage(
                self.wish.migration_id, copying.number, room, copying.first_block, copying.blocks
            )
        )

    def _post_parked(self, parked: Parked | Refusal) -> None:
        self._office.post(partial(self._was_parked, parked))

    def _was_parked(self, parked: Parked | Refusal) -> None:
        if self.state is not S.PAUSING:
            return
        if isinstance(parked, Refusal):
            self._because(parked.code, parked.why)
            self.handle(E.GONE)
            return
        steps = StepTimes(*self._office.side.step_ms())
        self.story.note_pause(parked.computed_tokens, len(parked.output_token_ids), steps)
        self._parked = parked
        if len(parked.blocks) > self._copying.held_blocks:
            self._because("no_blocks", "the request outgrew the room that was made for it")
            self.handle(E.CANCEL)
        else:
            self.handle(E.PARKED)

    def _send_last(self) -> None:
        parked, copying = self._parked, self._copying
        assert parked is not None, "PARKED comes with it"
        copying.plan_last(len(parked.blocks))
        self._say(
            messages.Last(
                move=self.wish.migration_id,
                number=copying.number,
                first_block=copying.first_block,
                blocks=copying.blocks,
                computed_tokens=parked.computed_tokens,
                output_token_ids=parked.output_token_ids,
                state=parked.state,
            )
        )
        copying.send(parked.blocks, is_last=True)

    def _logged(self) -> None:
        if self.state in (S.PAUSED, S.PAUSED_RECEIVED):
            self.handle(E.LOGGED)

    def _send_abort(self) -> None:
        self._say(
            messages.Abort(
                self.wish.migration_id,
                self.story.abort_code or "client_cancelled",
                self.story.abort_reason or "the client left",
                self._copying.is_dirty,
            )
        )

    def _gone(self) -> None:
        if self.state in (S.RESERVING, S.COPYING):
            self._because("request_finished", "the request finished before it was moved")
            self.handle(E.GONE)

    def _client_left(self, error: StreamError | None) -> None:
        self._end_error = error
        self._because("client_cancelled", error.message if error else "the client left")
        if self.state in ENDS:
            # It was unparked a moment ago and decodes, or it is the destination's.
            self._office.side.end(self.wish.request_id, error)
        self.handle(E.CLIENT_LEFT)

    def _ask_over(self, link: PeerLink) -> None:
        if self.state is not S.ASKING:
            link.close()
            return
        self.link = link
        self._copying.is_broken = True
        self._say(messages.Ask(self.wish.migration_id))

    def _reclaimed(self, event: SourceEvent, epoch: int | None) -> None:
        if self.state is S.RECLAIMING:
            self._epoch = epoch
            self.handle(event)

    def _end(self) -> None:
        story, office = self.story, self._office
        story.ended_ms = story.now_ms()
        if story.source_step_ms is None:
            story.note_steps(StepTimes(*office.side.step_ms()))
        self._copying.finish()
        if self.state is S.COMMITTED:
            story.committed_ms = story.ended_ms
            story.abort_code = story.abort_reason = ""
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
        self._told_state = self.state
        shown = SHOWN[self.state]
        if shown.is_end and not self.is_told:
            shown = MoveState.COMMITTING
        self._office.reports.report_move(self.story.report(shown))

    def _tell_end(self) -> None:
        if not self.is_told:
            self.is_told = True
            self._tell()
