"""How long a request that moves stands still: live, stop-and-copy, and recompute, in one run.

Two real vLLM engines, each in its own process as in production (engine host, step thread,
publisher, token log in a real store, agent, links, gloo channels), without Ray. The model is the
tests' tiny Llama in fp32 with a context of 8192 tokens (`--larger`: one of 10 million parameters);
blocks have vLLM's default size on CPU, 128 tokens. The reader is a web process's: downtime is the
gap between the source's last token and the destination's first one as the reader sees them.

    python -m benchmarks.migration [--moves 20] [--lengths 128,512] [--quick] [--save FILE]
        [--larger] [--model FOLDER]

- live: the product's move
- stop-and-copy: the same code without a copy before the pause
- recompute: the reader aborts at the source and sends prompt and outputs to the destination

Moves of all lengths and methods come in random order, first with the engines idle but for the
moving request, then with four more requests on each. Every answer that was moved is compared with
one that stayed, greedy and seeded in turns. No prefix cache helps: each request has its own salt.

The last line is JSON (migration_figures.py); `--save` keeps it for `benchmarks.migration_plot`.
Exit code 1: an answer changed, or a move failed.
"""

import argparse
import asyncio
import gc
import itertools
import json
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.migration_engine import LIVE, STOP_AND_COPY, EngineDoor
from benchmarks.migration_figures import RECOMPUTE, Moved, figures, table
from benchmarks.migration_rig import (
    Heard,
    Interrupted,
    Rig,
    end_on_signals,
    make_request,
    prompt_of,
    rigged,
)
from migration.report import MoveReport
from tests.tiny_model import Shape

if TYPE_CHECKING:
    from vllm import SamplingParams

TINY: Final = Shape(max_model_len=8192)
"""The tests' model with a longer context: a step is little more than the interpreter's work, so it
shows what a move itself costs."""
LARGER: Final = Shape(
    max_model_len=4096,
    layers=6,
    hidden=384,
    heads=6,
    kv_heads=3,
    head_size=64,
    intermediate=1024,
)
"""10 million parameters, 9,216 bytes of KV cache a token in fp32: a step is more than the
interpreter's work, and a prefill of 3,000 tokens takes a second."""
OUTPUT_TOKENS: Final = 96
ASK_AFTER_TOKENS: Final = 16
"""Output tokens before the move is asked for: gaps to compare the pause with."""
LENGTHS: Final = (128, 512, 1024, 3000, 8000)
"""Tokens when the move is asked for; with the answer's rest, the last is about the longest that the
tiny model takes."""
QUICK_MOVES: Final = 3
TRIES: Final = 3
"""On a busy machine an agent's thread may wait so long that the request ends before it moves."""
METHODS: Final = (LIVE, STOP_AND_COPY, RECOMPUTE)
BACKGROUND: Final = 4
"""Requests beside the moving one, on each engine."""
BACKGROUND_PROMPT_TOKENS: Final = 128
BACKGROUND_OUTPUT_TOKENS: Final = 600
RANDOM_KV_GIB: Final = 0.4
"""46,000 tokens of the larger random model: memory is not what is measured."""
OTHER_KV_GIB: Final = 1.0
"""About 45,000 tokens of the default model."""


@dataclass(frozen=True, slots=True)
class Case:
    """One move to be made. Its prompt and sampling are functions of `length` and `number`."""

    length: int
    number: int
    method: str

    @property
    def key(self) -> tuple[int, int]:
        return self.length, self.number

    @property
    def prompt(self) -> list[int]:
        return prompt_of(self.length - ASK_AFTER_TOKENS, self.length * 31 + self.number)

    @property
    def is_greedy(self) -> bool:
        return self.number % 2 == 0

    def sampling(self, output_tokens: int = OUTPUT_TOKENS) -> "SamplingParams":
        from vllm import SamplingParams

        if self.is_greedy:
            return SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True)
        return SamplingParams(
            temperature=0.9, seed=1 + abs(self.number), max_tokens=output_tokens, ignore_eos=True
        )


@dataclass
class Bench:
    """One run of the benchmark."""

    rig: Rig
    random: random.Random
    moved: list[Moved] = field(default_factory=list)
    answers: dict[tuple[int, int], list[tuple[Case, bool, list[int]]]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    async def run(self, cases: list[Case], *, is_loaded: bool) -> None:
        """Makes moves in random order."""
        self.random.shuffle(cases)
        for number, case in enumerate(cases):
            doors = list(self.rig.doors)
            self.random.shuffle(doors)
            try:
                for _ in range(TRIES):
                    if await self._move(case, *doors, is_loaded=is_loaded):
                        break
                else:
                    self.problems.append(f"{case}: it always ended before it was moved")
            except (RuntimeError, TimeoutError) as error:
                self.problems.append(f"{case}: {error or 'timed out'}")
            if number % 30 == 29:
                print(f"{number + 1} of {len(cases)} moves", flush=True)

    async def _move(
        self, case: Case, source: EngineDoor, destination: EngineDoor, *, is_loaded: bool
    ) -> bool:
        """Makes one move. Returns False when the request ended first. Raises: RuntimeError,
        TimeoutError."""
        request = make_request(case.prompt, case.sampling())
        heard = await self.rig.submit(source, request)
        await heard.until(ASK_AFTER_TOKENS)
        # Not at the same moment of a step every time.
        await asyncio.sleep(self.random.uniform(0.0, 0.01))
        asked_s = time.monotonic()
        report = None
        if case.method == RECOMPUTE:
            tokens, gap_ms, times_s = await self._recompute(case, heard, source, destination)
        else:
            move, refused = await self.rig.migrate(
                case.method, request.request_id, source, destination
            )
            await heard.until_over()
            if refused is not None:
                raise RuntimeError(f"refused: {refused[1]}")
            report = await self.rig.report(move)
            if report is not None and report.abort_code == "request_finished":
                return False
            if heard.failure or not heard.visits:
                raise RuntimeError(heard.failure or f"it stayed: {_end_of(report)}")
            tokens, gap = heard.tokens, heard.visits[0].gap_ms
            assert gap is not None, "both frames came over the channel"
            gap_ms, times_s = gap, source_times_s(heard, source)
        self.answers.setdefault(case.key, []).append((case, is_loaded, tokens))
        self.moved.append(
            Moved(
                method=case.method,
                length=case.length,
                is_loaded=is_loaded,
                asked_s=asked_s,
                source_times_s=times_s,
                gap_ms=gap_ms,
                report=report,
                source_steps=await source.steps(times_s[0]),
                destination_steps=await destination.steps(times_s[0]),
            )
        )
        await self.rig.forget(heard)
        return True

    async def _recompute(
        self, case: Case, heard: Heard, source: EngineDoor, destination: EngineDoor
    ) -> tuple[list[int], float, tuple[float, ...]]:
        """Aborts and goes on elsewhere. Returns all tokens, the gap in ms, times at the source."""
        await source.abort([heard.request_id])
        await heard.until_over()
        before = heard.tokens
        left = OUTPUT_TOKENS - len(before)
        if left < 1:
            raise RuntimeError("it ended before it was aborted")
        again = make_request([*case.prompt, *before], case.sampling(left))
        second = await self.rig.submit(destination, again)
        await second.until_over()
        if second.failure:
            raise RuntimeError(second.failure)
        times_s = source_times_s(heard, source)
        tokens = before + second.tokens
        gap_ms = (second.frames[0][0] - times_s[-1]) * 1000
        await self.rig.forget(second)
        return tokens, gap_ms, times_s

    async def compare(self) -> dict[str, int]:
        """Runs each request once more, unmoved. Returns how many moved answers are the same."""
        made = identical = recomputed = recomputed_identical = 0
        for answers in self.answers.values():
            case = answers[0][0]
            heard = await self.rig.submit(
                self.rig.doors[0], make_request(case.prompt, case.sampling())
            )
            await heard.until_over()
            for moved, is_loaded, tokens in answers:
                is_same = tokens == heard.tokens
                if moved.method == RECOMPUTE:
                    # A seeded one has a generator that starts anew.
                    recomputed += moved.is_greedy
                    recomputed_identical += moved.is_greedy and is_same
                    continue
                made += 1
                identical += is_same
                if not is_same:
                    at = next(
                        (
                            i
                            for i, (a, b) in enumerate(zip(tokens, heard.tokens, strict=False))
                            if a != b
                        ),
                        min(len(tokens), len(heard.tokens)),
                    )
                    self.problems.append(f"{moved}, loaded {is_loaded}: differs at token {at}")
            await self.rig.forget(heard)
        return {
            "migrations": made,
            "identical": identical,
            "recomputed_greedy": recomputed,
            "recomputed_identical": recomputed_identical,
        }


def _end_of(report: MoveReport | None) -> str:
    if report is None:
        return "no report"
    return f"{report.state.value} after {len(report.stages)} stages, {report.abort_reason}"


def source_times_s(heard: Heard, source: EngineDoor) -> tuple[float, ...]:
    """Returns when the reader saw the source's tokens."""
    return tuple(at_s for at_s, f in heard.frames if f.instance == source.instance and f.token_ids)


@asynccontextmanager
async def background(rig: Rig) -> AsyncIterator[None]:
    """Keeps BACKGROUND requests running on each engine, begun at different times."""
    from vllm import SamplingParams

    seeds = itertools.count(1_000_000)

    async def one(door: EngineDoor, first_tokens: int) -> None:
        tokens = first_tokens
        while True:
            prompt = prompt_of(BACKGROUND_PROMPT_TOKENS, next(seeds))
            sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
            heard = await rig.submit(door, make_request(prompt, sampling))
            await heard.until_over()
            await rig.forget(heard)
            tokens = BACKGROUND_OUTPUT_TOKENS

    tasks = [
        asyncio.create_task(one(door, BACKGROUND_OUTPUT_TOKENS * (n + 1) // BACKGROUND))
        for door in rig.doors
        for n in range(BACKGROUND)
    ]
    try:
        yield
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        ids = list(rig.ear.heard)
        for door in rig.doors:
            await door.abort(ids)
        for request_id in ids:
            await rig.ear.heard[request_id].until_over()


async def measure(
    lengths: Sequence[int], moves: int, seed: int, model: Path | None, shape: Shape
) -> tuple[Bench, dict[str, int]]:
    """Makes all moves and compares the answers."""
    async with rigged(
        2,
        shape=shape,
        kv_cache_gib=OTHER_KV_GIB if model else RANDOM_KV_GIB,
        model=model,
        dtype="auto" if model else "float32",
    ) as rig:
        bench = Bench(rig, random.Random(seed))
        # The first moves connect, and meet code that never ran: not measured.
        warm_up = [
            Case(length, -1 - n, m) for m in METHODS for n in range(4) for length in (128, 1024)
        ]
        await bench.run(warm_up, is_loaded=False)
        gc.collect()
        gc.freeze()
        bench.moved.clear()
        bench.problems.clear()

        def cases() -> list[Case]:
            return [Case(x, n, m) for x in lengths for n in range(moves) for m in METHODS]

        await bench.run(cases(), is_loaded=False)
        async with background(rig):
            await bench.run(cases(), is_loaded=True)
        return bench, await bench.compare()


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--moves", type=int, default=20, help="for each method, length and load")
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)))
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_MOVES} moves of each")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--larger", action="store_true", help="the larger random model, to 4096")
    parser.add_argument("--model", type=Path, help="another model's folder")
    parser.add_argument("--save", type=Path, help="keeps the JSON there, for migration_plot")
    return parser.parse_args()


def main() -> int:
    options = read_options()
    end_on_signals()
    moves = QUICK_MOVES if options.quick else options.moves
    lengths = sorted(map(int, options.lengths.split(",")))
    busy_before = os.getloadavg()[0]
    began_s = time.monotonic()
    try:
        shape = LARGER if options.larger else TINY
        run = measure(lengths, moves, options.seed, options.model, shape)
        bench, counts = asyncio.run(run)
    except (KeyboardInterrupt, Interrupted) as error:
        print(f"interrupted: {type(error).__name__}", flush=True)
        return 130
    for problem in bench.problems:
        print(problem)
    result = {
        **counts,
        "failed": len(bench.problems),
        **figures(bench.moved),
        "moves_of_each": moves,
        "block_size_tokens": 128,
        "machine_load_before": round(busy_before, 2),
        "took_s": round(time.monotonic() - began_s),
    }
    print(table(result))
    line = json.dumps(result)
    if options.save:
        options.save.write_text(line + "\n")
    print(line)
    return int(bool(bench.problems) or counts["identical"] != counts["migrations"])


if __name__ == "__main__":
    sys.exit(main())
