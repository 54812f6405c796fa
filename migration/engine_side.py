"""What a move does to this engine's books: each call becomes a job of the step thread, in order.

A thin door between the agent's thread and the step loop. Answers come back through `answer`, in the
step thread; they only put something into the agent's queue. A read that fails is a refusal; a
change that fails half way ends the engine, whose books could not be trusted any more.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from engine_pool.ports import Engine, EngineRequest
from engine_pool.step_loop import StepLoop
from engine_pool.step_streams import Stream, Watcher
from engine_pool.token_log import StreamError
from migration.ports import Held, MovingEngine, Outgoing, Parked, Refusal

log = logging.getLogger(__name__)

T = TypeVar("T")
Answer = Callable[[T], None]


@dataclass(frozen=True, slots=True)
class Look:
    """A request that could leave, with what its stream knows of it."""

    outgoing: Outgoing
    request: EngineRequest
    expires_in_s: float


class EngineSide:
    """One an engine. Any thread; every method returns at once."""

    def __init__(self, loop: StepLoop, moves_of: Callable[[Engine], MovingEngine]) -> None:
        self._loop = loop
        self._moves_of = moves_of

    def look(self, request_id: str, answer: Answer[Look | Refusal]) -> None:
        """Looks at a request of this engine."""

        def job(engine: Engine) -> None:
            stream = self._loop.stream(request_id)
            if stream is None:
                answer(Refusal("request_finished", "the request is not here (any more)"))
                return
            try:
                found = self._moves_of(engine).look(request_id)
            except Exception as error:
                log.exception("%s: the look failed", request_id)
                found = Refusal("refused", f"{type(error).__name__} while looking at it")
            if isinstance(found, Refusal):
                answer(found)
            else:
                left_s = stream.expires_at_s - self._loop.clock()
                answer(Look(found, stream.request, left_s))

        self._loop.between_steps(job)

    def watch(self, request_id: str, watcher: Watcher | None) -> None:
        """Has a request's tokens told to `watcher`; None: to nobody. Ended ones: `on_ended`."""

        def job(engine: Engine) -> None:
            stream = self._loop.stream(request_id)
            if stream is not None:
                stream.watcher = watcher
            elif watcher is not None:
                watcher.on_ended()

        self._loop.between_steps(job)

    def park(
        self,
        request_id: str,
        end_parked: Callable[[StreamError | None], None],
        answer: Answer[Parked | Refusal],
    ) -> None:
        """Takes a request out of the batch and answers once no step has it in flight.

        `end_parked` is called instead of ending the request while it is parked.
        """

        def job(engine: Engine) -> None:
            stream = self._loop.stream(request_id)
            if stream is None:
                answer(Refusal("request_finished", "the request is not here (any more)"))
                return
            moves = self._moves_of(engine)
            refusal = moves.park(request_id)
            if refusal is not None:
                answer(refusal)
                return
            stream.end_parked = end_parked

            def settle() -> bool:
                if self._loop.stream(request_id) is not stream:
                    why = "the request ended with the step that was in flight"
                    answer(Refusal("request_finished", why))
                    return True
                if stream.end_parked is not end_parked:
                    return True  # unparked or ended meanwhile
                parked = moves.parked(request_id)
                if parked is not None:
                    answer(parked)
                return parked is not None

            self._loop.at_each_boundary(settle)

        self._loop.between_steps(job)

    def unpark(self, request_id: str, epoch: int | None = None) -> None:
        """Lets a request go on; in another epoch when the log was reclaimed. Nothing when it is
        not parked."""

        def job(engine: Engine) -> None:
            stream = self._loop.stream(request_id)
            if stream is None or stream.end_parked is None:
                return
            stream.end_parked = None
            if epoch is not None:
                stream.request = in_epoch(stream.request, epoch)
            self._moves_of(engine).unpark(request_id)

        self._loop.between_steps(job)

    def release(self, request_id: str) -> None:
        """Forgets a parked request that is the destination's now."""

        def job(engine: Engine) -> None:
            stream = self._loop.stream(request_id)
            if stream is None:
                return
            assert stream.end_parked is not None, "only a parked request is released"
            self._moves_of(engine).release(request_id)
            self._loop.let_go(request_id)

        self._loop.between_steps(job)

    def end(self, request_id: str, error: StreamError | None) -> None:
        """Ends a request here, parked or not, with a last frame. Nothing when it is not here."""

        def job(engine: Engine) -> None:
            stream = self._loop.stream(request_id)
            if stream is None:
                return
            if stream.end_parked is not None:
                stream.end_parked = None
                self._moves_of(engine).abort_parked([request_id])
            if error is None:
                self._loop.abort([request_id])
            else:
                self._loop.fail([request_id], error)

        self._loop.between_steps(job)

    def hold(
        self,
        request: EngineRequest,
        output_token_ids: Sequence[int],
        tokens: int,
        answer: Answer[Held | Refusal],
    ) -> None:
        """Makes room for a request that will come."""

        def job(engine: Engine) -> None:
            if self._loop.stream(request.request_id) is not None:
                answer(Refusal("refused", "a request of this id already runs here"))
                return
            answer(self._moves_of(engine).hold(request, output_token_ids, tokens))

        self._loop.between_steps(job)

    def reserve(self, request_id: str, tokens: int, answer: Answer[Held | Refusal]) -> None:
        """Grows the room of a held request."""
        self._loop.between_steps(lambda e: answer(self._moves_of(e).reserve(request_id, tokens)))

    def adopt(
        self,
        request: EngineRequest,
        parked: Parked,
        expires_in_s: float,
        watcher: Watcher,
        answer: Answer[Refusal | None],
    ) -> None:
        """Makes a held request this engine's own."""

        def job(engine: Engine) -> None:
            refusal = self._moves_of(engine).adopt(request.request_id, parked)
            if refusal is None:
                expires_at_s = self._loop.clock() + expires_in_s
                position = len(parked.output_token_ids)
                stream = Stream(request, expires_at_s, position, watcher=watcher)
                self._loop.take_in(request, stream)
            answer(refusal)

        self._loop.between_steps(job)

    def discard(self, request_id: str) -> None:
        """Frees a held request's room; nothing when it is none (any more)."""

        def job(engine: Engine) -> None:
            if self._loop.stream(request_id) is None:
                self._moves_of(engine).discard(request_id)

        self._loop.between_steps(job)

    def step_ms(self) -> tuple[int, float, float | None]:
        """Returns steps so far, their total duration and the mean of the last ones, in ms."""
        clock = self._loop.step_clock
        return clock.steps, clock.total_ms, clock.mean_ms


def in_epoch(request: EngineRequest, epoch: int) -> EngineRequest:
    """Returns the request as the producer of another epoch has it."""
    return replace(request, epoch=epoch)
