"""What of a request has gone over to its destination, and the channel that it goes over.

Carries out stages; stages.py decides about them. In the agent's thread.
"""

import logging
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from migration.office import Office, PeerLink
from migration.ports import Outgoing, Transfer, TransferFailed
from migration.stages import Copy, next_stage
from migration.story import MoveStory

log = logging.getLogger(__name__)


class Copying:
    """One move's, at its source."""

    def __init__(
        self,
        office: Office,
        link: PeerLink,
        story: MoveStory,
        on_failure: Callable[[str], None],
    ) -> None:
        """`on_failure` is told why a transfer failed; in the agent's thread."""
        self.channel = ""
        """Empty: none is needed, the request is queued."""
        self.number = 0
        """Of the stage that goes on, from 1; 0 is the first question for room."""
        self.first_block = self.blocks = 0
        """Of that stage, among the request's blocks."""
        self.held_blocks = 0
        """That the destination holds for the request."""
        self.is_sending = False
        self.is_broken = False
        """The channel may not be open at both ends, or something half sent is in it."""
        self._office = office
        self._link = link
        self._story = story
        self._on_failure = on_failure
        self._copies = 0
        self._sent_blocks = 0
        self._is_in_stage = False
        self._room_when_asked = 0
        """Blocks held when more room was asked for last, without blocks to send."""

    def open(self, ready: Callable[[str | None], None]) -> None:
        """Gets a channel; calls `ready` with an offer for the other end, None for one that is open
        already."""
        self.channel = self._office.take_channel(self._link)
        if self.channel:
            ready(None)
            return
        self.channel = uuid.uuid4().hex[:12]
        self.is_broken = True
        self._office.plane.offer(self.channel).add_done_callback(
            lambda offer: self._office.post(partial(self._offered, offer, ready))
        )

    def note_room(self, number: int, held_blocks: int, cached_blocks: int) -> None:
        """Notes what the destination holds, and what it need not be sent."""
        self.held_blocks = self._story.reserved_blocks = held_blocks
        if number == 0:
            self._sent_blocks = self._story.cached_blocks = cached_blocks

    def plan(self, out: Outgoing) -> bool:
        """Says whether another stage comes before the pause, and remembers which blocks it has.

        It may have none: then the room is to grow before the pause.
        """
        complete = len(out.complete_blocks)
        self._story.blocks_left = max(0, complete - self._sent_blocks)
        stage = next_stage(
            complete_blocks=complete,
            sent_blocks=self._sent_blocks,
            copies=self._copies,
            limits=self._office.settings.limits,
        )
        self.first_block = self._sent_blocks
        self.blocks = stage.blocks if isinstance(stage, Copy) else 0
        # The block of now and the next one, should this one fill up before the pause.
        wants_room = complete + 2 > self.held_blocks
        if self.blocks == 0 and wants_room:
            # Asked for in vain before: the request is near the longest that the model takes.
            wants_room = self._room_when_asked != self.held_blocks
            self._room_when_asked = self.held_blocks
        return self.blocks > 0 or wants_room

    def announce(self) -> None:
        """Notes that the planned stage is announced: the destination receives from now on."""
        self.number += 1
        self._is_in_stage = self.blocks > 0

    def plan_last(self, blocks: int) -> None:
        """Plans and announces the last stage, of a request that has so many blocks."""
        self.first_block = self._sent_blocks
        self.blocks = max(0, blocks - self._sent_blocks)
        self.announce()

    def send(self, all_blocks: Sequence[int], *, is_last: bool) -> None:
        """Sends the planned ones of a request's blocks."""
        if not self.blocks:
            return
        ids = all_blocks[self.first_block : self.first_block + self.blocks]
        self._copies += not is_last
        self.is_sending = True
        block_bytes = self._office.shape.block_bytes
        self._story.begin_stage(self.number, len(ids), block_bytes, is_last=is_last)
        self._office.plane.send(self.channel, ids, urgent=is_last).add_done_callback(
            lambda sent: self._office.post(partial(self._was_sent, sent))
        )

    def note_received(self) -> None:
        """Notes that the destination has written the stage."""
        self._is_in_stage = False
        self._story.end_stage()
        self._sent_blocks += self.blocks

    def note_refused(self, *, is_channel_broken: bool) -> None:
        """Notes that the destination has given up, and what it says of the channel."""
        self._is_in_stage = self.is_sending
        self.is_broken |= is_channel_broken

    @property
    def is_dirty(self) -> bool:
        """Whether the channel is of no use any more."""
        return self.is_broken or self.is_sending or self._is_in_stage

    def finish(self) -> None:
        """Keeps the channel for the next move, or closes it."""
        if self.channel and self.is_dirty:
            self._office.plane.close(self.channel)
        elif self.channel:
            self._office.give_channel(self._link, self.channel)

    def _offered(self, offer: "Future[str]", ready: Callable[[str | None], None]) -> None:
        if (error := offer.exception()) is not None:
            self._on_failure(str(error))
        else:
            self.is_broken = False
            ready(offer.result())

    def _was_sent(self, sent: "Future[Transfer]") -> None:
        self.is_sending = False
        error = sent.exception()
        if error is None:
            self._story.note_gather(sent.result().gather_ms)
            return
        if not isinstance(error, TransferFailed):
            log.error("sending blocks over %s failed", self.channel, exc_info=error)
        self._on_failure(str(error))
