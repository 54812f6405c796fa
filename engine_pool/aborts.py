"""Aborts of requests that may be on the move.

A web process tells the instance that it knows. The request may be leaving it at that moment, so the
abort goes after it: to any other instance that sends a frame of the request or reports it, as long
as the request was ended a short while ago. Nobody is told more than once a second.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from engine_pool import view
from engine_pool.live_view import LiveView
from engine_pool.token_log import TokenFrame
from engine_pool.token_reader import TokenReader
from engine_pool.types import InstanceLoad, InstanceName, InstanceStatus

RECENT_S: Final = 10.0
"""How long an abort is remembered after the last sign of its request. A move that has begun ends
within seconds, and whoever has a request shows it every 0.1 s."""
RECENT_MAX: Final = 10_000
"""Aborts that are remembered, about 3 MB; the oldest are forgotten beyond it."""
AGAIN_S: Final = 1.0
"""An instance that still has the request so long after it was told is told again: the request may
have left it and come back, or the abort was lost."""


class RecentAborts:
    """Which requests were ended lately, and which instances were told. Time is the caller's."""

    def __init__(self) -> None:
        self._told: OrderedDict[str, tuple[float, dict[InstanceName, float]]] = OrderedDict()
        """request id -> (last sign of it, when each instance was told); oldest sign first."""

    def __len__(self) -> int:
        return len(self._told)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._told

    def add(self, request_id: str, told: Sequence[InstanceName], now_s: float) -> None:
        """Remembers a request that was just ended, and who was told."""
        self._told[request_id] = (now_s, dict.fromkeys(told, now_s))
        self._told.move_to_end(request_id)
        while len(self._told) > RECENT_MAX:
            self._told.popitem(last=False)

    def must_tell(self, request_id: str, instance: InstanceName, now_s: float) -> bool:
        """Says whether an instance that has the request is to be told, and takes it as told."""
        known = self._told.get(request_id)
        if known is None:
            return False
        told = known[1]
        self._told[request_id] = (now_s, told)
        self._told.move_to_end(request_id)
        if now_s - told.get(instance, float("-inf")) < AGAIN_S:
            return False
        told[instance] = now_s
        return True

    def forget_old(self, now_s: float) -> None:
        """Drops what nobody has shown for RECENT_S."""
        while self._told:
            request_id, (seen_s, _) = next(iter(self._told.items()))
            if now_s - seen_s < RECENT_S:
                return
            del self._told[request_id]


class Aborts:
    """Ends requests at their engines, wherever those are. One a web process."""

    def __init__(
        self, live: LiveView, reader: TokenReader, tell: Callable[[str, list[str]], object]
    ) -> None:
        """`tell`: sends aborts to an actor, soon."""
        self._live = live
        self._reader = reader
        self._tell = tell
        self._recent = RecentAborts()
        self._listens = False
        reader.on_stray = self._on_stray

    def abort(self, request_ids: Sequence[str]) -> None:
        """Ends those of the requests whose streams are open here, at their engines too."""
        now_s = time.monotonic()
        by_actor: dict[str, list[str]] = {}
        for stream in self._reader.streams_of(request_ids):
            self._reader.close(stream.request_id)
            if not stream.instance:
                # It was not sent yet, and will not be.
                continue
            places = {stream.instance: stream.actor}
            places |= {h.instance: h.actor for h in self._live.holders(stream.request_id)}
            told = [i for i, actor in places.items() if actor]
            for instance in told:
                by_actor.setdefault(places[instance], []).append(stream.request_id)
            self._recent.add(stream.request_id, told, now_s)
        self._recent.forget_old(now_s)
        self._send(by_actor)
        self._listen()

    def abort_anywhere(self, request_id: str, sent_to: InstanceName) -> None:
        """Ends a request, whichever web process has its stream; that one ends with the engine's
        last frame. `sent_to`: the instance that took it first."""
        places = {h.instance: h.actor for h in self._live.holders(request_id)}
        status = self._live.statuses.get(sent_to)
        # What is not sent yet from here must not be dropped: its stream would never end.
        is_ours = bool(self._reader.streams_of([request_id]))
        if not places and status is not None and not is_ours:
            places[status.instance] = status.actor
        told = {instance: actor for instance, actor in places.items() if actor}
        self._recent.add(request_id, list(told), time.monotonic())
        for actor in told.values():
            self._send({actor: [request_id]})
        # Where it is going to, or will be shown soon, is told then.
        self._listen()

    def _on_stray(self, frame: TokenFrame) -> None:
        if frame.request_id not in self._recent or frame.is_last:
            return
        status = self._live.statuses.get(InstanceName(frame.instance))
        if status is not None:
            self._chase(status, [frame.request_id])

    def _on_change(self, change: view.Change) -> None:
        if not isinstance(change, InstanceLoad):
            return
        self._recent.forget_old(time.monotonic())
        if not self._recent:
            # Not now: the view is going through its listeners.
            asyncio.get_running_loop().call_soon(self._listen)
            return
        here = (r.request_id for r in (*change.running, *change.waiting))
        shown = [i for i in here if i in self._recent]
        status = self._live.statuses.get(change.instance)
        if shown and status is not None:
            self._chase(status, shown)

    def _chase(self, status: InstanceStatus, request_ids: Sequence[str]) -> None:
        now_s = time.monotonic()
        if not status.actor:
            return
        untold = [i for i in request_ids if self._recent.must_tell(i, status.instance, now_s)]
        self._send({status.actor: untold} if untold else {})

    def _send(self, by_actor: dict[str, list[str]]) -> None:
        for actor, ids in by_actor.items():
            self._tell(actor, ids)

    def _listen(self) -> None:
        """Hears reports only while there is something to look for: they are many."""
        is_needed = len(self._recent) > 0
        if is_needed and not self._listens:
            self._live.add_listener(self._on_change)
        elif self._listens and not is_needed:
            self._live.remove_listener(self._on_change)
        self._listens = is_needed
