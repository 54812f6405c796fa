"""A request's first frame says how long the request waited for its engine, and no other does."""

import threading
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from engine_pool.frames import combine
from engine_pool.load_book import LoadBook
from engine_pool.ports import EngineLoad, StepOutput
from engine_pool.step_loop import StepLoop
from engine_pool.token_log import TokenFrame, decode_all, encode
from engine_pool.types import InstanceName
from tests.engine_pool.fake_engine import FakeEngine
from tests.engine_pool.make import request

PATIENCE_S = 60.0


class ChunkedEngine(FakeEngine):
    """Takes two steps for a prompt: one runs without an output."""

    def __init__(self) -> None:
        super().__init__()
        self.is_open.set()
        self.steps = 0

    def step(self) -> list[StepOutput]:
        self.steps += 1
        return [] if self.steps == 1 else super().step()

    def load(self) -> EngineLoad:
        load = super().load()
        # A request waits until its first step.
        return load if self.steps else replace(load, running=(), waiting=load.running)


class Kept:
    def __init__(self) -> None:
        self.frames: list[TokenFrame] = []
        self.has_ended = threading.Event()

    def publish(self, frames: Sequence[TokenFrame], firsts: frozenset[str]) -> None:
        self.frames += frames
        if any(frame.is_last for frame in frames):
            self.has_ended.set()


def test_the_first_frame_says_when_the_first_step_began() -> None:
    # Each look at the clock is a second later: the first step begins at 101, the second at 102 and
    # brings the token at 103.
    seconds = iter(range(101, 200))
    sink, engine = Kept(), ChunkedEngine()
    loop = StepLoop(
        lambda: engine,
        LoadBook(InstanceName("i-01"), "a"),
        sink,
        max_age_s=60,
        on_death=lambda error: None,
        wall_clock=lambda: float(next(seconds)),
    )
    loop.start()
    loop.ready.result(PATIENCE_S)
    made = replace(request("r", max_tokens=2), arrival_unix_s=99.0)
    assert loop.submit([made]).result(PATIENCE_S) == []
    assert sink.has_ended.wait(PATIENCE_S)
    assert loop.stop(PATIENCE_S)
    first, *later = sink.frames
    assert (first.queue_ms, first.prefill_ms) == (2000.0, 2000.0)
    assert all(f.queue_ms is None for f in later)


def test_joined_frames_keep_it() -> None:
    first = TokenFrame("r", 1, 0, (1,), "i-01", queue_ms=5.0, prefill_ms=6.0)
    (joined,) = combine([first, TokenFrame("r", 1, 1, (2,), "i-01")])
    assert (joined.queue_ms, joined.prefill_ms, joined.token_ids) == (5.0, 6.0, (1, 2))


def test_frames_of_an_engine_that_does_not_say_it_are_read() -> None:
    old = msgspec.msgpack.encode(["t", "r", 1, 0, [7], "i-01", None, None, 0, None, None])
    (frame,) = decode_all(len(old).to_bytes(4, "big") + old)
    assert isinstance(frame, TokenFrame)
    assert frame.queue_ms is None
    assert list(decode_all(encode(frame))) == [frame]
