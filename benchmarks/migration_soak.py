"""Moves at random under a mixed load on small engines, until something is lost or nothing is.

    python -m benchmarks.migration_soak [--moves 500] [--seed 1]

Four real vLLM engines in their own processes (migration_rig), with so little KV memory that they
preempt requests and refuse moves by themselves. Requests of all kinds come and go; some clients
leave in the middle. Requests that wait, run or are preempted are moved to random engines, several
at once; some moves are cancelled. Looked for: tokens lost, repeated or changed against the same
request unmoved (tokens, end, logprobs), blocks or places that stay taken, moves without an end.

The model is the tests' tiny Llama in fp32: in bf16 the last digits, and so now and then a token,
depend on what else is in a batch, moves or not. The last line is JSON; exit code 1: something was
wrong, and `problems` says what.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.migration_engine import LIVE, EngineDoor
from benchmarks.migration_recipes import Answer, Recipe, answer_of, difference, recipes
from benchmarks.migration_rig import Heard, Interrupted, Rig, end_on_signals, rigged
from migration.report import MoveState
from tests.tiny_model import Shape

ENGINES: Final = 4
MAX_MODEL_LEN: Final = 1024
KV_CACHE_GIB: Final = 0.0034
"""26 blocks for requests in fp32: less than the eight that a step may hold will want."""
MAX_RUNNING: Final = 8
ENVIRON: Final = {"FERRY_MAX_RUNNING": str(MAX_RUNNING)}
CLIENTS: Final = 16
"""Requests at once: some of them wait."""
HOT_SHARE: Final = 0.6
"""Of the new requests, those that go to one engine, another one every HOT_S seconds: it preempts
and queues while others have room to move to."""
HOT_S: Final = 4.0
MOVERS: Final = 6
"""Moves at once."""
LEAVING_SHARE: Final = 0.12
"""Of the clients, those that leave in mid-answer."""
CANCELLED_SHARE: Final = 0.12
CANCEL_WITHIN_S: Final = 0.15
"""A move takes about that long here: a cancellation meets any of its states."""
ABORT_AGAIN_S: Final = 0.5
"""A request that is on its way may be missed by an abort; the web process asks again, too."""
REFERENCES_AT_ONCE: Final = 3
"""No preemptions then."""
SETTLE_S: Final = 30.0
RUN_TIMEOUT_S: Final = 1800.0


@dataclass(eq=False)
class Ride:
    """One request under way."""

    recipe: Recipe
    heard: Heard
    place: EngineDoor
    leaves_at: int | None
    """Output tokens after which its client leaves."""
    moves: int = 0


@dataclass
class Soak:
    """One run."""

    rig: Rig
    random: random.Random
    recipes: tuple[Recipe, ...]
    moves_wanted: int
    rides: dict[str, Ride] = field(default_factory=dict)
    answers: list[tuple[Ride, Answer]] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    """Moves by what became of them."""
    refusals: Counter[str] = field(default_factory=Counter)
    """Moves that never began."""
    queued_moves: int = 0
    problems: list[str] = field(default_factory=list)
    _asked: int = 0

    @property
    def is_done(self) -> bool:
        return self.ends.total() >= self.moves_wanted

    @property
    def by_instance(self) -> dict[str, EngineDoor]:
        return {door.instance: door for door in self.rig.doors}

    async def run(self) -> None:
        """Loads the engines and moves requests until enough moves have ended."""
        async with asyncio.timeout(RUN_TIMEOUT_S), asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(self._client())
            for _ in range(MOVERS):
                group.create_task(self._mover())

    async def _client(self) -> None:
        while not self.is_done:
            recipe, door = self.random.choice(self.recipes), self._door()
            is_leaving = self.random.random() < LEAVING_SHARE
            heard = await self.rig.submit(door, recipe.request())
            leaves_at = self.random.randrange(recipe.max_tokens) if is_leaving else None
            ride = Ride(recipe, heard, door, leaves_at)
            with self._listed(ride):
                if ride.leaves_at is not None:
                    await heard.until(ride.leaves_at)
                    await self._leave(ride)
                await heard.until_over()
            self.answers.append((ride, answer_of(heard)))
            await self.rig.forget(heard)

    def _door(self) -> EngineDoor:
        """Chooses an engine for a new request."""
        doors = self.rig.doors
        hot = int(time.monotonic() / HOT_S) % len(doors)
        return doors[hot] if self.random.random() < HOT_SHARE else self.random.choice(doors)

    @contextmanager
    def _listed(self, ride: Ride) -> Iterator[None]:
        self.rides[ride.heard.request_id] = ride
        try:
            yield
        finally:
            del self.rides[ride.heard.request_id]

    async def _leave(self, ride: Ride) -> None:
        while not ride.heard.is_over:
            for door in self.rig.doors:
                await door.abort([ride.heard.request_id])
            try:
                async with asyncio.timeout(ABORT_AGAIN_S):
                    await ride.heard.until_over()
            except TimeoutError:
                continue

    async def _mover(self) -> None:
        while not self.is_done:
            await asyncio.sleep(self.random.uniform(0.0, 0.05))
            rides = [r for r in self.rides.values() if not r.heard.is_over]
            if not rides:
                continue
            ride = self.random.choice(rides)
            others = [door for door in self.rig.doors if door is not ride.place]
            await self._move(ride, self.random.choice(others))

    async def _move(
        self, ride: Ride, destination: EngineDoor, *, cancelled_share: float = CANCELLED_SHARE
    ) -> None:
        source = ride.place
        request_id = ride.heard.request_id
        move, refused = await self.rig.migrate(LIVE, request_id, source, destination)
        if refused is not None:
            self.refusals[refused[0]] += 1
            return
        if self.random.random() < cancelled_share:
            await asyncio.sleep(self.random.uniform(0.0, CANCEL_WITHIN_S))
            await source.cancel(move)
        report = await self.rig.report(move)
        if report is None:
            self.problems.append(f"the move of {request_id} ({ride.recipe.name}) has no end")
            self.ends["stuck"] += 1
            return
        if report.state is MoveState.COMMITTED:
            ride.moves += 1
            ride.place = destination
            self.queued_moves += report.is_queued
            self.ends["committed"] += 1
        else:
            self.ends[report.abort_code] += 1
        if self.ends.total() % 50 == 0:
            print(f"{self.ends.total()} moves ended: {dict(self.ends)}", flush=True)

    async def compare(self) -> int:
        """Runs each recipe unmoved and compares all answers. Returns how many are right."""
        free = asyncio.Semaphore(REFERENCES_AT_ONCE * len(self.rig.doors))

        async def reference(number: int, recipe: Recipe) -> Answer:
            async with free:
                door = self.rig.doors[number % len(self.rig.doors)]
                heard = await self.rig.submit(door, recipe.request(is_alone=True))
                await heard.until_over()
                await self.rig.forget(heard)
                return answer_of(heard)

        asked = [reference(n, recipe) for n, recipe in enumerate(self.recipes)]
        expected = dict(zip(self.recipes, await asyncio.gather(*asked), strict=True))
        right = 0
        for ride, answer in self.answers:
            why = difference(answer, expected[ride.recipe], may_be_cut=ride.leaves_at is not None)
            right += not why
            if why:
                moved = f"moved {ride.moves} times" if ride.moves else "not moved"
                self.problems.append(f"{ride.recipe.name}, {moved}: {why}")
        return right

    async def check_channels(self) -> None:
        """Moves one request over each way: what aborts left behind must not be in its way."""
        for source in self.rig.doors:
            for destination in self.rig.doors:
                if source is destination:
                    continue
                before = self.ends.copy()
                recipe = self.recipes[0]
                heard = await self.rig.submit(source, recipe.request(is_alone=True))
                await heard.until(2)
                ride = Ride(recipe, heard, source, None)
                await self._move(ride, destination, cancelled_share=0.0)
                await heard.until_over()
                await self.rig.forget(heard)
                if self.ends["committed"] == before["committed"]:
                    way = f"{source.instance} to {destination.instance}"
                    self.problems.append(f"{way}: no move any more, {dict(self.ends - before)}")

    async def check_books(self) -> int:
        """Waits until the engines are empty and says what stays. Returns their preemptions."""
        ids = [answer.request_id for _, answer in self.answers]
        give_up_s = time.monotonic() + SETTLE_S
        preemptions = 0
        for door in self.rig.doors:
            books = await door.books(ids)
            while time.monotonic() < give_up_s and not books.is_empty:
                await asyncio.sleep(0.1)
                books = await door.books(ids)
            if not books.is_empty:
                self.problems.append(f"{door.instance} is not empty: {books}")
            preemptions += books.preemptions_total
        return preemptions


async def soak(moves: int, seed: int) -> dict[str, Any]:
    """Runs the soak. Returns its figures."""
    began_s = time.monotonic()
    rng = random.Random(seed)
    async with rigged(
        ENGINES,
        shape=Shape(max_model_len=MAX_MODEL_LEN),
        environ=ENVIRON,
        kv_cache_gib=KV_CACHE_GIB,
        dtype="float32",
    ) as rig:
        run = Soak(rig, rng, recipes(rng), moves)
        await run.run()
        ends, queued_moves = dict(run.ends), run.queued_moves
        preemptions = await run.check_books()
        right = await run.compare()
        await run.check_channels()
        await run.check_books()
    left = sum(ride.leaves_at is not None for ride, _ in run.answers)
    return {
        "moves": sum(ends.values()),
        "ends": ends,
        "queued_moves": queued_moves,
        "refused_at_once": dict(run.refusals),
        "requests": len(run.answers),
        "right": right,
        "clients_left": left,
        "moved_requests": sum(ride.moves > 0 for ride, _ in run.answers),
        "most_moves_of_one": max((ride.moves for ride, _ in run.answers), default=0),
        "preemptions": preemptions,
        "problems": run.problems,
        "seed": seed,
        "took_s": round(time.monotonic() - began_s),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--moves", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    end_on_signals()
    try:
        figures = asyncio.run(soak(options.moves, options.seed))
    except (KeyboardInterrupt, Interrupted) as error:
        print(f"interrupted: {type(error).__name__}", flush=True)
        return 130
    for problem in figures["problems"]:
        print(problem)
    print(json.dumps(figures))
    return int(bool(figures["problems"]))


if __name__ == "__main__":
    sys.exit(main())
