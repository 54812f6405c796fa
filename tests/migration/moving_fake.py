"""An engine, a memory plane and links for tests of the agent: exact, quick, stoppable at any point.

The fake engine gives a request the tokens 1, 2, 3, ...: a token that is lost, repeated or computed
from the wrong place is seen at once. Its blocks hold 4 tokens.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace

from engine_pool.ports import EngineLoad, EngineRequest
from engine_pool.types import RequestId
from migration.office import PeerLink
from migration.ports import Held, KvShape, Outgoing, Parked, Refusal, Transfer, TransferFailed
from tests.engine_pool.fake_engine import FakeEngine
from tests.engine_pool.make import request as make_request

BLOCK = 4
STEP_S = 0.001
"""A step takes its time: a move happens in the middle of an answer."""
SHAPE = KvShape("fake", "m", 1, BLOCK, 1000, "f32", "LBHNC", 1)


class MovingFake(FakeEngine):
    """A FakeEngine with books of blocks, and MovingEngine for itself."""

    def __init__(self, blocks: int = 700) -> None:
        super().__init__()
        self.is_open.set()
        self.runs = False
        """Steps as long as there are requests; else only as often as `allowed` says."""
        self.allowed = 0
        self.capacity = blocks
        self.free = list(range(blocks))
        self.tables: dict[str, list[int]] = {}
        self.parked_requests: dict[str, EngineRequest] = {}
        self.held: dict[str, EngineRequest] = {}
        self.queued: dict[str, EngineRequest] = {}
        self.blocks_max = blocks
        """Of one request: what the model's longest takes."""
        self.cached_blocks = 0
        """That `hold` finds in its prefix cache."""
        self.adopt_refusal: Refusal | None = None
        self.written: set[int] = set()
        """Blocks that a transfer has written."""

    @property
    def moves(self) -> "MovingFake":
        return self

    @property
    def shape(self) -> KvShape:
        return SHAPE

    def add(self, request: EngineRequest) -> None:
        super().add(request)
        self._fill(request.request_id)

    def has_work(self) -> bool:
        return super().has_work() and (self.runs or self.allowed > 0)

    def step(self):
        time.sleep(STEP_S)
        self.allowed -= 1
        outputs = super().step()
        for output in outputs:
            if output.finish_reason is None:
                self._fill(output.request_id)
            else:
                self._free_table(output.request_id)
        return outputs

    def abort(self, request_ids: Sequence[RequestId]) -> None:
        super().abort(request_ids)
        for request_id in request_ids:
            if request_id not in self.held:
                self._free_table(request_id)
            self.parked_requests.pop(request_id, None)
            self.queued.pop(request_id, None)

    def load(self) -> EngineLoad:
        used = (self.capacity - len(self.free)) * BLOCK
        return replace(super().load(), used_tokens=used, capacity_tokens=self.capacity * BLOCK)

    def computed(self, request_id: str) -> int:
        """The token produced last has no KV yet."""
        request = self._known(request_id)
        return request.prompt_tokens + self.given[RequestId(request_id)] - 1

    def look(self, request_id: str) -> Outgoing | Refusal:
        if request_id in self.queued:
            return Outgoing(True, False, 0, (), (), 0)
        if request_id not in self.requests:
            return Refusal("request_finished", "not here")
        given = self.given[RequestId(request_id)]
        if given == 0:
            return Outgoing(False, True, 0, (), (), 0)
        computed = self.computed(request_id)
        blocks = tuple(self.tables[request_id][: computed // BLOCK])
        return Outgoing(False, False, computed, tuple(range(1, given + 1)), blocks, 0)

    def park(self, request_id: str) -> Refusal | None:
        name = RequestId(request_id)
        if name in self.queued:
            self.parked_requests[name] = self.queued.pop(name)
        elif name in self.requests:
            self.parked_requests[name] = self.requests.pop(name)
        else:
            return Refusal("request_finished", "not here")
        return None

    def parked(self, request_id: str) -> Parked | None:
        given = self.given[RequestId(request_id)]
        table = tuple(self.tables.get(request_id, ()))
        computed = self.computed(request_id) if table else 0
        used = -(-computed // BLOCK)
        return Parked(computed, tuple(range(1, given + 1)), table[:used], b"state")

    def unpark(self, request_id: str) -> None:
        name = RequestId(request_id)
        request = self.parked_requests.pop(name)
        (self.requests if self.tables.get(name) else self.queued)[name] = request

    def release(self, request_id: str) -> None:
        del self.parked_requests[RequestId(request_id)]
        self._free_table(request_id)

    def hold(self, request, output_token_ids, tokens) -> Held | Refusal:
        need = min(-(-tokens // BLOCK), self.blocks_max)
        if need > len(self.free):
            return Refusal("no_blocks", f"{len(self.free)} free, {need} needed")
        self.held[request.request_id] = request
        self.tables[request.request_id] = [self.free.pop() for _ in range(need)]
        return self._held(request.request_id)

    def reserve(self, request_id: str, tokens: int) -> Held | Refusal:
        table = self.tables[request_id]
        need = min(-(-tokens // BLOCK), self.blocks_max) - len(table)
        if need > len(self.free):
            return Refusal("no_blocks", f"{len(self.free)} free, {need} needed")
        table += [self.free.pop() for _ in range(max(0, need))]
        return self._held(request_id)

    def adopt(self, request_id: str, parked: Parked) -> Refusal | None:
        if self.adopt_refusal is not None:
            return self.adopt_refusal
        name = RequestId(request_id)
        request = self.held.pop(name)
        self.given[name] = len(parked.output_token_ids)
        assert parked.output_token_ids == tuple(range(1, self.given[name] + 1))
        assert parked.state == b"state"
        need = self.tables[name][self.cached_blocks : -(-parked.computed_tokens // BLOCK)]
        assert self.written.issuperset(need), "each block that is not cached was sent"
        if parked.computed_tokens:
            self.requests[name] = request
            self._fill(name)
        else:
            self.queued[name] = request
        return None

    def discard(self, request_id: str) -> None:
        if self.held.pop(RequestId(request_id), None):
            self._free_table(request_id)

    def abort_parked(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            del self.parked_requests[RequestId(request_id)]
            self._free_table(request_id)

    def probe(self, request_id: str, prompt_tokens: int, max_tokens: int) -> EngineRequest:
        return make_request(request_id, prompt_tokens=prompt_tokens, max_tokens=max_tokens)

    def check_empty(self) -> None:
        """Asserts that nothing is left of any request."""
        left = [*self.requests, *self.parked_requests, *self.held, *self.queued]
        assert left == []
        assert sorted(self.free) == list(range(self.capacity)), "all blocks are free, each once"

    def _known(self, request_id: str) -> EngineRequest:
        name = RequestId(request_id)
        return self.requests.get(name) or self.parked_requests[name]

    def _held(self, request_id: str) -> Held:
        return Held(tuple(self.tables[request_id]), self.cached_blocks)

    def _fill(self, request_id: str) -> None:
        request = self.requests[RequestId(request_id)]
        tokens = request.prompt_tokens + self.given[RequestId(request_id)]
        table = self.tables.setdefault(request_id, [])
        while len(table) * BLOCK < tokens:
            table.append(self.free.pop())

    def _free_table(self, request_id: str) -> None:
        for block in self.tables.pop(request_id, ()):
            self.written.discard(block)
            self.free.append(block)


class PlaneHub:
    """What joins the fake planes: a transfer is done when both ends have asked for it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.waiting: dict[str, list[tuple[bool, FakePlane, tuple[int, ...], Future[Transfer]]]]
        self.waiting = {}
        self.broken: set[str] = set()
        self.is_held = False
        """Transfers do not end while it is set."""

    def ask(self, channel: str, sends: bool, plane: "FakePlane", ids, answer) -> None:
        with self.lock:
            if channel in self.broken:
                answer.set_exception(TransferFailed(f"{channel} is broken"))
                return
            self.waiting.setdefault(channel, []).append((sends, plane, tuple(ids), answer))
            self.match(channel)

    def match(self, channel: str) -> None:
        with self.lock:
            asked = self.waiting.get(channel, [])
            senders = [a for a in asked if a[0]]
            receivers = [a for a in asked if not a[0]]
            if self.is_held or not senders or not receivers:
                return
            sender, receiver = senders[0], receivers[0]
            asked.remove(sender)
            asked.remove(receiver)
        assert len(sender[2]) == len(receiver[2]), "both name the same number of blocks"
        receiver[1].engine.written.update(receiver[2])
        receiver[3].set_result(Transfer(len(receiver[2]) * SHAPE.block_bytes, 1.0, 0.5))
        sender[3].set_result(Transfer(len(sender[2]) * SHAPE.block_bytes, 1.0, 0.5))

    def let_go(self) -> None:
        self.is_held = False
        for channel in list(self.waiting):
            self.match(channel)

    def close(self, channel: str) -> None:
        with self.lock:
            self.broken.add(channel)
            asked = self.waiting.pop(channel, [])
        for _, _, _, answer in asked:
            answer.set_exception(TransferFailed(f"{channel} was closed"))


class FakePlane:
    """Implements KvPlane."""

    def __init__(self, hub: PlaneHub, engine: MovingFake) -> None:
        self.hub = hub
        self.engine = engine
        self.offers = 0

    def offer(self, channel: str) -> "Future[str]":
        self.offers += 1
        return _done(f"offer of {channel}")

    def join(self, channel: str, offer: str) -> "Future[None]":
        assert offer == f"offer of {channel}"
        return _done(None)

    def send(self, channel: str, block_ids: Sequence[int], *, urgent: bool) -> "Future[Transfer]":
        answer: Future[Transfer] = Future()
        self.hub.ask(channel, True, self, block_ids, answer)
        return answer

    def receive(self, channel: str, block_ids: Sequence[int]) -> "Future[Transfer]":
        answer: Future[Transfer] = Future()
        self.hub.ask(channel, False, self, block_ids, answer)
        return answer

    def measure_send(self, channel: str, size_bytes: int) -> "Future[Transfer]":
        return self.send(channel, (), urgent=True)

    def measure_receive(self, channel: str, size_bytes: int) -> "Future[Transfer]":
        return self.receive(channel, ())

    def close(self, channel: str) -> None:
        self.hub.close(channel)

    def shut_down(self) -> None:
        return


class MemoryLink:
    """One end of a connection in memory. `gate` may keep messages back or drop them."""

    def __init__(
        self, on_message: Callable[[PeerLink, bytes], None], on_closed: Callable[[PeerLink], None]
    ) -> None:
        self._on_message = on_message
        self._on_closed = on_closed
        self.other: MemoryLink | None = None
        self.is_closed = False
        self.gate: Callable[[bytes], bool] = lambda blob: True
        """Says whether a message goes through."""

    def send(self, blob: bytes) -> None:
        if self.is_closed or self.other is None:
            raise OSError("the link is closed")
        if self.gate(blob):
            self.other._on_message(self.other, blob)

    def close(self) -> None:
        for end in (self, self.other):
            if end is not None and not end.is_closed:
                end.is_closed = True
                end._on_closed(end)


def _done(value):
    future: Future = Future()
    future.set_result(value)
    return future
