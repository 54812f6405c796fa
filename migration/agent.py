"""The part of an engine's process that moves requests: one thread, all the moves of the engine.

Whoever wants a move calls `migrate` at the source; the two agents do the rest over a link (control)
and a channel (data). Nothing here touches the engine: that is the step thread's (engine_side.py).
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final

import msgspec

from migration import messages
from migration.destination import DestinationMove
from migration.engine_side import EngineSide, Look
from migration.links import Invitation
from migration.measuring import Measurements
from migration.office import (
    AgentSettings,
    Connect,
    LogDoor,
    Office,
    PeerLink,
    Reports,
)
from migration.ports import KvPlane, KvShape, Refusal
from migration.source import SourceMove
from migration.stages import Way
from migration.wish import SELF_TEST, MoveWish

log = logging.getLogger(__name__)

TICK_S: Final = 0.1
"""Longest sleep of the agent while moves go on: bounds how late a timer is seen."""
IDLE_S: Final = 5.0
"""Longest sleep without moves; costs nothing."""
APART_THREADS: Final = 4
"""For what waits (a store, a connection): one for each move that may doubt at once."""


class MigrationAgent:
    """One an engine process. The methods without another note may be called from any thread."""

    def __init__(
        self,
        settings: AgentSettings,
        side: EngineSide,
        plane: KvPlane,
        shape: KvShape,
        log_door: LogDoor,
        reports: Reports,
        connect: Connect,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._side = side
        self._plane = plane
        self._shape = shape
        self._connect_to = connect
        self._clock = clock
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._apart = ThreadPoolExecutor(APART_THREADS, "migration-wait")
        self._sources: dict[str, SourceMove] = {}
        self._destinations: dict[str, DestinationMove] = {}
        self._links: dict[str, PeerLink] = {}
        """To destinations, by their incarnation."""
        self._idle: dict[PeerLink, list[str]] = {}
        """Open channels that wait for the next move over the same link."""
        self._joined: dict[PeerLink, set[str]] = {}
        """Channels of others that were opened over a link: they go with it."""
        self._forbidden = ""
        self._closed_door = ""
        self._measurements = Measurements(plane, shape, self._send, self._post)
        self._office = Office(
            settings=settings,
            side=side,
            plane=plane,
            shape=shape,
            log=log_door,
            reports=reports,
            clock=clock,
            wall_clock=wall_clock,
            post=self._post,
            apart=self._run_apart,
            pause=time.sleep,
            send=self._send,
            take_channel=self._take_channel,
            give_channel=self._give_channel,
            connect=self._connect,
        )
        self._thread = threading.Thread(target=self._run, name="migration-agent", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Ends the thread and closes links and channels. Moves that go on are lost to both sides:
        each sees the other go."""
        self._jobs.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._plane.shut_down()
        self._apart.shutdown(wait=False, cancel_futures=True)
        for link in [*self._links.values(), *self._joined]:
            link.close()

    @property
    def shape(self) -> KvShape:
        return self._shape

    def forbid(self, why: str) -> None:
        """Lets no further move begin, neither from here nor to here, but those of the self-test;
        "": lets them again."""
        self._post(partial(setattr, self, "_forbidden", why))

    def shut(self, why: str) -> "Future[None]":
        """Lets no further move come to here, but those of the self-test; "": lets them again.
        Those that go on, and those that leave, are not concerned. Done once it is so."""
        answer: Future[None] = Future()

        def shut() -> None:
            self._closed_door = why
            answer.set_result(None)

        self._post(shut)
        return answer

    @property
    def moves(self) -> int:
        """Moves that come or go now; may be of a moment ago."""
        return sum(not m.is_over for m in self._moves())

    def migrate(self, wish: MoveWish, invitation: Invitation) -> "Future[Refusal | None]":
        """Begins a move. Answers once the request was found fit to go; it goes on by itself then.

        Connects first where needed, in a thread of its own.
        """
        answer: Future[Refusal | None] = Future()

        def begin() -> None:
            try:
                link = self._link_to(wish.destination_incarnation, invitation)
            except OSError as error:
                why = f"{wish.destination} cannot be reached: {error}"
                answer.set_result(Refusal("peer_lost", why))
                return
            self._post(partial(self._begin, wish, link, invitation, answer))

        self._run_apart(begin)
        return answer

    def cancel(self, migration_id: str) -> "Future[bool]":
        """Ends a move that goes on; the request stays here. Answers whether there is such a
        move."""
        answer: Future[bool] = Future()

        def cancel() -> None:
            move = self._sources.get(migration_id)
            if move is not None and not move.is_told:
                move.cancel()
            answer.set_result(move is not None)

        self._post(cancel)
        return answer

    def measure(self, incarnation: str, invitation: Invitation, size_bytes: int) -> "Future[Way]":
        """Measures the way to another engine. The future fails with TransferFailed or OSError."""
        answer: Future[Way] = Future()

        def begin() -> None:
            try:
                link = self._link_to(incarnation, invitation)
            except OSError as error:
                answer.set_exception(error)
                return
            self._measurements.begin(link, size_bytes, answer)

        self._run_apart(begin)
        return answer

    def on_message(self, link: PeerLink, blob: bytes) -> None:
        """Takes a message of any link."""
        try:
            message = messages.decode(blob)
        except (msgspec.DecodeError, ValueError) as error:
            # Another version, or no engine at all: nothing that it says can be relied on.
            log.error("closed a link that sent no message of this version: %s", error)
            link.close()
            return
        self._post(partial(self._receive, link, message))

    def on_closed(self, link: PeerLink) -> None:
        """Notes that a link is gone."""
        self._post(partial(self._closed, link))

    def _run(self) -> None:
        while True:
            is_busy = bool(self._sources or self._destinations)
            try:
                job = self._jobs.get(timeout=TICK_S if is_busy else IDLE_S)
            except queue.Empty:
                job = _nothing
            if job is None:
                return
            try:
                job()
                self._look_at_timers()
            except Exception:
                # A bug of one move must not stop the others; its timer ends it.
                log.exception("a job of the migration agent failed")

    def _moves(self) -> list[SourceMove | DestinationMove]:
        return [*self._sources.values(), *self._destinations.values()]

    def _look_at_timers(self) -> None:
        now_s = self._clock()
        for move in self._moves():
            if move.deadline_s <= now_s:
                move.timed_out()
        for source in list(self._sources.values()):
            source.tick(now_s)
            if source.is_told:
                del self._sources[source.wish.migration_id]
        for destination in list(self._destinations.values()):
            if destination.is_forgettable:
                del self._destinations[destination.move]

    def _begin(
        self,
        wish: MoveWish,
        link: PeerLink,
        invitation: Invitation,
        answer: "Future[Refusal | None]",
    ) -> None:
        refusal = self._refusal(wish)
        if refusal is not None:
            answer.set_result(refusal)
            return
        self._side.look(
            wish.request_id,
            lambda found: self._post(partial(self._looked, wish, link, invitation, answer, found)),
        )

    def _looked(
        self,
        wish: MoveWish,
        link: PeerLink,
        invitation: Invitation,
        answer: "Future[Refusal | None]",
        found: Look | Refusal,
    ) -> None:
        # Another move of the request may have begun while the step thread looked.
        refusal = found if isinstance(found, Refusal) else self._refusal(wish)
        if refusal is None:
            assert isinstance(found, Look)
            move = SourceMove(self._office, wish, found, link, invitation)
            self._sources[wish.migration_id] = move
            move.begin()
        answer.set_result(refusal)

    def _refusal(self, wish: MoveWish) -> Refusal | None:
        if why := self._why_disabled(wish.asked_by):
            return Refusal("disabled", why)
        if any(
            m.wish.request_id == wish.request_id and not m.is_over for m in self._sources.values()
        ):
            return Refusal("refused", "the request is being moved already")
        return self._too_many()

    def _why_disabled(self, asked_by: str) -> str:
        if not self._settings.is_on:
            return "migration is switched off (FERRY_MIGRATION)"
        return "" if asked_by == SELF_TEST else self._forbidden

    def _too_many(self) -> Refusal | None:
        going = sum(not m.is_over for m in self._sources.values())
        coming = sum(not m.is_over for m in self._destinations.values())
        if going + coming < self._settings.at_once:
            return None
        why = (
            f"{self._settings.instance} has {going + coming} moves under way, its most"
            " (FERRY_MIGRATIONS_AT_ONCE)"
        )
        return Refusal("too_many", why)

    def _receive(self, link: PeerLink, message: messages.Message) -> None:
        if isinstance(message, messages.Measure | messages.Measured):
            self._measurements.on_message(link, message)
        elif isinstance(message, messages.Prepare):
            self._prepared(link, message)
        elif isinstance(message, messages.ToSource):
            source = self._sources.get(message.move)
            if source is not None:
                source.on_message(message)
        else:
            self._to_destination(link, message)

    def _prepared(self, link: PeerLink, prepare: messages.Prepare) -> None:
        refusal = self._why_not_here(prepare)
        if refusal is not None:
            # Nothing is kept: a question about a move that is unknown is answered the same way.
            self._send(link, messages.Refused(prepare.move, refusal.code, refusal.why, False))
            if prepare.offer is not None:
                # The source keeps the channel for its next move here.
                self._plane.join(prepare.channel, prepare.offer)
                self._joined.setdefault(link, set()).add(prepare.channel)
            return
        if prepare.offer is not None:
            self._joined.setdefault(link, set()).add(prepare.channel)
        move = DestinationMove(self._office, prepare, link)
        self._destinations[prepare.move] = move
        move.begin()

    def _why_not_here(self, prepare: messages.Prepare) -> Refusal | None:
        if why := self._why_disabled(prepare.asked_by):
            return Refusal("disabled", why)
        if self._closed_door and prepare.asked_by != SELF_TEST:
            return Refusal("refused", f"it takes no requests: it is {self._closed_door}")
        if prepare.move in self._destinations:
            return Refusal("refused", "a move of this id is known here already")
        if prepare.shape != self._shape:
            return Refusal(
                "refused", f"their KV caches differ: {_difference(prepare.shape, self._shape)}"
            )
        return self._too_many()

    def _to_destination(self, link: PeerLink, message: messages.ToDestination) -> None:
        move = self._destinations.get(message.move)
        if move is not None:
            if isinstance(message, messages.Ask):
                move.link = link
            move.on_message(message)
        elif isinstance(message, messages.Ask):
            why = f"{self._settings.instance} does not know the move"
            self._send(link, messages.Refused(message.move, "refused", why, False))

    def _closed(self, link: PeerLink) -> None:
        for incarnation in [i for i, known in self._links.items() if known is link]:
            del self._links[incarnation]
        channels = [*self._idle.pop(link, ()), *self._joined.pop(link, ())]
        for channel in channels:
            self._plane.close(channel)
        self._measurements.on_closed(link)
        for move in self._moves():
            if move.link is link:
                move.peer_lost()

    def _link_to(self, incarnation: str, invitation: Invitation) -> PeerLink:
        """Returns the link to a destination, made if there is none. Waits. Raises: OSError."""
        known = self._links.get(incarnation)
        if known is not None:
            return known
        link = self._connect(invitation)
        # Two at the same time are both good; the later one is used on.
        self._post(partial(self._links.__setitem__, incarnation, link))
        return link

    def _connect(self, invitation: Invitation) -> PeerLink:
        timeout_s = self._settings.pause_timeout_s
        return self._connect_to(invitation, timeout_s, self.on_message, self.on_closed)

    def _send(self, link: PeerLink, message: messages.Message) -> None:
        try:
            link.send(messages.encode(message))
        except OSError:
            # `on_closed` follows and tells the moves.
            link.close()

    def _take_channel(self, link: PeerLink) -> str:
        idle = self._idle.get(link)
        return idle.pop() if idle else ""

    def _give_channel(self, link: PeerLink, channel: str) -> None:
        self._idle.setdefault(link, []).append(channel)

    def _post(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)

    def _run_apart(self, job: Callable[[], None]) -> None:
        self._apart.submit(_logged, job)


def _logged(job: Callable[[], None]) -> None:
    try:
        job()
    except Exception:
        log.exception("a waiting job of the migration agent failed")
        raise


def _difference(theirs: KvShape, ours: KvShape) -> str:
    fields = [n for n in KvShape.__slots__ if getattr(theirs, n) != getattr(ours, n)]
    return ", ".join(f"{n} {getattr(theirs, n)} there, {getattr(ours, n)} here" for n in fields)


def _nothing() -> None:
    return
