"""Where a new request goes: to the freest instance, as of the last reports and what was sent since.

`F = (free - watermark - all queued) / (running + queued)` in KV tokens a request, the rule that
worked for every mix of lengths in simulation. Requests that web processes have sent and
that no report shows yet (the in-flight ledger) count as queued; without them a stale report makes
a herd. Headroom plays no part here. Does not decide who may send what, nor where a request moves
later.
"""

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from engine_pool.types import (
    InFlight,
    InstanceLoad,
    InstanceName,
    InstanceState,
    PoolView,
    PriorityClass,
    RequestId,
)

REPORT_MAX_AGE_S = 5.0
"""Older reports do not count. Engines report every 100 ms; the pages call a report stale after 5
s, too."""
WATERMARK = 0.01
"""Share of its capacity that an engine keeps free at admission (Llumnix)."""


@dataclass(frozen=True, slots=True)
class RequestDemand:
    """What dispatch knows of a request."""

    request_id: RequestId
    demand_tokens: int
    """KV tokens that its prefill needs."""


@dataclass(frozen=True, slots=True)
class Choice:
    instance: InstanceName
    reason: str
    """Why this one, in words with numbers."""
    freeness_steps: float
    """F of the instance before this request; plus infinity when nothing runs or waits there."""


@dataclass(frozen=True, slots=True)
class Refusal:
    why: str
    is_permanent: bool = False
    """Whether the same request could never be placed on the instances that are there."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    load: InstanceLoad
    sent: tuple[InFlight, ...]

    @property
    def holds_tokens(self) -> int:
        """KV tokens that one request can have at most."""
        return int(self.load.capacity_tokens * (1 - WATERMARK))

    @property
    def queued(self) -> int:
        return len(self.load.waiting) + len(self.sent)

    @property
    def left_tokens(self) -> int:
        """KV tokens that are left once everything queued is in; negative when not all fits."""
        reported = sum(r.demand_tokens for r in self.load.waiting)
        sent = sum(r.demand_tokens for r in self.sent)
        return self.holds_tokens - self.load.used_tokens - reported - sent

    @property
    def freeness_steps(self) -> float:
        requests = len(self.load.running) + self.queued
        return self.left_tokens / requests if requests else math.inf

    def ahead_of(self, priority_class: PriorityClass) -> int:
        """Counts the queued requests that go before a new one of the class."""
        queued = [r.priority_class for r in self.load.waiting]
        queued += [r.priority_class for r in self.sent]
        return sum(c.rank <= priority_class.rank for c in queued)


def choose(
    view: PoolView,
    request: RequestDemand,
    priority_class: PriorityClass,
    now_unix_s: float,
    report_max_age_s: float = REPORT_MAX_AGE_S,
) -> Choice | Refusal:
    """Chooses the instance with the largest F.

    Ties go to the shorter queue ahead of the request's class, then to more free memory, then by a
    hash of request and instance, which is the same everywhere and spreads requests evenly.
    """
    candidates = list(_candidates(view, now_unix_s, report_max_age_s))
    if not candidates:
        return Refusal(_why_nobody(view, now_unix_s, report_max_age_s))
    fit = [c for c in candidates if request.demand_tokens <= c.holds_tokens]
    if not fit:
        need, most = request.demand_tokens, max(c.holds_tokens for c in candidates)
        why = f"the prompt needs {need} KV tokens, the largest instance holds {most}"
        return Refusal(why, is_permanent=True)
    best = max(
        fit,
        key=lambda c: (
            c.freeness_steps,
            -c.ahead_of(priority_class),
            c.left_tokens,
            zlib.crc32(f"{request.request_id}/{c.load.instance}".encode()),
        ),
    )
    return Choice(best.load.instance, _why(best, len(candidates)), best.freeness_steps)


def _candidates(view: PoolView, now_unix_s: float, max_age_s: float) -> Iterator[_Candidate]:
    loads = {load.instance: load for load in view.loads}
    for status in view.statuses:
        load = loads.get(status.instance)
        if status.state is not InstanceState.SERVING or load is None:
            continue
        if load.incarnation != status.incarnation or now_unix_s - load.at_unix_s > max_age_s:
            continue
        shown = {r.request_id for r in (*load.running, *load.waiting)}.union(load.ended)
        sent = tuple(
            s for s in view.in_flight if s.instance == load.instance and s.request_id not in shown
        )
        yield _Candidate(load, sent)


def _why(best: _Candidate, candidates: int) -> str:
    among = f"the freest of {candidates}" if candidates > 1 else "the only one that serves"
    left = f"{best.load.instance} is {among}: {best.left_tokens} KV tokens left"
    if math.isinf(best.freeness_steps):
        return f"{left}, idle"
    shared = f"for {len(best.load.running)} running and {best.queued} queued"
    return f"{left} {shared}, {best.freeness_steps:.0f} decode steps"


def _why_nobody(view: PoolView, now_unix_s: float, max_age_s: float) -> str:
    if not view.statuses:
        return "the pool has no instance"
    states = {s.state for s in view.statuses}
    if InstanceState.SERVING not in states:
        return f"none of {len(view.statuses)} instances serves ({', '.join(sorted(states))})"
    ages_s = [now_unix_s - load.at_unix_s for load in view.loads]
    newest = f"the newest is {min(ages_s):.1f} s old" if ages_s else "there is none"
    return f"no serving instance has a report younger than {max_age_s:g} s ({newest})"
