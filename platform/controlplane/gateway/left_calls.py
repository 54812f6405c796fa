"""Calls whose client left while their engines go on: counted here until they end, whoever reads.

A call that another connection resumes is that one's to record, also at another web process. One
that nobody resumes ends here, by its engine or by the abort after its time; so each request is
recorded once, with all that it used.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from controlplane.gateway.call import Call, migration_of
from engine_pool.errors import PoolError, ServerStopping, StreamSuperseded
from engine_pool.stream import Visit
from engine_pool.token_log import TokenFrame


@dataclass(frozen=True, slots=True)
class LeftEnd:
    """How a call ended after its client had left."""

    outcome: str
    """detached: it ran to its end; cancelled: it was aborted; failed."""
    error: PoolError | None = None


Tell = Callable[[LeftEnd], None]


@dataclass(slots=True)
class _Left:
    call: Call
    tell: Tell
    open_ids: set[str]
    is_aborted: bool = False
    errors: list[PoolError] = field(default_factory=list)


class LeftCalls:
    """One a front end; called in its event loop."""

    def __init__(self) -> None:
        self._by_id: dict[str, _Left] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def add(self, call: Call, engine_ids: Sequence[str], tell: Tell) -> None:
        """Keeps a call until the engine requests have ended; tells at once when there are none."""
        left = _Left(call, tell, set(engine_ids))
        self._by_id |= dict.fromkeys(engine_ids, left)
        self._look(left)

    def note(self, frame: TokenFrame, now_s: float) -> None:
        """Counts a frame; nothing for a request that is not here."""
        left = self._by_id.get(frame.request_id)
        if left is None:
            return
        if frame.error is not None:
            error = PoolError(frame.error.message)
            error.code = frame.error.code
            self.fail(frame.request_id, error)
            return
        if frame.token_ids:
            left.call.note_tokens(frame.request_id, len(frame.token_ids), now_s)
            left.call.cached_tokens = max(left.call.cached_tokens, frame.cached_tokens)
        left.call.note_times(frame.queue_ms, frame.prefill_ms)
        if frame.is_last:
            left.is_aborted |= frame.finish_reason == "abort"
            self._end(frame.request_id)

    def visited(self, request_id: str, visit: Visit) -> None:
        """Notes that a request goes on elsewhere; nothing for one that is not here."""
        if left := self._by_id.get(request_id):
            left.call.note_migration(migration_of(left.call, request_id, visit))

    def fail(self, request_id: str, error: PoolError) -> None:
        """Ends a request with an error; nothing for one that is not here."""
        if left := self._by_id.get(request_id):
            left.errors.append(error)
            self._end(request_id)

    def aborted(self, engine_ids: Sequence[str]) -> None:
        """Ends those of the requests that are here: their time to be resumed is over."""
        for engine_id in engine_ids:
            if left := self._by_id.get(engine_id):
                left.is_aborted = True
                self._end(engine_id)

    def _end(self, engine_id: str) -> None:
        left = self._by_id.pop(engine_id)
        left.open_ids.discard(engine_id)
        self._look(left)

    def _look(self, left: _Left) -> None:
        if left.open_ids:
            return
        if any(isinstance(e, StreamSuperseded | ServerStopping) for e in left.errors):
            # Somebody reads on, or the worker finds it in the store (usage/unbilled.py).
            return
        if left.errors:
            left.tell(LeftEnd("failed", left.errors[0]))
        else:
            left.tell(LeftEnd("cancelled" if left.is_aborted else "detached"))
