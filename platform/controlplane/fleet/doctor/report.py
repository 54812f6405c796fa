"""Runs the doctor's checks one after another and keeps what came out."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

CHECK_TIMEOUT_S: Final = 60.0
"""Longest time of one check: a chat on a busy CPU engine takes seconds, a hang is a failure."""


class Problem(Exception):
    """A check failed: what is wrong, and what to do about it."""

    def __init__(self, what: str, to_do: str) -> None:
        super().__init__(what)
        self.what = what
        self.to_do = to_do


@dataclass(frozen=True, slots=True)
class CheckResult:
    name: str
    ok: bool
    detail: str
    """What was found; for a failed check, what is wrong."""
    to_do: str
    """What a person can do; empty when all is well."""
    duration_ms: float


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    run: Callable[[], Awaitable[str]]
    """Returns what was found, in words. Raises: Problem."""
    needs: tuple[str, ...] = ()
    """Checks without which this one could only fail for the same reason."""
    timeout_s: float = CHECK_TIMEOUT_S


async def run_checks(
    checks: Sequence[Check], tell: Callable[[CheckResult], None]
) -> list[CheckResult]:
    """Runs all checks in order; `tell` gets each result as soon as it is known."""
    results: dict[str, CheckResult] = {}
    for check in checks:
        missing = [need for need in check.needs if not results[need].ok]
        result = (
            CheckResult(
                check.name, False, f"not tried, since {missing[0]} failed", "see there", 0.0
            )
            if missing
            else await _run(check)
        )
        results[check.name] = result
        tell(result)
    return list(results.values())


async def _run(check: Check) -> CheckResult:
    began_s = time.perf_counter()

    def result(ok: bool, detail: str, to_do: str = "") -> CheckResult:
        return CheckResult(check.name, ok, detail, to_do, (time.perf_counter() - began_s) * 1000)

    try:
        async with asyncio.timeout(check.timeout_s):
            return result(True, await check.run())
    except Problem as problem:
        return result(False, problem.what, problem.to_do)
    except TimeoutError:
        return result(
            False, f"no answer within {check.timeout_s:.0f} s", "look at the logs in var/log"
        )
    # The outermost loop of this program: an error nobody thought of is a failed check, not a crash.
    except Exception as error:  # noqa: BLE001
        return result(False, f"{type(error).__name__}: {error}", "look at the logs in var/log")
