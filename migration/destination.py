"""One move as its destination sees it: carries out what the protocol's table says, in the agent's
thread. The source drives; this side answers, and gives up what nobody wants any more.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Final

from migration import messages
from migration.office import Office, PeerLink
from migration.ports import Held, Parked, Refusal, Transfer
from migration.protocol import (
    ENDS,
    Command,
    DestinationEvent,
    DestinationState,
    step,
)
from migration.report import MoveEnd, MoveState

log = logging.getLogger(__name__)

D, E = DestinationState, DestinationEvent

TOKENS_TOLD: Final = 12
"""First tokens whose times the source is told: the pause among its neighbours."""
TOKENS_WAIT_S: Final = 2.0
"""After that long it is told what there is."""
TELL_FOR_SOURCE_S: Final = 1.0
"""A source that lost only the connection ends the move itself, within a round trip or two."""
KEPT_COMMIT_TIMEOUTS: Final = 4
"""How long an ended move can still be asked about, in commit timeouts: the source asks after one of
them and waits another one for the answer."""


class DestinationMove:
    """Lives from Prepare until nobody asks any more. All methods: the agent's thread."""

    def __init__(self, office: Office, prepare: messages.Prepare, link: PeerLink) -> None:
        self.move = prepare.move
        self.state: DestinationState = D.HOLDING
        self.link = link
        self.channel = prepare.channel
        self.is_forgettable = False
        self.deadline_s = office.clock() + self._lease_s(office)
        self._office = office
        self._prepare = prepare
        self._request_id = prepare.request.request_id
        self._number = 0
        self._held = Held((), 0)
        self._plan = (0, 0)
        self._last: messages.Last | None = None
        self._receiving: Future[Transfer] | None = None
        self._write_ms = 0.0
        self._code = self._why = ""
        self._is_channel_broken = False
        self._tokens_s: list[float] = []
        self._committed_s: float | None = None
        self._are_tokens_told = False
        self._commands: dict[Command, Callable[[], None]] = {
            Command.RESERVE: self._reserve,
            Command.SEND_ACK: self._send_ack,
            Command.RECEIVE: self._receive,
            Command.SEND_RECEIVED: lambda: self._say(
                messages.Received(self.move, self._number, self._write_ms)
            ),
            Command.ADOPT: self._adopt,
            Command.SEND_COMMITTED: self._send_committed,
            Command.SEND_REFUSED: self._send_refused,
            Command.STOP_RECEIVING: self._stop_receiving,
            Command.DISCARD: lambda: office.side.discard(self._request_id),
            Command.END_REQUEST: lambda: office.side.end(self._request_id, None),
        }

    @property
    def is_over(self) -> bool:
        """Whether the protocol has ended; questions are still answered."""
        return self.state in ENDS

    def begin(self) -> None:
        """Joins the channel and asks the step thread for room."""
        if self._prepare.offer is not None:
            # Whether that worked is seen by the first transfer.
            self._office.plane.join(self.channel, self._prepare.offer)
        self._office.side.hold(
            self._prepare.request,
            self._prepare.output_token_ids,
            self._prepare.room_tokens,
            lambda held: self._office.post(partial(self._answered, held)),
        )

    def on_message(self, message: messages.ToDestination) -> None:
        """Takes what the source says."""
        match message:
            case messages.Stage():
                self._number = message.number
                self._plan = (message.first_block, message.blocks)
                self._room_tokens = message.room_tokens
                self.handle(E.STAGE)
            case messages.Last():
                self._number = message.number
                self._plan = (message.first_block, message.blocks)
                self._last = message
                self.handle(E.LAST)
            case messages.Commit():
                self.handle(E.COMMIT)
            case messages.Abort():
                self._because(message.code, message.why)
                self._is_channel_broken = self._is_channel_broken or message.is_channel_broken
                self.handle(E.ABORT)
                if message.is_channel_broken:
                    self._office.plane.close(self.channel)
            case messages.Ask():
                self.handle(E.ASK)
            case messages.Prepare() | messages.Measure():
                log.error("%s: a second %s for the move", self.move, type(message).__name__)

    def on_tokens(self, count: int, at_s: float) -> None:
        """Watcher: a token here. In the step thread."""
        if len(self._tokens_s) < TOKENS_TOLD:
            self._tokens_s.append(at_s)
            if len(self._tokens_s) in (1, TOKENS_TOLD):
                self._office.post(self._tell_tokens)

    def on_ended(self) -> None:
        """Watcher: the request is over. In the step thread."""
        self._office.post(partial(self._tell_tokens, is_over=True))

    def peer_lost(self) -> None:
        self._because("peer_lost", f"{self._prepare.source} was lost")
        if self.state is D.ADOPTED and not self._are_tokens_told:
            self._are_tokens_told = True
            self._report_end(MoveState.COMMITTED)
        self.handle(E.PEER_LOST)

    def timed_out(self) -> None:
        if self.state in ENDS:
            if self.state is D.ADOPTED and not self._are_tokens_told:
                self._tell_tokens(is_over=True)
                self.deadline_s = self._office.clock() + self._kept_s
            else:
                self.is_forgettable = True
        elif self._receiving is not None:
            self._set_deadline()
        else:
            self._because("timed_out", f"{self._prepare.source} said nothing more")
            self.handle(E.TIMEOUT)

    def handle(self, event: DestinationEvent) -> None:
        """Takes one step of the protocol."""
        before = self.state
        after, commands = step(before, event)
        assert isinstance(after, DestinationState), "a destination stays one"
        self.state = after
        for command in commands:
            self._commands[command]()
        if before in ENDS:
            return
        self._set_deadline()
        if after in ENDS:
            self._end()

    def _because(self, code: str, why: str) -> None:
        if not self._code:
            self._code, self._why = code, why

    @staticmethod
    def _lease_s(office: Office) -> float:
        settings = office.settings
        # The source gives up first, and says so; this is for one that says nothing.
        return 2 * settings.stage_timeout_s + settings.commit_timeout_s

    @property
    def _kept_s(self) -> float:
        return KEPT_COMMIT_TIMEOUTS * self._office.settings.commit_timeout_s

    def _set_deadline(self) -> None:
        self.deadline_s = self._office.clock() + self._lease_s(self._office)

    def _say(self, message: messages.ToSource) -> None:
        self._office.send(self.link, message)

    def _answered(self, held: Held | Refusal) -> None:
        if isinstance(held, Refusal):
            self._because(held.code, held.why)
            self._late(E.NO_ROOM)
        else:
            self._held = held
            self._late(E.ROOM)

    def _late(self, event: DestinationEvent) -> None:
        """Takes an answer of the step thread, which may come after the move's end."""
        if self.state not in ENDS:
            self.handle(event)

    def _reserve(self) -> None:
        self._office.side.reserve(
            self._request_id,
            self._room_tokens,
            lambda held: self._office.post(partial(self._answered, held)),
        )

    def _send_ack(self) -> None:
        self._say(
            messages.Ack(self.move, self._number, len(self._held.blocks), self._held.cached_blocks)
        )

    def _receive(self) -> None:
        first, count = self._plan
        if not count:
            self._write_ms = 0.0
            self._office.post(partial(self._late, E.WRITTEN))
            return
        ids = self._held.blocks[first : first + count]
        assert len(ids) == count, "the source sends no more than there is room for"
        self._receiving = self._office.plane.receive(self.channel, ids)
        self._receiving.add_done_callback(
            lambda received: self._office.post(partial(self._received, received))
        )

    def _received(self, received: "Future[Transfer]") -> None:
        self._receiving = None
        if self.state is D.DISCARDING:
            self.handle(E.QUIET)
            return
        error = received.exception()
        if error is None:
            self._write_ms = received.result().gather_ms
            self._late(E.WRITTEN)
        else:
            self._is_channel_broken = True
            self._because("transfer_failed", str(error))
            self._late(E.TRANSFER_FAILED)

    def _stop_receiving(self) -> None:
        if self._receiving is None:
            self._office.post(partial(self._late, E.QUIET))
        else:
            self._is_channel_broken = True
            self._office.plane.close(self.channel)

    def _adopt(self) -> None:
        last = self._last
        assert last is not None, "COMMIT comes after LAST"
        parked = Parked(last.computed_tokens, last.output_token_ids, (), last.state)
        self._office.side.adopt(
            self._prepare.request,
            parked,
            self._prepare.expires_in_s,
            self,
            lambda refusal: self._office.post(partial(self._adopted, refusal)),
        )

    def _adopted(self, refusal: Refusal | None) -> None:
        if refusal is not None:
            self._because(refusal.code, refusal.why)
        self._late(E.ADOPTED if refusal is None else E.NOT_ADOPTED)

    def _send_committed(self) -> None:
        if self._committed_s is None:
            self._committed_s = self._office.clock()
        self._say(messages.Committed(self.move))
        if self._tokens_s:
            self._tell_tokens()

    def _send_refused(self) -> None:
        why = self._why or f"{self._office.settings.instance} gave the move up"
        code = self._code or "refused"
        self._say(messages.Refused(self.move, code, why, self._is_channel_broken))

    def _tell_tokens(self, *, is_over: bool = False) -> None:
        if self._are_tokens_told or self._committed_s is None:
            return
        is_final = is_over or len(self._tokens_s) >= TOKENS_TOLD
        self._are_tokens_told = is_final
        after_ms = tuple((at - self._committed_s) * 1000 for at in self._tokens_s)
        self._say(messages.Tokens(self.move, after_ms, is_final))

    def _end(self) -> None:
        wait_s = TOKENS_WAIT_S if self.state is D.ADOPTED else self._kept_s
        self.deadline_s = self._office.clock() + wait_s
        if self._code == "peer_lost":
            is_here = self.state is D.ADOPTED
            self._are_tokens_told |= is_here
            self._report_end(MoveState.COMMITTED if is_here else MoveState.ABORTED)

    def _report_end(self, state: MoveState) -> None:
        """Says how it ended for a source that cannot; one that lives has said so by then."""
        end = MoveEnd(self.move, state, self._code, self._why)

        def tell() -> None:
            self._office.pause(TELL_FOR_SOURCE_S)
            self._office.reports.report_move_end(end)

        self._office.apart(tell)
