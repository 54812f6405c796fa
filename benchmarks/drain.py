"""Empties an instance under load: by moving its requests, and by waiting for their natural ends.

    python -m benchmarks.drain [--streams 20] [--repeats 3]

A whole installation with two real vLLM engines and the tests' tiny Llama, in float32, so that an
answer does not depend on what else is in its batch. Greedy streams of several lengths are brought
onto one instance (the other is cordoned meanwhile); once all are well under way:

- drain: the REST API is asked to drain the instance, which moves its requests to the other one
- wait: the instance is only cordoned, as other products do it, and its requests come to their ends

Both in turn, in one run, on the same engines. Measured is the time from the order until the pool
has proven the instance empty (drain), or until it has no request left (wait). Every answer is
compared with the same request's answer in a run before that nobody disturbed, token by token:
broken connections, lost, repeated and changed tokens must be 0, and each drain must end with
DRAINED, verified, long before the streams do. Rebalancing is paused: what moves, moves by the
drain. The last line is JSON; exit code 1: a goal was missed, and `problems` says which.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

import httpx

from benchmarks import session
from benchmarks.chaos_clients import Client, Site
from benchmarks.chaos_journey import Door, End, Journey
from benchmarks.chaos_reference import MeasuredReference
from engine_pool.types import InstanceState
from tests.integration.installation import Installation, wait_for
from tests.integration.operator import Operator
from tests.tiny_model import Shape, write_model

SOURCE, OTHER = "i-01", "i-02"
BEGUN_TOKENS: Final = 40
"""Of each stream before the order comes: all run then, none waits for its prefill."""
LENGTHS: Final = (2500, 5000)
"""Output tokens of the shortest and the longest stream; the others lie evenly between. The shortest
lasts longer than it takes to bring all onto one instance."""
MAX_MODEL_LEN: Final = 6144
STREAMS_TIMEOUT_S: Final = 300.0
START_MAX_S: Final = 600.0
PAUSE_MINUTES: Final = 120
POLL_S: Final = 0.05
KV_CACHE_GIB: Final = "0.2"
"""Room for all streams on either engine: 1 KiB a token in float32."""
PROMPT: Final = "def ship_{n}(harbour): return "


@dataclass
class Measured:
    """What the rounds gave."""

    drain_s: list[float] = field(default_factory=list)
    wait_s: list[float] = field(default_factory=list)
    moved: int = 0
    """Requests that left by a drain, alive."""
    ended: int = 0
    """Requests that came to their own ends in the middle of a drain."""
    open_at_verified: list[int] = field(default_factory=list)
    """Streams that still went on when their former instance was proven empty."""
    flaws: Counter[str] = field(default_factory=Counter)
    """broken, lost, repeated, changed."""
    longest_gap_ms: dict[str, list[float]] = field(default_factory=dict)
    """The longest wait for a token in each round, by kind of round."""
    problems: list[str] = field(default_factory=list)


class Bench:
    """An installation and the streams on it."""

    def __init__(self, pool: Installation, operator: Operator, model: str, streams: int) -> None:
        self._pool = pool
        self._operator = operator
        self._lengths = lengths(streams)
        self._site = Site(
            (pool.url,),
            {"us": pool.login["api_key"]},
            model,
            tuple(PROMPT.format(n=n) for n in range(streams)),
        )

    @contextmanager
    def streams(self) -> Iterator[list[Journey]]:
        """Has all streams under way on one instance while the block runs; waits for their ends."""
        self.ask(OTHER, "cordon")
        self._await(lambda: self.state(OTHER) == InstanceState.CORDONED, f"{OTHER} is cordoned")
        now_s = time.monotonic()
        journeys = [
            Journey(n, Door.SSE, "us", n, length, now_s) for n, length in enumerate(self._lengths)
        ]
        with ThreadPoolExecutor(1) as thread:
            travelling: Future[None] = thread.submit(asyncio.run, self._travel(journeys))
            self._await(
                lambda: all(len(j.token_ids) >= BEGUN_TOKENS for j in journeys), "all have begun"
            )
            self.ask(OTHER, "release")
            self._await(lambda: self.state(OTHER) == InstanceState.SERVING, f"{OTHER} serves")
            if (here := self.left(SOURCE)) < len(journeys):
                raise RuntimeError(f"only {here} streams run on {SOURCE} when it begins")
            yield journeys
            travelling.result(STREAMS_TIMEOUT_S)

    async def _travel(self, journeys: Sequence[Journey]) -> None:
        timeout, limits = httpx.Timeout(60.0), httpx.Limits(max_connections=None)
        async with (
            httpx.AsyncClient(timeout=timeout, limits=limits) as http,
            asyncio.TaskGroup() as tasks,
        ):
            for journey in journeys:
                tasks.create_task(Client(self._site, http).travel(journey))

    def ask(self, instance: str, what: str) -> None:
        """Raises: RuntimeError when it is refused."""
        body: dict[str, object] = {"reason": "drain benchmark"}
        answer = self._operator.post(f"/instances/{instance}/{what}", body)
        if answer.status_code != 202:
            raise RuntimeError(f"{what} {instance}: {answer.text}")

    def drain_state(self) -> dict[str, Any]:
        return self._operator.get(f"/instances/{SOURCE}/drain")

    def state(self, instance: str) -> str:
        found = (s.state for s in self._pool.statuses() if s.instance == instance)
        return next(found, "")

    def left(self, instance: str) -> int:
        """Returns the requests that an instance has."""
        loads = [x for x in self._pool.loads() if x.instance == instance]
        return sum(len(x.running) + len(x.waiting) for x in loads)

    def release(self) -> None:
        self.ask(SOURCE, "release")
        self._await(lambda: self.state(SOURCE) == InstanceState.SERVING, f"{SOURCE} serves again")

    def _await(self, what: Callable[[], object], because: str) -> None:
        """Raises: RuntimeError."""
        try:
            wait_for(what, because, STREAMS_TIMEOUT_S)
        except AssertionError as error:
            raise RuntimeError(str(error)) from None


def drain_round(bench: Bench, measured: Measured) -> list[Journey]:
    """Drains the instance under load."""
    with bench.streams() as journeys:
        ordered_s, ordered_unix_s = time.monotonic(), time.time()
        bench.ask(SOURCE, "drain")
        found = bench.drain_state()
        while not found["is_safe_to_stop"] and time.monotonic() < ordered_s + STREAMS_TIMEOUT_S:
            time.sleep(POLL_S)
            found = bench.drain_state()
        still_open = sum(journey.end is End.OPEN for journey in journeys)
    if found["state"] != InstanceState.DRAINED or not found["verified_unix_s"]:
        measured.problems.append(f"a drain ended {found['state']}: {found['why_not_safe']}")
    else:
        # When it was proven, not when this process saw it.
        measured.drain_s.append(found["verified_unix_s"] - ordered_unix_s)
        measured.open_at_verified.append(still_open)
    measured.moved += found["moved"] or 0
    measured.ended += found["ended"] or 0
    bench.release()
    return journeys


def wait_round(bench: Bench, measured: Measured) -> list[Journey]:
    """Cordons the instance and waits until its requests have ended."""
    with bench.streams() as journeys:
        ordered_s = time.monotonic()
        bench.ask(SOURCE, "cordon")
        while bench.left(SOURCE) and time.monotonic() < ordered_s + STREAMS_TIMEOUT_S:
            time.sleep(POLL_S)
        measured.wait_s.append(time.monotonic() - ordered_s)
    bench.release()
    return journeys


def judge(
    kind: str, journeys: Sequence[Journey], reference: MeasuredReference, measured: Measured
) -> None:
    """Compares a round's answers with the undisturbed ones."""
    for journey in journeys:
        flaw = flaw_of(journey, reference)
        if flaw:
            name, why = flaw
            measured.flaws[name] += 1
            measured.problems.append(f"{kind}, stream {journey.number}: {name}: {why}")
    gaps = [journey.longest_gap_s for journey in journeys]
    measured.longest_gap_ms.setdefault(kind, []).append(max(gaps) * 1000)


def flaw_of(journey: Journey, reference: MeasuredReference) -> tuple[str, str] | None:
    """Returns what is wrong with an answer, in a word and in words; None when nothing is."""
    if journey.end is not End.COMPLETED or journey.breaks or journey.resumes:
        return "broken", f"{journey.end} {journey.code} {journey.breaks}"
    expected = reference.expected(journey)
    why = journey.wrong(expected)
    if not why:
        return None
    for word in ("lost", "repeated"):
        if why.endswith(word):
            return word, why
    if len(journey.token_ids) < len(expected.token_ids):
        return "lost", why
    return ("repeated" if len(journey.token_ids) > len(expected.token_ids) else "changed"), why


def lengths(streams: int) -> list[int]:
    """Returns the output tokens of each stream."""
    low, high = LENGTHS
    return [low + (high - low) * n // max(1, streams - 1) for n in range(streams)]


def drain(streams: int, repeats: int) -> dict[str, Any]:
    """Does the whole benchmark. Returns its figures. Raises: RuntimeError."""
    measured = Measured()
    with tempfile.TemporaryDirectory(prefix="ferry-drain-") as folder:
        var, model = Path(folder) / "var", Path(folder) / "tiny-llama-long"
        var.mkdir()
        model.mkdir()
        write_model(model, Shape(max_model_len=MAX_MODEL_LEN))
        pool = Installation(
            var,
            FERRY_ENGINE="vllm",
            FERRY_INSTANCES="2",
            FERRY_MODEL=str(model),
            FERRY_DTYPE="float32",
            FERRY_KV_CACHE_GIB=KV_CACHE_GIB,
        )
        try:
            pool.wait_ready(deadline_s=START_MAX_S)
            wait_for(
                lambda: [s.state for s in pool.statuses()] == [InstanceState.SERVING] * 2,
                "both engines serve",
                START_MAX_S,
            )
            with Operator(pool) as operator:
                paused = operator.post("/rebalancing/pause", {"minutes": PAUSE_MINUTES})
                if paused.status_code >= 300:
                    raise RuntimeError(f"rebalancing is not paused: {paused.text}")
                bench = Bench(pool, operator, model.name, streams)
                with bench.streams() as undisturbed:
                    pass
                if not all(j.end is End.COMPLETED for j in undisturbed):
                    raise RuntimeError("the reference run failed")
                reference = MeasuredReference({j.number: j for j in undisturbed})
                judge("undisturbed", undisturbed, reference, measured)
                for number in range(repeats):
                    judge("drain", drain_round(bench, measured), reference, measured)
                    judge("wait", wait_round(bench, measured), reference, measured)
                    print(
                        f"{number + 1}: drained in {measured.drain_s[-1:]} s, natural ends after"
                        f" {measured.wait_s[-1:]} s",
                        flush=True,
                    )
        except AssertionError as error:
            raise RuntimeError(str(error)) from None
        finally:
            pool.stop()
    return figures(measured, streams, repeats)


def figures(measured: Measured, streams: int, repeats: int) -> dict[str, Any]:
    """Returns what the rounds come to."""
    if len(measured.drain_s) < repeats:
        measured.problems.append(f"{len(measured.drain_s)} of {repeats} drains were proven")
    if measured.open_at_verified and not min(measured.open_at_verified):
        measured.problems.append("an instance was empty only after its streams had ended")
    flaws = {n: measured.flaws[n] for n in ("broken", "lost", "repeated", "changed")}
    return {
        "streams": streams,
        "repeats": repeats,
        "output_tokens": list(LENGTHS),
        **flaws,
        "drained_verified": len(measured.drain_s),
        "moved": measured.moved,
        "ended_meanwhile": measured.ended,
        "open_when_verified": measured.open_at_verified,
        "drain_s": _spread(measured.drain_s),
        "wait_for_ends_s": _spread(measured.wait_s),
        "longest_gap_ms": {kind: _spread(gaps) for kind, gaps in measured.longest_gap_ms.items()},
        "problems": measured.problems,
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    rounded = {"median": median(values), "least": min(values), "most": max(values)}
    return {name: round(value, 2) for name, value in rounded.items()}


def table(result: dict[str, Any]) -> str:
    """Returns the figures for people."""
    flaws = ", ".join(f"{result[n]} {n}" for n in ("broken", "lost", "repeated", "changed"))
    return (
        f"{result['streams']} streams, {result['repeats']} times: {flaws}\n"
        f"drained and verified in {result['drain_s']} s; natural ends after"
        f" {result['wait_for_ends_s']} s"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--streams", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    return session.run(
        lambda: drain(options.streams, options.repeats), problems="problems", table=table
    )


if __name__ == "__main__":
    sys.exit(main())
