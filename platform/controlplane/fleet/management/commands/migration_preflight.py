"""`manage.py migration_preflight [--json] [--tokens N ...]`: would moves work, what do they take?

Exit code 0 when they would, 1 otherwise. The result is kept, so that the page shows it too.
"""

import asyncio
import json
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from controlplane.fleet.management.installation import enter_installation
from controlplane.fleet.preflight import LENGTHS
from controlplane.fleet.preflight_run import preflight_run
from controlplane.fleet.preflight_values import Pair, PairWay, PreflightReport
from engine_pool import ray_probe
from engine_pool.client import PoolClient
from engine_pool.config import PoolConfig
from engine_pool.errors import PoolError

FOLLOW_TIMEOUT_S: Final = 10.0
"""Until the pool is known: the store answers within milliseconds, or it is away."""
JOIN_TIMEOUT_S: Final = 30.0
"""Joining a Ray cluster takes a few seconds on a busy machine."""
_LEFT_OUT_NAMED: Final = 4


class Command(BaseCommand):
    help = "Measures the ways between instances and says whether running requests can move."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="the result for machines")
        parser.add_argument(
            "--tokens",
            type=_length,
            nargs="+",
            default=list(LENGTHS),
            metavar="N",
            help="lengths of requests to predict; the longest that the model takes is added",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        enter_installation()
        try:
            report = asyncio.run(measure(settings.POOL, options["tokens"]))
        except PoolError as error:
            raise CommandError(str(error)) from None
        if options["json"]:
            self.stdout.write(json.dumps(asdict(report), indent=2))
        else:
            self.stdout.write("\n".join(lines_of(report)))
        sys.exit(0 if report.ok else 1)


async def measure(config: PoolConfig, lengths: Sequence[int]) -> PreflightReport:
    """Runs the pre-flight with a pool client of this process. Raises: CommandError, PoolError."""
    client = PoolClient(config)
    try:
        try:
            async with asyncio.timeout(JOIN_TIMEOUT_S):
                await asyncio.to_thread(ray_probe.count_nodes, config.ray_address)
        # Ray raises ConnectionError, RuntimeError and its own kinds when no head answers.
        except Exception as error:  # noqa: BLE001
            raise CommandError(
                f"Ray does not answer at {config.ray_address} ({type(error).__name__})."
                " Is the installation running (make up)?"
            ) from None
        await client.start()
        await _until_known(client)
        return await preflight_run(client, lengths)
    finally:
        await client.stop()
        await asyncio.to_thread(ray_probe.leave)


async def _until_known(client: PoolClient) -> None:
    end_s = time.monotonic() + FOLLOW_TIMEOUT_S
    while not (client.view.store_connected and (client.ray is None or client.ray.is_joined)):
        if time.monotonic() >= end_s:
            raise CommandError("The store does not answer. Is the installation running (make up)?")
        await asyncio.sleep(0.05)


def lines_of(report: PreflightReport) -> Iterator[str]:
    """Yields the report for a person, the verdict first."""
    yield report.verdict
    yield ""
    if report.token_bytes is None:
        yield "KV cache: no instance has told what its blocks look like."
    else:
        yield (
            f"KV cache: {report.token_bytes:,} bytes a token; blocks of"
            f" {report.block_size_tokens} tokens, {report.block_bytes:,} bytes."
        )
    yield ""
    yield from _ways(report.ways, report.left_out)
    if report.forecasts:
        yield from _forecasts(report)
    test = report.self_test
    if test is None:
        yield "Self-test: none yet."
    else:
        told = "passed" if test.ok else "FAILED" if test.is_conclusive else "not carried out"
        age_s = max(0.0, time.time() - test.at_unix_s)
        yield (
            f"Self-test: {told} {age_s:,.0f} s ago, {test.source} to {test.destination}:"
            f" {test.detail}"
        )
    yield ""
    yield "What refuses a move (applies here?):"
    for obstacle in report.obstacles:
        yield f"  {obstacle.applies.value:<12} {obstacle.what}: {obstacle.why}"


def _ways(ways: Sequence[PairWay], left_out: Sequence[Pair]) -> Iterator[str]:
    yield f"{'From':<10} {'to':<10} {'GB/s':>8} {'round trip':>12}"
    for way in ways:
        if way.gb_per_s is None or way.round_trip_ms is None:
            yield f"{way.source:<10} {way.destination:<10} not measured: {way.problem}"
            continue
        yield (
            f"{way.source:<10} {way.destination:<10} {way.gb_per_s:>8.2f}"
            f" {way.round_trip_ms:>9.1f} ms"
        )
    if left_out:
        named = ", ".join(f"{p.source} to {p.destination}" for p in left_out[:_LEFT_OUT_NAMED])
        more = len(left_out) - _LEFT_OUT_NAMED
        yield f"Not measured: {named}" + (f" and {more} more pairs." if more > 0 else ".")
    yield ""


def _forecasts(report: PreflightReport) -> Iterator[str]:
    step = f"{report.step_ms:.0f} ms a step" + (", assumed" if report.is_step_assumed else "")
    assert report.slowest is not None, "forecasts are for the slowest way"
    way = f"{report.slowest.source} to {report.slowest.destination}"
    yield f"Predicted for the slowest way, {way}, with {step}:"
    yield f"{'tokens':>8} {'stages':>7} {'copying':>12} {'downtime':>12} {'sent':>12}"
    for told in report.forecasts:
        yield (
            f"{told.tokens:>8,} {told.stages:>7} {told.copy_ms:>9,.0f} ms"
            f" {told.downtime_ms:>9,.1f} ms {told.bytes / 1e6:>9,.1f} MB"
        )
    yield ""


def _length(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ArgumentTypeError("expected a whole number of tokens of at least 1")
    return int(text)
