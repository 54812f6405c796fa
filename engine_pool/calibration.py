"""Measures what an engine's steps take; calibration_sizes.py says of which sizes.

Times are medians over several tries; each size runs once before it counts. Nothing else may use the
engine's cores meanwhile, and no prefix cache helps: each request has a salt of its own.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final, Protocol

from engine_pool.calibration_sizes import (
    DECODE_STEPS,
    SETTLE_STEPS,
    Effort,
    Room,
    batch_sizes,
    prompt_sizes,
)
from engine_pool.ports import EngineLoad, EngineRequest, StepOutput
from engine_pool.simulator.costs import StepCosts
from engine_pool.simulator.fitting import DecodePoint, PrefillPoint
from engine_pool.types import RequestId

MIXED_SEQUENCES: Final = 8
MIXED_CONTEXT: Final = 64
MIXED_PROMPTS: Final = (64, 256, 512)
"""Tokens of the prompts that are computed beside a batch that decodes."""
STEPS_MAX: Final = 10_000
"""A prefill that takes more steps does not get on."""


class MeasuredEngine(Protocol):
    """What is used of an engine; see ports.Engine."""

    def add(self, request: EngineRequest) -> None: ...

    def abort(self, request_ids: Sequence[RequestId]) -> None: ...

    def has_work(self) -> bool: ...

    def step(self) -> list[StepOutput]: ...

    def load(self) -> EngineLoad: ...


Probe = Callable[[str, int, int], EngineRequest]
"""Makes a request of an id, prompt tokens and output tokens (MovingEngine.probe)."""
Tell = Callable[[str], None]
"""Shows a line of progress."""


class CalibrationError(RuntimeError):
    """An engine that cannot be measured; the message says why."""


class Bench:
    """Steps one engine and looks at the clock."""

    def __init__(
        self,
        engine: MeasuredEngine,
        probe: Probe,
        room: Room,
        effort: Effort,
        *,
        tell: Tell,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._engine = engine
        self._probe = probe
        self._room = room
        self._effort = effort
        self._tell = tell
        self._clock = clock
        self._numbers = count(1)

    def prefills(self) -> list[PrefillPoint]:
        """Measures prompts alone and together. Raises: CalibrationError."""
        points: list[PrefillPoint] = []
        for size in prompt_sizes(self._room):
            first_ms, _ = self._prefill(size)
            is_long = first_ms > self._effort.longest_s * 1000
            # A long one is not held up by what a first run costs.
            tries = [self._prefill(size) for _ in range(1 if is_long else self._effort.tries)]
            ms, steps = statistics.median(t[0] for t in tries), tries[0][1]
            points.append(PrefillPoint(size, ms, steps))
            self._tell(f"prefill {len(size)} x {size[0]:>5} tokens {ms:10.1f} ms")
            if is_long:
                break
        return points

    def decodes(self) -> list[DecodePoint]:
        """Measures steps of growing batches of each context. Raises: CalibrationError."""
        return [
            point
            for context, batches in batch_sizes(self._room, self._effort).items()
            for point in self._decodes(context, batches)
        ]

    def mixed_ratio(self, costs: StepCosts) -> float | None:
        """Returns what a step takes that computes a prompt beside a batch that decodes, against
        prefill and decode step one after the other by `costs`; the median over several prompts.
        None when no such step fits. Raises: CalibrationError."""
        room, ratios = self._room, []
        longest = MIXED_CONTEXT + len(MIXED_PROMPTS) * self._effort.tries + SETTLE_STEPS + 1
        batch_size = min(MIXED_SEQUENCES, room.max_running - 1)
        if batch_size < 1 or not room.holds(batch_size, longest):
            return None
        batch = self._begin(batch_size, MIXED_CONTEXT)
        free = room.capacity_tokens - room.blocks_of(batch_size, longest) * room.block_size_tokens
        for prompt in (n for n in MIXED_PROMPTS if n < min(free, room.max_model_len)):
            for _ in range(self._effort.tries):
                parts_ms = costs.prefill_ms([prompt]) + costs.decode_ms(
                    batch_size, sum(batch.values())
                )
                one = self._probe(f"calibration-{next(self._numbers)}", prompt, 1)
                self._engine.add(one)
                began_s = self._clock()
                got = self._count(batch)
                took_ms = (self._clock() - began_s) * 1000
                if one.request_id in got and len(got) == batch_size + 1:
                    ratios.append(took_ms / parts_ms)
        self._end(batch)
        return statistics.median(ratios) if ratios else None

    def slowdown(self, sequences: int, context: int, busy: "Busy") -> float:
        """Returns how much longer decode steps take while `busy` is, as a share, at least 0."""
        batch = self._begin(sequences, context)
        quiet: list[float] = []
        loaded: list[float] = []
        # In turns: whatever else changes meanwhile changes both.
        for _ in range(self._effort.tries):
            quiet += self._steps(batch)
            busy.begin()
            try:
                loaded += self._steps(batch)
            finally:
                busy.end()
        self._end(batch)
        return max(0.0, statistics.fmean(loaded) / statistics.fmean(quiet) - 1)

    def _prefill(self, size: Sequence[int]) -> tuple[float, int]:
        """Returns ms and steps until each of the prompts has its token."""
        requests = [self._probe(f"calibration-{next(self._numbers)}", n, 1) for n in size]
        for r in requests:
            self._engine.add(r)
        began_s, steps = self._clock(), 0
        waiting = {r.request_id for r in requests}
        while waiting:
            waiting -= {o.request_id for o in self._step()}
            steps += 1
            if steps > STEPS_MAX:
                raise CalibrationError(f"a prefill of {sum(size)} tokens does not end")
        took_ms = (self._clock() - began_s) * 1000
        self._rest()
        return took_ms, steps

    def _decodes(self, context: int, batches: Sequence[int]) -> list[DecodePoint]:
        points: list[DecodePoint] = []
        running: dict[RequestId, int] = {}
        for batch in batches:
            began_s = self._clock()
            running |= self._begin(batch - len(running), context, running)
            took_s = self._clock() - began_s
            tokens_before = sum(running.values())
            ms = statistics.median(self._steps(running))
            tokens = (tokens_before + sum(running.values())) // 2
            points.append(DecodePoint(batch, tokens, ms))
            self._tell(f"decode  {batch:>3} sequences, {tokens:>6} KV tokens {ms:8.1f} ms")
            if took_s > self._effort.longest_s * 2:
                break
        self._end(running)
        return points

    def _begin(
        self, sequences: int, context: int, running: dict[RequestId, int] | None = None
    ) -> dict[RequestId, int]:
        """Starts sequences and has them and those that run settle. Returns tokens by id."""
        most = self._room.max_model_len - context
        new = [
            self._probe(f"calibration-{next(self._numbers)}", context, most)
            for _ in range(sequences)
        ]
        for r in new:
            self._engine.add(r)
        batch = {r.request_id: context for r in new}
        waiting, steps = set(batch), 0
        everything = (running or {}) | batch
        while waiting:
            waiting -= self._count(everything)
            steps += 1
            if steps > STEPS_MAX:
                raise CalibrationError(f"{sequences} sequences of {context} tokens do not start")
        for _ in range(SETTLE_STEPS):
            self._count(everything)
        if running is not None:
            running.update({i: everything[i] for i in running})
        return {i: everything[i] for i in batch}

    def _steps(self, batch: dict[RequestId, int]) -> list[float]:
        """Returns what each of DECODE_STEPS steps took in ms."""
        times_ms: list[float] = []
        for _ in range(DECODE_STEPS):
            began_s = self._clock()
            got = self._count(batch)
            times_ms.append((self._clock() - began_s) * 1000)
            if len(got) != len(batch):
                raise CalibrationError(
                    f"only {len(got)} of {len(batch)} sequences got a token in one step"
                )
        return times_ms

    def _count(self, batch: dict[RequestId, int]) -> set[RequestId]:
        """Steps once, counts the tokens, returns who got one."""
        outputs = self._step()
        for o in outputs:
            if o.request_id in batch:
                batch[o.request_id] += len(o.token_ids)
        return {o.request_id for o in outputs}

    def _step(self) -> list[StepOutput]:
        if not self._engine.has_work():
            raise CalibrationError("the engine has nothing to do, though requests wait")
        return self._engine.step()

    def _end(self, batch: dict[RequestId, int]) -> None:
        self._engine.abort(list(batch))
        self._rest()

    def _rest(self) -> None:
        """Takes the steps that only tell the engine's parts who has ended."""
        for _ in range(STEPS_MAX):
            if not self._engine.has_work():
                return
            self._engine.step()
        raise CalibrationError("the engine does not come to rest")


class Busy(Protocol):
    """Something that goes on beside the steps."""

    def begin(self) -> None: ...

    def end(self) -> None: ...
